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
from .cohort.duals import Asked, solve_apart
from .cohort.fisher import fisher as cohort_fisher
from .cohort.in_turn import solve_in_turn
from .cohort.select import select as cohort_select
from .doors import DUAL, DUAL_UNPROVEN, DUAL_WHOLE
from .errors import Refused
from .method import PerRun, per_run
from .streams import Streams

FISHER = "what 'fisher' gives is raw: under the unit 'example' it has no sound release"
DUAL_AT_HOME = "dual coordinates are noised in the silos: under the unit 'silo' they have no sound release"


CERTIFIES_NOTHING = (
    "the noise of the paper on dual coordinates certifies nothing: only for silos without a budget"
    " (budgets = 'none', or epsilon inf)"
)


def dual_door(whole: bool, unproven: object) -> str:
    """Name the door of a move of duals."""
    return DUAL_UNPROVEN if unproven is not None else DUAL_WHOLE if whole else DUAL


class Oracle(ABC):
    """What a method may ask of the examples of its silos in one round.

    `round` is the number of the round, from 0, of `rounds`: public facts.
    """

    round: int
    rounds: int

    @abstractmethod
    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
        imitate: Tensor | None = None,
    ) -> Tensor:
        """Train from `start` for the silo's local work and give the new vectors `[runs, silos, P]`.

        `toward` and `strength` add a pull to each step: `strength * (w - toward)`; a strength may differ
        from number to number. With `imitate` in its place the model also imitates what these vectors
        predict: `strength` times the divergence is in the loss of each example, so it is clipped with it.
        `home=True` trains without noise: what comes out is raw, and must stay at home.
        """

    @abstractmethod
    def fisher(self, vectors: Tensor) -> Tensor:
        """Give how much each number of vectors matters to each silo's examples: `[runs, silos, P]`.

        The mean of squared gradients. It is raw, so it is refused under the unit 'example'.
        """

    @abstractmethod
    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Choose for each silo the candidate `[runs, candidates, P]` that fits its examples best.

        A private choice: the numbers of errors (losses above 1 count as 1) are compared with noise
        added. `share` is what all choices of the training may take of epsilon. Gives the places of
        the chosen ones, `[runs, silos]`.
        """

    @abstractmethod
    def solve_dual(
        self,
        start: Tensor,
        duals: Tensor,
        *,
        stiffness: Tensor,
        xi: PerRun = 1.0,
        whole: bool = False,
        unproven: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Move duals `[runs, silos, ...]`, one an example, at the model `start`; give what that adds to X a.

        Begin with `Start.duals`. `stiffness` `[runs, silos, 1]` is what a unit of that sum moves the model
        by, `xi` the share of a move that is made. What is given beside the vectors `[runs, silos, P]` is
        sealed: a method keeps it and gives it back to this door, and cannot look into it. Each example's
        move is clipped and sums are noised; with `whole` duals move one after the other, and the upload is
        clipped as one and noised for all that the silo has. Needs a linear model. `unproven` is the noise
        of a paper in place of ours, `[runs, silos, 1]` each: only for silos without a budget.
        """


@dataclass
class CohortOracle(Oracle):
    """The doors of a cohort in training; a call that the plan does not have is refused.

    `at_home` under the unit 'silo', where silos train without noise and only merges are protected. `steps`
    says how many steps each silo takes in the round, `[runs, silos]`; None: those of its work.
    """

    cohort: Cohort
    streams: Streams
    round: int
    planned: tuple[str, ...]
    rounds: int = 1
    present: Tensor | None = None
    at_home: bool = False
    steps: Tensor | None = None
    made: list[str] = field(default_factory=list)

    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
        imitate: Tensor | None = None,
    ) -> Tensor:
        """Train by (DP-)SGD."""
        if home and not self.at_home:
            raise Refused("training without noise at home is not sound under the unit 'example'")
        self._count("home" if home else "descend")
        shape = (self.cohort.runs, len(self.cohort.work), start.shape[-1])
        if toward is not None and imitate is not None:
            raise Refused("'descend' takes a target to be pulled toward or one to imitate, not both")
        pull = None if toward is None and imitate is None else per_run(strength).to(start.device)
        return cohort_descend(
            self.cohort,
            start.expand(shape),
            self.streams,
            self.round,
            len(self.made) - 1,
            toward,
            pull,
            self.present,
            imitate,
            self.steps,
        )

    def fisher(self, vectors: Tensor) -> Tensor:
        """Add up squared gradients."""
        if not self.at_home:
            raise Refused(FISHER)
        self._count("fisher")
        shape = (self.cohort.runs, len(self.cohort.work), vectors.shape[-1])
        return cohort_fisher(self.cohort, vectors.expand(shape), self.present)

    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Choose by noisy numbers of errors."""
        if self.at_home:
            raise Refused("what a silo chooses is raw under the unit 'silo', where it has no sound release")
        self._count(f"select {share:g}")
        return cohort_select(
            self.cohort, candidates, self.streams, self.round, len(self.made) - 1, self.present
        )

    def solve_dual(
        self,
        start: Tensor,
        duals: Tensor,
        *,
        stiffness: Tensor,
        xi: PerRun = 1.0,
        whole: bool = False,
        unproven: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Move duals."""
        if self.at_home:
            raise Refused(DUAL_AT_HOME)
        if unproven is not None and not bool(self.cohort.settings.clip.isinf().all()):
            raise Refused(CERTIFIES_NOTHING)
        self._count(dual_door(whole, unproven))
        shape = (self.cohort.runs, len(self.cohort.work))
        shares = per_run(xi).to(start.device).reshape(-1, 1).expand(shape)
        asked = Asked(
            start.expand(*shape, start.shape[-1]),
            duals,
            stiffness.squeeze(-1).expand(shape),
            shares,
            self.present,
            self.steps,
            None if unproven is None else (unproven[0].expand(*shape, 1), unproven[1].expand(*shape, 1)),
        )
        solve = solve_in_turn if whole or unproven is not None else solve_apart
        return solve(self.cohort, asked, self.streams, self.round, len(self.made) - 1)

    def _count(self, door: str) -> None:
        self.made.append(door)
        if tuple(self.made) != self.planned[: len(self.made)]:
            raise Refused(
                f"round {self.round}: the method asked for '{door}' as call {len(self.made)}, which the plan"
                f" does not have ({', '.join(self.planned) or 'no call'}): which doors are called may depend"
                " on public facts and the round only"
            )
