"""Which modules can be trained privately."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from .._inputs import Input
from ..errors import Problem
from .layer_problems import layer_problems
from .layers.dropout import dropping, keys
from .layers.functions import exchanging, functions_of
from .layout import Layout, call, tensors_of, tied_names
from .trials import REFUSALS, Kind, draw, ids_below, kind_of, others, tables_of, trial_examples

# How many examples are tried at once, as in a row of training; only two if a model has many parameters.
ROW, LARGE = 4, 1_000_000
ROUNDING = 1e-5


def check_module(
    module: nn.Module,
    shape: tuple[int, ...],
    outputs: int,
    ids: bool = False,
    inputs: tuple[Input, ...] = (),
) -> None:
    """Raise `Problem` if a module cannot be trained privately, and name what to use instead.

    It takes examples of a shape: numbers, ids, or several inputs in flat rows.
    """
    if problems := layer_problems(module):
        raise Problem("\n".join(problems))
    for name, tensor in tensors_of(module).items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype is torch.complex128:
            raise Problem(f"model: '{name}' cannot be saved: use a plain dense tensor instead")
    layout = Layout.of(module)
    if not layout.size:
        raise Problem("model: the module has no trainable parameter")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise Problem(f"model: parameter '{name}' must be float32, got {parameter.dtype}")
    kind = kind_of(module, ids, inputs)
    with exchanging(bool(functions_of(module, trial_examples(shape, kind=kind)[0]))):
        _check_behaviour(module, shape, outputs, kind)


def check_exchanged(module: nn.Module, plain: nn.Module, shape: tuple[int, ...], kind: Kind) -> None:
    """Raise `Problem` unless a module with exchanged layers computes what it computed with torch's own."""
    x = trial_examples(shape, kind=kind)[0]
    with torch.no_grad():
        theirs = plain(x)
        with exchanging(bool(functions_of(module, x))):
            ours = module(x)
    known = torch.isfinite(theirs)  # torch's attention has no answer for queries that may see no key
    ours, theirs = ours[known], theirs[known]
    size = max(1.0, float(theirs.abs().max())) if len(theirs) else 1.0
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * size):
        raise Problem(
            "model: a layer computes other numbers when it trains one example at a time than by torch's own"
            " code; use a layer of another kind, and please report this"
        )


def _remedy(module: nn.Module) -> str:
    """Return what most likely keeps the examples of a module apart."""
    for name, part in module.named_modules():
        if getattr(part, "batch_first", True) is False:
            return f"give it batches as the layer '{name}' expects them, or set its batch_first = True"
    return "normalise within each example, with GroupNorm or LayerNorm"


def _hint(module: nn.Module, kind: Kind) -> str:
    """Return what to do if a module does not take its examples, and that may be why."""
    if kind.ids:
        return "; examples are ids, because of data.features = 'ids': leave it out for numbers"
    return "; if examples are ids, set data.features = 'ids'" if tables_of(module) else ""


def _check_behaviour(module: nn.Module, shape: tuple[int, ...], outputs: int, kind: Kind) -> None:
    """Try the module on made-up examples, small and large, and swap the others of a batch for other ones.

    The batch keeps its shape: in another shape a product may be rounded in another way, and a module that
    makes large differences of small ones (a cosine of large numbers) would look as if it mixed examples.
    """
    generator = torch.Generator().manual_seed(0)
    buffers = {k: b.clone() for k, b in module.named_buffers()}
    examples = trial_examples(shape, generator, kind)
    small = examples[0]
    for x in examples:
        try:
            with torch.no_grad():
                together = module(x)
                alone = torch.cat([module(x[i : i + 1]) for i in range(3)]) if x is small else together
                swaps = [module(torch.cat([other, x[1:]])) for other in others(x, small)]
        except REFUSALS as error:
            if x is not small:  # large values may well be out of a table's range
                continue
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Problem(
                f"model: the module does not take {'ids' if kind.ids else 'examples'} of shape {shape}:"
                f" {said}{_hint(module, kind)}"
            ) from error
        if not isinstance(together, Tensor) or tuple(together.shape) != (3, outputs):
            raise Problem(
                f"model: the module must return {outputs} number(s) per example, so shape (3, {outputs}) for"
                f" three examples, got {tuple(getattr(together, 'shape', ()))}"
            )
        size = float(together.abs().max())
        if not (
            torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * max(1.0, size), equal_nan=True)
            and all(_same(together[1:], swapped[1:]) for swapped in swaps)
        ):
            raise Problem(
                "model: the module mixes examples of a batch (its output for one depends on the"
                f" others): {_remedy(module)}"
            )
    if any(not torch.equal(b, buffers[k]) for k, b in module.named_buffers()):
        raise Problem("model: the module changes its buffers in forward: use a stateless layer")
    _check_gradients(module, shape, outputs, kind, torch.Generator().manual_seed(1))


def _check_gradients(
    module: nn.Module, shape: tuple[int, ...], outputs: int, kind: Kind, generator: torch.Generator
) -> None:
    """Swap one example of a batch, and compare the gradients of the others, made as training makes them.

    Training passes examples through the module one at a time, by `vmap` over examples inside `vmap` over
    rows. A module that gets around it, or that remembers what it has seen, would let one example move the
    gradients of the others, which are clipped each on its own.
    """
    gradients, parameters = _per_example(module, outputs, generator)
    width = ROW if Layout.of(module).size <= LARGE else 2
    small = draw((2, width, *shape), generator, kind)
    large = small if kind.ids else 30 * torch.randn(2, width, *shape, generator=generator)
    tried = [small, large]
    if tables_of(module) and not (kind.ids or kind.inputs):  # whole numbers, to look up
        tried.append(draw((2, width, *shape), generator, Kind(ids_below(module))).float())
    for x in tried:
        try:
            first, *swaps = (gradients(parameters, given) for given in _swapped(x, small))
            again = gradients(parameters, x)
        except REFUSALS as error:
            if x is not small:
                continue
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Problem(
                f"model: a layer cannot run for many silos at once (torch.func.vmap says: {said})"
            ) from error
        for name, values in first.items():
            if not _same(values, again[name]):
                raise Problem(
                    "model: the module gives two answers to the same question: it must not remember what it"
                    " has seen, count its calls or draw numbers"
                )
            kept = [swapped[name].flatten(0, 1)[1:] for swapped in swaps]
            if not all(_same(values.flatten(0, 1)[1:], each) for each in kept):
                raise Problem(
                    "model: the module mixes examples of a batch (another example changes the gradient of"
                    f" '{name}' for the rest): compute the output of each example from that example alone"
                )


def _per_example(module: nn.Module, outputs: int, generator: torch.Generator) -> tuple[Any, Any]:
    """Return a function for gradients of a mix of outputs, `[rows, examples, ...]`, and two rows' models."""
    tied, trained = tied_names(module), set(Layout.of(module).names)
    mix = torch.randn(outputs, generator=generator)

    def one(own: dict[str, Tensor], example: Tensor, key: Tensor) -> Tensor:
        with dropping(key):
            return (call(module, own, example.unsqueeze(0), tied) * mix).sum()

    parameters = {}
    for name, value in module.named_parameters():
        if name in trained:
            drawn = torch.randn(value.shape, generator=generator)
            parameters[name] = torch.stack([value.detach(), drawn.to(value)])
    over_rows = vmap(vmap(grad(one), (None, 0, 0)))

    def gradients(own: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        places = torch.arange(x.shape[:2].numel(), device=x.device).reshape(x.shape[:2])
        found: dict[str, Tensor] = over_rows(own, x, keys(torch.zeros_like(places), 0, places))
        return found

    return gradients, parameters


def _swapped(x: Tensor, small: Tensor) -> Iterator[Tensor]:
    """Yield a batch of rows, and the same with another first example."""
    yield x
    for other in others(x, small):
        batch = x.clone()
        batch[0, 0] = other[0, 0]
        yield batch


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether numbers agree up to rounding; the same shapes are computed in the same order."""
    if torch.equal(one, other):
        return True
    finite = one[torch.isfinite(one)].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=ROUNDING * size, equal_nan=True)
