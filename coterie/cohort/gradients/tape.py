"""Per-example gradients of a cohort, without storing those of linear layers.

The gradient of a linear layer for one example is an outer product `error x input`. Its norm and its
weighted sums follow from the two factors, so only these are stored ("ghost norms"; Goodfellow 2015, Li et
al. 2022). The gradient of a convolution is computed from error and input afterwards. Other parameters get
explicit gradients. `choose` decides which layers may be taped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from ...tasks.layers.attention import Attention
from ...tasks.layers.taps import Tap, Trial
from ...tasks.task import Task
from .tapped import RECURRENT, TABLES, Looked, of_attention, of_recurrent, of_table, product

ADDED = 64  # squares that are added up in float32; their sums are added in float64


@dataclass(frozen=True, eq=False)
class Tape:
    """Gradients of every example of every row; the shape of every tensor starts with `[rows, width]`.

    `explicit` holds whole gradients by parameter name; those in `channels_last` have their third axis last.
    `error` and `input` hold the two factors of each linear layer by layer name, and `looked` the gradients of
    tables by parameter name.
    """

    explicit: dict[str, Tensor]
    error: dict[str, Tensor]
    input: dict[str, Tensor]
    biased: frozenset[str]
    channels_last: frozenset[str] = frozenset()
    looked: dict[str, Looked] = field(default_factory=dict)

    def without(self, gone: Tensor) -> Tape:
        """Return the tape with the gradients of the examples in `gone` `[rows, width]` set to zero."""

        def clear(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {
                name: value.masked_fill(gone.reshape(*gone.shape, *[1] * (value.dim() - 2)), 0)
                for name, value in values.items()
            }

        cleared = (clear(self.explicit), clear(self.error), clear(self.input))
        rows = clear({name: each.rows for name, each in self.looked.items()})
        return Tape(*cleared, self.biased, self.channels_last, self._with_rows(rows))

    def _with_rows(self, rows: dict[str, Tensor]) -> dict[str, Looked]:
        return {name: each.replaced(rows[name]) for name, each in self.looked.items()}

    def of_persons(self, weight: Tensor) -> Tape:
        """Return the gradients of persons: sums over their rows, times `weight` `[rows, width, each]`.

        The tape holds each person's rows side by side. Sums of products are multiplied out: the norm is then
        that of the very numbers that are clipped and added up, however much of them cancelled out.
        """
        rows, width, each = weight.shape
        share, explicit = weight.reshape(rows * width, 1, each), {}
        for name, value in self.explicit.items():
            summed = torch.bmm(share, value.reshape(rows * width, each, -1))
            explicit[name] = summed.reshape(rows, width, *value.shape[2:])
        for layer, error in self.error.items():
            weighted = share.transpose(1, 2) * error.reshape(rows * width, each, -1)
            given = self.input[layer].reshape(rows * width, each, -1)
            explicit[f"{layer}.weight"] = torch.bmm(weighted.transpose(1, 2), given).unflatten(
                0, (rows, width)
            )
            if layer in self.biased:
                explicit[f"{layer}.bias"] = weighted.sum(1).unflatten(0, (rows, width))
        looked = {name: value.of_persons(weight) for name, value in self.looked.items()}
        return Tape(explicit, {}, {}, frozenset(), self.channels_last, looked)

    def squared_norms(self) -> Tensor:
        """Return an upper bound on the squared norm of each example's gradient: `[rows, width]`, float64."""
        squares = [_square(_flat(value)) for value in self.explicit.values()]
        squares += [_square(_flat(each.rows)) for each in self.looked.values()]
        for layer, error in self.error.items():
            squares.append(_square(error) * (_square(self.input[layer]) + (layer in self.biased)))
        return torch.stack(squares).sum(0)

    def weighted_sums(self, weight: Tensor) -> dict[str, Tensor]:
        """Return each row's sum of gradients times `weight` `[rows, width]`, by parameter name."""
        sums = {
            name: torch.bmm(weight.unsqueeze(1), _flat(value)).reshape(len(value), *value.shape[2:])
            for name, value in self.explicit.items()
        }
        sums |= {name: sums[name].movedim(-1, 2) for name in self.channels_last}
        sums |= {name: each.weighted_sum(weight) for name, each in self.looked.items()}
        for layer, error in self.error.items():
            weighted = weight.unsqueeze(-1) * error
            sums[f"{layer}.weight"] = torch.bmm(weighted.transpose(1, 2), self.input[layer])
            if layer in self.biased:
                sums[f"{layer}.bias"] = weighted.sum(1)
        return sums

    def squared_sums(self, weight: Tensor) -> dict[str, Tensor]:
        """Return each row's sum of *squared* gradients times `weight` `[rows, width]`, by parameter name."""

        def squared(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value.square() for name, value in values.items()}

        parts = squared(self.explicit), squared(self.error), squared(self.input)
        rows = squared({name: each.rows for name, each in self.looked.items()})
        return Tape(*parts, self.biased, self.channels_last, self._with_rows(rows)).weighted_sums(weight)


def _square(value: Tensor) -> Tensor:
    """Sum squares over the last axis, plus what may have underflowed in float32.

    No more than `ADDED` squares are added in float32, in whatever order: the sum is within a share of
    (ADDED + 1) 2^-24 of the true one.
    """
    size = value.shape[-1]
    whole, squares = size - size % ADDED, value.square()
    total = squares[..., whole:].sum(-1).double()
    if whole:
        total = total + squares[..., :whole].unflatten(-1, (ADDED, -1)).sum(-2).double().sum(-1)
    return total + size * torch.finfo(torch.float32).tiny


def _flat(value: Tensor) -> Tensor:
    """Reshape every example's gradient to one vector; a parameter without axes becomes one number."""
    return value.reshape(*value.shape[:2], -1)


# Both take, after parameters, examples and targets (and weights), the examples' keys for dropout, if any.
Recorder = Callable[..., Tape]
Summer = Callable[..., dict[str, Tensor]]


def taped(task: Task, layers: tuple[str, ...]) -> Recorder:
    """Return a function (parameters `[rows, ...]`, x `[rows, width, ...]`, y) -> tape.

    Examples are processed one at a time, so they cannot mix, whatever the module does.
    """
    modules: dict[str, Any] = {layer: task.module.get_submodule(layer) for layer in layers}
    tapped = {
        layer: module
        for layer, module in modules.items()
        if isinstance(module, (*RECURRENT, *TABLES, Attention))
    }
    hooked = {layer: module for layer, module in modules.items() if layer not in tapped}
    linear = {layer for layer, module in hooked.items() if isinstance(module, nn.Linear)}
    held = {f"{layer}.{name}" for layer in layers for name, _ in modules[layer].named_parameters()}
    shapes = _shapes_inside(task, hooked, tapped)
    biased = frozenset(
        layer for layer in linear if modules[layer].bias is not None and len(shapes[layer, ""]) == 1
    )

    def total(explicit, probes, fixed, x, y, key):  # type: ignore[no-untyped-def]
        inputs: dict[str, Tensor] = {}

        def record(layer: str) -> Callable[..., Tensor]:
            def hook(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
                inputs[layer] = given[0]
                moved: Tensor = out + probes[layer, ""]
                return moved

            return hook

        handles = [module.register_forward_hook(record(layer)) for layer, module in hooked.items()]
        taps = {layer: Tap(_of_layer(probes, layer)) for layer in tapped}
        try:
            for layer, module in tapped.items():
                module.tap = taps[layer]
            loss = task.losses({**explicit, **fixed}, x, y, key).sum()
        finally:
            for handle in handles:
                handle.remove()
            for module in tapped.values():
                del module.tap
        return loss, (inputs, {layer: tap.noted for layer, tap in taps.items()})

    over_batch = grad(total, argnums=(0, 1), has_aux=True)

    def over_rows(*given: Any) -> Any:
        keyed = None if given[-1] is None else 0
        return vmap(vmap(over_batch, (None, None, None, 0, 0, keyed)), (0, None, 0, 0, 0, keyed))(*given)

    def run(parameters: dict[str, Tensor], x: Tensor, y: Tensor, keys: Tensor | None = None) -> Tape:
        explicit = {name: value for name, value in parameters.items() if name not in held}
        fixed = {name: value for name, value in parameters.items() if name in held}
        probes = {place: torch.zeros(1, *shape, device=x.device) for place, shape in shapes.items()}
        (whole, found), (inputs, noted) = over_rows(
            explicit, probes, fixed, x.unsqueeze(2), y.unsqueeze(2), keys
        )
        looked: dict[str, Looked] = {}
        errors: dict[str, Tensor] = {}
        for layer, module in tapped.items():
            tap, inside = Tap(noted=noted[layer]), _of_layer(found, layer)
            if isinstance(module, TABLES):
                looked[f"{layer}.weight"] = of_table(module, tap, inside["found"])
            elif isinstance(module, Attention):
                whole |= of_attention(layer, module, tap, inside)
            else:
                whole |= of_recurrent(layer, module, tap, inside)
        for layer, module in hooked.items():
            error, given = found[layer, ""].squeeze(2), inputs[layer].squeeze(2)
            if layer not in linear:
                whole |= _convolution(layer, module, error, given)
            elif error.dim() > 3:
                whole |= _along(layer, module, error.flatten(2, -2), given.flatten(2, -2))
            else:
                errors[layer], inputs[layer] = error, given
        kept = {layer: inputs[layer] for layer in errors}
        return Tape(whole, errors, kept, biased, looked=looked)

    return run


def _of_layer(values: dict[tuple[str, str], Tensor], layer: str) -> dict[str, Tensor]:
    """Return what belongs to places inside one layer, by place."""
    return {place: value for (owner, place), value in values.items() if owner == layer}


def _along(layer: str, module: nn.Linear, error: Tensor, given: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a linear layer that every step of a sequence goes through."""
    gradients = {f"{layer}.weight": product(error, given)}
    if module.bias is not None:
        gradients[f"{layer}.bias"] = error.sum(2)
    return gradients


def summed(task: Task) -> Summer:
    """Return a function (parameters `[rows, ...]`, x `[rows, width, ...]`, y, weight) -> weighted sums.

    It differentiates each row's weighted loss, so no gradient of a single example is formed. Examples are
    still processed one at a time, so they cannot mix.
    """

    def total(parameters, x, y, weight, keys):  # type: ignore[no-untyped-def]
        def loss(example: Tensor, label: Tensor, key: Tensor | None) -> Tensor:
            return task.losses(parameters, example.unsqueeze(0), label.unsqueeze(0), key).sum()

        return (vmap(loss, (0, 0, None if keys is None else 0))(x, y, keys) * weight).sum()

    def run(
        parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor, keys: Tensor | None = None
    ) -> dict[str, Tensor]:
        keyed = None if keys is None else 0
        sums: dict[str, Tensor] = vmap(grad(total), (0, 0, 0, 0, keyed))(parameters, x, y, weight, keys)
        return sums

    return run


CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: conv1d_weight,
    nn.Conv2d: conv2d_weight,
    nn.Conv3d: conv3d_weight,
}


def _convolution(layer: str, module: Any, error: Tensor, given: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a convolution, by treating the examples as groups of one large convolution."""
    lead = error.shape[:2]
    count = lead.numel()
    weight = CONVOLUTIONS[type(module)](
        given.reshape(1, -1, *given.shape[3:]),
        (count * module.weight.shape[0], *module.weight.shape[1:]),
        error.reshape(1, -1, *error.shape[3:]),
        module.stride,
        module.padding,
        module.dilation,
        count * module.groups,
    )
    gradients = {f"{layer}.weight": weight.reshape(*lead, *module.weight.shape)}
    if module.bias is not None:
        gradients[f"{layer}.bias"] = error.flatten(3).sum(-1)
    return gradients


def _shapes_inside(
    task: Task, hooked: dict[str, Any], tapped: dict[str, Any]
) -> dict[tuple[str, str], torch.Size]:
    """Return the shape of one example at each layer's output, and at each place inside a tapped layer."""
    shapes: dict[tuple[str, str], torch.Size] = {}

    def watch(layer: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
            shapes[layer, ""] = out.shape[1:]

        return hook

    handles = [module.register_forward_hook(watch(layer)) for layer, module in hooked.items()]
    taps = {layer: Trial() for layer in tapped}
    for layer, module in tapped.items():
        module.tap = taps[layer]
    try:
        with torch.no_grad():
            task.module(torch.zeros(1, *task.shape, dtype=task.dtype, device=task.device))
    finally:
        for handle in handles:
            handle.remove()
        for module in tapped.values():
            del module.tap
    shapes |= {(layer, place): shape for layer, tap in taps.items() for place, shape in tap.shapes.items()}
    return shapes
