"""The examples of all silos as one padded tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.federation import Federation


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples `x` `[silos, longest, ...]` and targets `y` `[silos, longest]` of all silos.

    Row i of silo k is real if i < sizes[k]; the other rows are padding. Features are numbers, or `ids`.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    x: Tensor
    y: Tensor
    scale: float
    ids: bool = False

    def gather(self, silo: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return some rows of some silos; this is where bytes become floats."""
        place = (silo * self.y.shape[1] + row).reshape(-1)
        x = self.x.flatten(0, 1).index_select(0, place).unflatten(0, row.shape)
        if x.dtype != torch.float32 and not self.ids:
            x = x.float()
        if self.scale != 1.0:
            x = x * self.scale
        return x, self.y.flatten().index_select(0, place).unflatten(0, row.shape)

    def numbers(self, silo: Tensor, row: Tensor) -> Tensor:
        """Return the number within its silo of each row that `gather` returns."""
        return row.expand(torch.broadcast_shapes(silo.shape, row.shape))

    def pick(self, places: list[int]) -> Examples:
        """Return the examples of some of the silos."""
        names, sizes = tuple(self.names[k] for k in places), tuple(self.sizes[k] for k in places)
        return Examples(names, sizes, self.x[places], self.y[places], self.scale, self.ids)


def stack(federation: Federation, part: str, device: str = "cpu") -> Examples:
    """Stack the "train" or "test" examples of a federation."""
    prefix = "test_" if part == "test" else ""
    xs = [getattr(silo, f"{prefix}x") for silo in federation.silos]
    ys = [getattr(silo, f"{prefix}y") for silo in federation.silos]
    sizes = tuple(len(y) for y in ys)
    x, y = _pad(xs, sizes).to(device), _pad(ys, sizes).to(device)
    return Examples(federation.names, sizes, x, y, federation.scale, federation.ids)


def _pad(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    padded = parts[0].new_zeros(len(parts), max(sizes), *parts[0].shape[1:])
    for k, part in enumerate(parts):
        padded[k, : len(part)] = part
    return padded
