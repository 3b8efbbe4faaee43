"""A module's tensors: the trainable ones in one flat vector, and all of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call


@dataclass(frozen=True)
class Layout:
    """How a module's trainable parameters lie in one flat vector of length `size`."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Read the layout off a module."""
        trained = {k: p for k, p in module.named_parameters() if p.requires_grad}
        return cls(tuple(trained), tuple(p.shape for p in trained.values()))

    @cached_property
    def lengths(self) -> list[int]:
        """Numbers in each parameter."""
        return [shape.numel() for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        """Length of the vector."""
        return sum(self.lengths)

    def unflatten(self, vectors: Tensor) -> dict[str, Tensor]:
        """Cut vectors `[..., size]` into named parameters `[..., *shape]`."""
        pieces = torch.split(vectors, self.lengths, dim=-1)
        return {
            name: piece.unflatten(-1, shape) if shape else piece.squeeze(-1)
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Lay named parameters `[..., *shape]` end to end: `[..., size]`."""
        pieces = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            value = parameters[name]
            lead = value.shape[: value.dim() - len(shape)]
            pieces.append(value.reshape(*lead, shape.numel()))
        return torch.cat(pieces, dim=-1)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer, each once, by its first name.

    Unlike `state_dict` this includes buffers that are not persistent: a forward pass reads them too.
    """
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def tied_names(module: nn.Module) -> dict[str, str]:
    """Return the further names of tensors that have several, each with the first name of its tensor.

    A module that is used under two names counts once: its tensors are not tied, they are the same.
    """
    first = {id(tensor): name for name, tensor in tensors_of(module).items()}
    names = {}
    for prefix, part in module.named_modules():
        for key, tensor in (*part._parameters.items(), *part._buffers.items()):
            name = f"{prefix}.{key}" if prefix else key
            if tensor is not None and first[id(tensor)] != name:
                names[name] = first[id(tensor)]
    return names


def call(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor, tied: Mapping[str, str]) -> Tensor:
    """Return a module's outputs with other parameters; `tied` is what `tied_names` returns.

    torch would find ties by itself, but leaves a module changed that is used under two names.
    """
    further = {name: parameters[first] for name, first in tied.items() if first in parameters}
    output: Tensor = functional_call(module, {**parameters, **further}, (x,), tie_weights=False)
    return output


def fill(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Replace a module's tensors by values of the same shape, named as in `tensors_of`.

    Tied tensors stay tied. Different tensors that shared memory get their own.
    """
    for name, tensor in tensors_of(module).items():
        tensor.data = values[name].detach().clone(memory_format=torch.contiguous_format)
