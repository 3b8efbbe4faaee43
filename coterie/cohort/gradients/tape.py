"""Per-example gradients of a cohort, without storing those of linear layers.

The gradient of a linear layer for one example is an outer product `error x input`. Its norm and its
weighted sums follow from the two factors, so only these are stored ("ghost norms"; Goodfellow 2015, Li et
al. 2022). The gradient of a convolution is computed from error and input afterwards. Other parameters get
explicit gradients. `choose` decides which layers may be taped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from ...tasks.task import Task

ADDED = 64  # squares that are added up in float32; their sums are added in float64


@dataclass(frozen=True, eq=False)
class Tape:
    """Gradients of every example of every row; the shape of every tensor starts with `[rows, width]`.

    `explicit` holds whole gradients by parameter name; those in `channels_last` have their third axis last.
    `error` and `input` hold the two factors of each linear layer by layer name.
    """

    explicit: dict[str, Tensor]
    error: dict[str, Tensor]
    input: dict[str, Tensor]
    biased: frozenset[str]
    channels_last: frozenset[str] = frozenset()

    def without(self, gone: Tensor) -> Tape:
        """Return the tape with the gradients of the examples in `gone` `[rows, width]` set to zero."""

        def clear(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {
                name: value.masked_fill(gone.reshape(*gone.shape, *[1] * (value.dim() - 2)), 0)
                for name, value in values.items()
            }

        cleared = (clear(self.explicit), clear(self.error), clear(self.input))
        return Tape(*cleared, self.biased, self.channels_last)

    def squared_norms(self) -> Tensor:
        """Return an upper bound on the squared norm of each example's gradient: `[rows, width]`, float64."""
        squares = [_square(_flat(value)) for value in self.explicit.values()]
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
        return Tape(*parts, self.biased, self.channels_last).weighted_sums(weight)


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


Recorder = Callable[[dict[str, Tensor], Tensor, Tensor], Tape]
Summer = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor], dict[str, Tensor]]


def taped(task: Task, layers: tuple[str, ...]) -> Recorder:
    """Return a function (parameters `[rows, ...]`, x `[rows, width, ...]`, y) -> tape.

    Examples are processed one at a time, so they cannot mix, whatever the module does.
    """
    modules: dict[str, Any] = {layer: task.module.get_submodule(layer) for layer in layers}
    linear = {layer for layer, module in modules.items() if isinstance(module, nn.Linear)}
    biased = frozenset(layer for layer in linear if modules[layer].bias is not None)
    held = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    shapes = _output_shapes(task, modules)

    def total(explicit, probes, fixed, x, y):  # type: ignore[no-untyped-def]
        inputs: dict[str, Tensor] = {}

        def record(layer: str) -> Callable[..., Tensor]:
            def hook(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
                inputs[layer] = given[0]
                moved: Tensor = out + probes[layer]
                return moved

            return hook

        handles = [module.register_forward_hook(record(layer)) for layer, module in modules.items()]
        try:
            loss = task.losses({**explicit, **fixed}, x, y).sum()
        finally:
            for handle in handles:
                handle.remove()
        return loss, inputs

    over_batch = grad(total, argnums=(0, 1), has_aux=True)
    over_rows = vmap(vmap(over_batch, (None, None, None, 0, 0)), (0, None, 0, 0, 0))

    def run(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tape:
        explicit = {name: value for name, value in parameters.items() if name not in held}
        fixed = {name: value for name, value in parameters.items() if name in held}
        probes = {layer: torch.zeros(1, *shape, device=x.device) for layer, shape in shapes.items()}
        (whole, errors), inputs = over_rows(explicit, probes, fixed, x.unsqueeze(2), y.unsqueeze(2))
        errors = {layer: value.squeeze(2) for layer, value in errors.items()}
        inputs = {layer: value.squeeze(2) for layer, value in inputs.items()}
        for layer in shapes.keys() - linear:
            whole |= _convolution(layer, modules[layer], errors.pop(layer), inputs.pop(layer))
        return Tape(whole, errors, inputs, biased)

    return run


def summed(task: Task) -> Summer:
    """Return a function (parameters `[rows, ...]`, x `[rows, width, ...]`, y, weight) -> weighted sums.

    It differentiates each row's weighted loss, so no gradient of a single example is formed. Examples are
    still processed one at a time, so they cannot mix.
    """

    def total(parameters, x, y, weight):  # type: ignore[no-untyped-def]
        def loss(example: Tensor, label: Tensor) -> Tensor:
            return task.losses(parameters, example.unsqueeze(0), label.unsqueeze(0)).sum()

        return (vmap(loss)(x, y) * weight).sum()

    return vmap(grad(total))


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


def _output_shapes(task: Task, layers: dict[str, Any]) -> dict[str, torch.Size]:
    """Return the shape of each layer's output for one example."""
    shapes: dict[str, torch.Size] = {}

    def watch(layer: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
            shapes[layer] = out.shape[1:]

        return hook

    handles = [module.register_forward_hook(watch(layer)) for layer, module in layers.items()]
    with torch.no_grad():
        task.module(torch.zeros(1, *task.shape, dtype=task.dtype, device=task.device))
    for handle in handles:
        handle.remove()
    return shapes
