"""The start of a training: initial vectors and public facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._seeds import seed_for
from ..protocol.roster import Roster
from ..tasks.task import Task

APART = 0.001


@dataclass(frozen=True)
class SeededStart:
    """The start of a training: an initial vector for each run's seed, and public facts."""

    task: Task
    seeds: Sequence[int]
    roster: Roster
    rounds: int
    device: str = "cpu"

    @property
    def layers(self) -> tuple[int, ...]:
        """The lengths of the parameters, in the order of the vector."""
        return tuple(self.task.layout.lengths)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in the order of the vector."""
        return tuple(self.task.layout.names)

    def initial(self, index: int = 0, apart: bool = False) -> Tensor:
        """Return the initial vector of every run, `[runs, 1, P]`; if `apart`, another for each index.

        A model whose start does not depend on the seed, such as a linear one, is then moved a little.
        """
        seeds = [seed_for(seed, f"initial/{index}") for seed in self.seeds]
        vectors = [self.task.initial(seed) for seed in seeds]
        if apart and torch.equal(vectors[0], self.task.initial(seed_for(seeds[0], "another"))):
            vectors = [vector + _small(vector, seed) for vector, seed in zip(vectors, seeds, strict=True)]
        return torch.stack(vectors).unsqueeze(1).to(self.device)

    def duals(self, silos: int) -> Tensor:
        """Return a zero dual for each example and output: `[runs, silos, longest, outputs]`."""
        longest = int(self.roster.sizes.max()) * self.roster.each
        return torch.zeros(len(self.seeds), silos, longest, self.task.outputs, device=self.device)


def _small(vector: Tensor, seed: int) -> Tensor:
    """Return small random numbers."""
    return APART * torch.randn(vector.shape, generator=torch.Generator().manual_seed(seed % 2**63))
