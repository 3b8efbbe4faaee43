"""One step of many pairs of run and silo."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..tasks.layout import Layout


@dataclass(frozen=True, eq=False)
class StepRule:
    """How pairs step, all `[pairs, ...]`: by `lr`, from sums over `expected` examples, with a pull or none.

    A pull is a target `[pairs, P]` and a strength.
    """

    lr: Tensor
    expected: Tensor
    pull: tuple[Tensor, Tensor] | None = None

    def at(self, places: Tensor) -> StepRule:
        """Give the rule of some of the pairs."""
        pull = None if self.pull is None else (self.pull[0][places], self.pull[1][places])
        return StepRule(self.lr[places], self.expected[places], pull)

    def moved(self, vectors: Tensor, sums: Tensor) -> Tensor:
        """Take a step against the mean of the gradients and the pull, reading each vector once."""
        return torch.addcmul(self._pulled(vectors), sums.float(), -self.lr / self.expected)

    def moved_by_parts(self, vectors: Tensor, layout: Layout, sums: dict[str, Tensor]) -> Tensor:
        """Take the same step from sums by parameter, writing over vectors; without sums, only the pull."""
        vectors, rate = self._pulled(vectors), -self.lr / self.expected
        for name, value in layout.unflatten(vectors).items() if sums else ():
            value.addcmul_(sums[name].float(), rate.reshape(-1, *[1] * (value.dim() - 1)))
        return vectors

    def _pulled(self, vectors: Tensor) -> Tensor:
        return vectors if self.pull is None else vectors.lerp(self.pull[0], self.lr * self.pull[1])
