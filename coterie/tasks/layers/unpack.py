"""A module with several inputs takes flat rows while it trains, and gets a dict of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..._inputs import Input, places_of


def unpacked(x: Tensor, inputs: tuple[Input, ...]) -> dict[str, Tensor]:
    """Return the inputs in flat rows `[examples, numbers]` by name; ids are whole numbers."""
    parts = {}
    for each, place in zip(inputs, places_of(inputs).values(), strict=True):
        part = x[..., place]
        part = part.unflatten(-1, each.shape) if each.shape else part.squeeze(-1)
        parts[each.name] = part.to(torch.int64) if each.kind == "ids" else part
    return parts


@dataclass(frozen=True)
class Unpack:
    """A hook that turns the flat rows that a module is given into a dict of its inputs."""

    inputs: tuple[Input, ...]

    def __call__(
        self, module: nn.Module, given: tuple[Tensor | dict[str, Tensor], ...]
    ) -> tuple[object, ...]:
        """Return what the module gets."""
        first, *rest = given
        return (unpacked(first, self.inputs) if isinstance(first, Tensor) else first, *rest)


def pack(module: nn.Module, inputs: tuple[Input, ...]) -> nn.Module:
    """Let a module take flat rows, in place; a module with one input stays as it is."""
    if inputs:
        module.register_forward_pre_hook(Unpack(inputs), prepend=True)
    return module


def unpack(module: nn.Module) -> nn.Module:
    """Let a module take a dict of its inputs again, in place."""
    hooks = module._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, Unpack)]:
        del hooks[key]
    return module
