"""How a module's trainable parameters lie in one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn


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
