"""Which modules can be trained privately."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from ..errors import Problem
from .layout import Layout, call, tensors_of, tied_names

MIXERS: dict[type[nn.Module], str] = {
    nn.modules.batchnorm._BatchNorm: "GroupNorm (or LayerNorm)",
    nn.modules.instancenorm._InstanceNorm: "GroupNorm with one group per channel",
}


RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def check_module(module: nn.Module, shape: tuple[int, ...], outputs: int) -> None:
    """Raise `Problem` if a module cannot be trained privately, and name what to use instead."""
    for name, part in module.named_modules():
        where = f"model: layer '{name or type(part).__name__}' ({type(part).__name__})"
        for kind, replacement in MIXERS.items():
            if isinstance(part, kind) and not (
                isinstance(part, nn.modules.instancenorm._InstanceNorm) and not part.track_running_stats
            ):
                raise Problem(f"{where} mixes examples of a batch: use {replacement} instead")
        if isinstance(part, RANDOM) and getattr(part, "p", 1.0) > 0:
            raise Problem(f"{where} draws random numbers that no seed reaches: leave it out")
        if any(nn.parameter.is_lazy(p) for p in part.parameters(recurse=False)):
            raise Problem(f"{where} has no shape yet: give it an input size")
    for name, tensor in tensors_of(module).items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype is torch.complex128:
            raise Problem(f"model: '{name}' cannot be saved: use a plain dense tensor instead")
    layout = Layout.of(module)
    if not layout.size:
        raise Problem("model: the module has no trainable parameter")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise Problem(f"model: parameter '{name}' must be float32, got {parameter.dtype}")
    _check_behaviour(module, shape, outputs)


def trial_examples(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Draw three times three examples: numbers from 0 to 1, which every module must take, and larger ones."""
    generator = torch.Generator().manual_seed(0)
    small = torch.rand(3, *shape, generator=generator)
    return small, 30 * torch.randn(3, *shape, generator=generator), 1000 * small - 300


def _others_swapped(x: Tensor, kept: int) -> Tensor:
    """Return a batch with the same example at `kept` and different ones elsewhere."""
    swapped = 1 - x
    swapped[kept] = x[kept]
    return swapped


def _check_behaviour(module: nn.Module, shape: tuple[int, ...], outputs: int) -> None:
    """Try the module on made-up examples, small and large, and swap the others of a batch for other ones.

    The batch keeps its shape: in another shape a product may be rounded in another way, and a module that
    makes large differences of small ones (a cosine of large numbers) would look as if it mixed examples.
    """
    buffers = {k: b.clone() for k, b in module.named_buffers()}
    examples = trial_examples(shape)
    small = examples[0]
    for x in examples:
        try:
            with torch.no_grad():
                together = module(x)
                alone = torch.cat([module(_others_swapped(x, i))[i : i + 1] for i in range(3)])
                module(x[:1])  # a batch of one must be possible
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if x is not small:  # large values may well be out of a table's range
                continue
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Problem(f"model: the module does not take examples of shape {shape}: {said}") from error
        if not isinstance(together, Tensor) or tuple(together.shape) != (3, outputs):
            raise Problem(
                f"model: the module must return {outputs} number(s) per example, so shape (3, {outputs}) for"
                f" three examples, got {tuple(getattr(together, 'shape', ()))}"
            )
        size = float(together.abs().max())
        if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * max(1.0, size), equal_nan=True):
            raise Problem(
                "model: the module mixes examples of a batch (its output for one depends on the"
                " others): normalise within each example, with GroupNorm or LayerNorm"
            )
    if any(not torch.equal(b, buffers[k]) for k, b in module.named_buffers()):
        raise Problem("model: the module changes its buffers in forward: use a stateless layer")
    parameters = {k: p.detach().unsqueeze(0) for k, p in module.named_parameters()}
    tied = tied_names(module)

    def one(own: dict[str, Tensor], example: Tensor) -> Any:
        return call(module, own, example.unsqueeze(0), tied)

    try:
        vmap(vmap(one, (None, 0)))(parameters, small.unsqueeze(0))
    except RuntimeError as error:
        raise Problem(
            "model: a layer cannot run for many silos at once (torch.func.vmap says:"
            f" {str(error).splitlines()[0]})"
        ) from error
