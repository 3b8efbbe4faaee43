"""The doors: the only way from a method to examples.

A method never sees a batch, a gradient, a clip or a noise multiplier. It asks, and what
it gets has already been sampled, clipped, noised and counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from torch import Tensor

from .cohort.descend import Cohort
from .cohort.descend import descend as cohort_descend
from .errors import Refused
from .method import PerRun, per_run
from .streams import Streams


class Oracle(ABC):
    """What a method may ask of the examples of its silos in one round.

    `round` is the number of the round, from 0: a public fact.
    """

    round: int

    @abstractmethod
    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
    ) -> Tensor:
        """Train from `start` for the silo's local work and give the new vectors `[runs, silos, P]`.

        `toward` and `strength` add a pull to each step: `strength * (w - toward)`.
        `home=True` trains without noise: what comes out is raw, and must stay at home.
        """


@dataclass
class CohortOracle(Oracle):
    """The doors of a cohort in training; a call that the plan does not have is refused."""

    cohort: Cohort
    streams: Streams
    round: int
    planned: tuple[str, ...]
    made: list[str] = field(default_factory=list)

    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
    ) -> Tensor:
        """Train by (DP-)SGD."""
        if home:
            raise Refused("training without noise at home is not sound under the unit 'example'")
        self._count("descend")
        shape = (self.cohort.runs, len(self.cohort.work), start.shape[-1])
        pull = None if toward is None else per_run(strength).to(start.device)
        return cohort_descend(
            self.cohort, start.expand(shape), self.streams, self.round, len(self.made) - 1, toward, pull
        )

    def _count(self, door: str) -> None:
        self.made.append(door)
        if tuple(self.made) != self.planned[: len(self.made)]:
            raise Refused(
                f"round {self.round}: the method asked for '{door}' as call {len(self.made)}, which the plan"
                f" does not have ({', '.join(self.planned) or 'no call'}): which doors are called may depend"
                " on public facts and the round only"
            )
