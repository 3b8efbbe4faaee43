"""One gradient step of many (run, silo) pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..tasks.layout import Layout


@dataclass(frozen=True, eq=False)
class StepRule:
    """How each pair steps; all tensors are `[pairs, ...]`.

    A step divides a sum of gradients by the `expected` batch size and multiplies it by `lr`. The optional
    `pull` is a target `[pairs, P]` and a strength.
    """

    lr: Tensor
    expected: Tensor
    pull: tuple[Tensor, Tensor] | None = None

    def at(self, places: Tensor) -> StepRule:
        """Return the rule for some of the pairs."""
        pull = None if self.pull is None else (self.pull[0][places], self.pull[1][places])
        return StepRule(self.lr[places], self.expected[places], pull)

    def moved(self, vectors: Tensor, sums: Tensor) -> Tensor:
        """Return the vectors after one step along the mean gradient and the pull, reading each once."""
        return torch.addcmul(self._pulled(vectors), sums.float(), -self.lr / self.expected)

    def moved_by_parts(self, vectors: Tensor, layout: Layout, sums: dict[str, Tensor]) -> Tensor:
        """Take the same step from sums by parameter name, overwriting `vectors`.

        If `sums` is empty, only the pull acts.
        """
        vectors, rate = self._pulled(vectors), -self.lr / self.expected
        for name, value in layout.unflatten(vectors).items() if sums else ():
            value.addcmul_(sums[name].float(), rate.reshape(-1, *[1] * (value.dim() - 1)))
        return vectors

    def _pulled(self, vectors: Tensor) -> Tensor:
        return vectors if self.pull is None else vectors.lerp(self.pull[0], self.lr * self.pull[1])
