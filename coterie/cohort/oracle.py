"""The doors of a cohort in training."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..errors import Refused
from ..protocol.doors import DESCEND, DESCEND_AT_HOME, FISHER, Door, select_door, solve_dual_door
from ..protocol.oracle import CERTIFIES_NOTHING, Oracle
from ..protocol.settings import PerRun, per_run
from ..protocol.streams import Streams
from ..protocol.units import EXAMPLE, Unit
from .dp_sgd import Cohort
from .dp_sgd import descend as cohort_descend
from .dual.sampled import DualRequest, solve_apart
from .dual.sdca import solve_in_turn
from .fisher import fisher as cohort_fisher
from .select import select as cohort_select


@dataclass
class CohortOracle(Oracle):
    """The doors of a cohort in training; a call that is not in the plan is refused.

    The `unit` determines which doors are sound. `steps`, `[runs, silos]`, is how many steps each silo takes
    in the round; None means the steps of its work.
    """

    cohort: Cohort
    streams: Streams
    round: int
    planned: tuple[Door, ...]
    rounds: int = 1
    present: Tensor | None = None
    unit: Unit = EXAMPLE
    steps: Tensor | None = None
    made: list[Door] = field(default_factory=list)

    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
        imitate: Tensor | None = None,
    ) -> Tensor:
        """Return the vectors after training by (DP-)SGD."""
        self._open(DESCEND_AT_HOME if home else DESCEND)
        shape = (self.cohort.runs, len(self.cohort.work), start.shape[-1])
        if toward is not None and imitate is not None:
            raise Refused("'descend' takes either a target to be pulled toward or one to imitate, not both")
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
            self.rounds,
        )

    def fisher(self, vectors: Tensor) -> Tensor:
        """Return sums of squared gradients."""
        self._open(FISHER)
        shape = (self.cohort.runs, len(self.cohort.work), vectors.shape[-1])
        return cohort_fisher(self.cohort, vectors.expand(shape), self.present)

    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Return each silo's choice, made by noisy error counts."""
        self._open(select_door(share))
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
        """Move duals; return what the moves add up to, and the new duals."""
        door = solve_dual_door(whole, unproven is not None)
        self.unit.check(door)
        if unproven is not None and not bool(self.cohort.settings.clip.isinf().all()):
            raise Refused(CERTIFIES_NOTHING)
        self._open(door)
        shape = (self.cohort.runs, len(self.cohort.work))
        shares = per_run(xi).to(start.device).reshape(-1, 1).expand(shape)
        request = DualRequest(
            start.expand(*shape, start.shape[-1]),
            duals,
            stiffness.squeeze(-1).expand(shape),
            shares,
            self.present,
            self.steps,
            None if unproven is None else (unproven[0].expand(*shape, 1), unproven[1].expand(*shape, 1)),
        )
        solve = solve_in_turn if whole or unproven is not None else solve_apart
        return solve(self.cohort, request, self.streams, self.round, len(self.made) - 1)

    def _open(self, door: Door) -> None:
        self.unit.check(door)
        self.made.append(door)
        if tuple(self.made) != self.planned[: len(self.made)]:
            planned = ", ".join(map(str, self.planned)) or "no call"
            raise Refused(
                f"round {self.round}: the method called '{door}' as call {len(self.made)}, which is not in"
                f" the plan ({planned}); which doors are called may depend only on public facts and the round"
            )
