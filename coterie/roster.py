"""The public facts about the silos of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Roster:
    """Names, declared sizes `[silos]` and budgets (epsilon `[runs, silos]`) of the silos."""

    names: tuple[str, ...]
    sizes: Tensor
    epsilon: Tensor

    def __len__(self) -> int:
        return len(self.names)

    def mean(self, uploads: Tensor) -> Tensor:
        """Give the mean over silos, weighted by their declared sizes: `[runs, 1, ...]`."""
        share = (self.sizes / self.sizes.sum()).to(uploads.dtype)
        return (uploads * share.reshape(1, -1, *[1] * (uploads.dim() - 2))).sum(1, keepdim=True)

    def pick(self, order: list[int]) -> Roster:
        """Give the roster of some silos, in the order named."""
        index = torch.tensor(order)
        return Roster(tuple(self.names[k] for k in order), self.sizes[index], self.epsilon[:, index])
