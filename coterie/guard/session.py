"""What is kept while a training runs: its checkpoint, and its rows in the ledgers.

Between two checkpoints lies a block of rounds. It is reserved in every ledger before its first
round; after its last round the checkpoint is written, then the block is committed, together with
the reservation of the next one. Killed at any instant, a training goes on from its checkpoint; what
was reserved stays charged. Asked to stop, it ends its round and writes its checkpoint, and the rounds
that were not done are given back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..planning.plan import Plan
from ..privacy.ledger.claim import Claim
from ..privacy.ledger.filters import Spent
from ..protocol.state import State
from .checkpoint import Checkpoint, History, digest_of, load, save
from .claims import run_plans
from .interrupts import after_the_round
from .meter import Meter

SECONDS = 30.0


@dataclass
class Keeper:
    """Keeps a training; without a path there is no checkpoint, without a meter no ledger.

    `every` is the number of rounds in a block; None lets a block take about half a minute. `asks` says
    what a training asks of a silo's data set. With `partial` a silo that cannot pay for all rounds takes
    part in those that it can pay for. `pace` is how many seconds a door of a run takes, here or in another
    training.
    """

    path: Path | None = None
    key: str = ""
    meter: Meter | None = None
    every: int | None = None
    asks: Callable[[str, Plan, int], list[Claim]] = run_plans
    partial: bool = False
    stopping: after_the_round | None = None
    pace: float | None = None
    _total: int = 0
    _doors: float = 1.0
    _silos: int = 0
    _until: int = 0
    _block: tuple[int, float] = (0, 0.0)
    _measured: bool = False
    _claims: list[list[int]] = field(default_factory=list)
    _sealed: tuple[bool, ...] = ()
    _whole: bool = False
    _digest: str | None = None
    _again: int = 0

    def begin(self, label: str, plan: Plan, silos: int) -> Checkpoint | None:
        """Give the checkpoint to go on from; else claim the runs in every ledger."""
        self._total, self._silos = len(plan.counts.calls), silos
        calls = sum(map(len, plan.counts.calls))
        self._doors = max(1.0, calls / self._total) * len(plan.silos)  # of a round, in all runs
        self._sealed, self._whole = plan.counts.sealed, plan.merge is not None
        point = load(self.path, self.key) if self.path is not None else None
        if self.meter is not None:
            asked = [self.asks(label, plan, k) for k in range(silos)]
            if point is not None:
                self.meter.go_on(asked, point.claims)
                self.meter.catch_up(point.state.round, self._digest_of(point.state), self._total)
                self._again = self.meter.repeat(point.state.round)
            else:
                self.meter.claim(asked, self.partial)
            self._claims = self.meter.claims
        self._until = point.state.round if point is not None else 0
        self._block = self._until, time.perf_counter()
        return point

    def before(self, number: int) -> list[int]:
        """Reserve a block where one begins; give the places of the silos that take part in the round."""
        if number >= self._until:
            self._until = min(self._total, max(number + self._length(), self._again))
            self._block = number, time.perf_counter()
            if self.meter is not None:
                self.meter.reserve(number, self._until, self._digest)
            self._digest = None
        if self.meter is None:
            return list(range(self._silos))
        present = self.meter.present(number)
        if not present:
            why = next(iter(self.meter.left.values()), "their budgets are spent")
            again = "give the same command again" if self.meter.may_go_on else "begin anew with another --out"
            raise Spent(
                f"round {number}: no silo can go on ({why}): raise the budgets with `coterie ledger budget`,"
                f" then {again}"
            )
        return present

    def after(self, state: State, history: History) -> None:
        """Write the checkpoint where a block ends; the block is committed with the next, or the last now."""
        began, when = self._block
        stop = self.path is not None and self.stopping is not None and self.stopping.asked()
        if state.round != self._until and not (stop and state.round > began):
            return
        if state.round > began:
            self.pace = (time.perf_counter() - when) / (state.round - began) / self._doors
            self._measured = True
        if self.path is not None:
            save(self.path, self.key, Checkpoint(state, history, self._claims))
        if self.meter is not None and state.round > began:
            self._digest = self._digest_of(state)
            if stop or state.round == self._total:
                self.meter.commit(self._digest, state.round)
        if stop and state.round < self._total:
            raise KeyboardInterrupt

    def _digest_of(self, state: State) -> str:
        told = State(state.round, state.shared, None) if self._whole else state  # what is at home is raw
        return digest_of(told, self._sealed)

    def spent(self, runs: int) -> list[list[tuple[float, float]]] | None:
        """Give what each silo's ledger charged for each run; the same where all are charged as one."""
        if self.meter is None:
            return None
        charged = [self.meter.charged(k) for k in range(self._silos)]
        return charged if self.asks is run_plans else [found[:1] * runs for found in charged]

    def _length(self) -> int:
        if self.every is not None:
            return self.every
        each = math.inf if self.pace is None else self.pace * self._doors
        if self._measured:
            return max(1, int(SECONDS / max(each, 1e-9)))
        return self._total if each * self._total < SECONDS / 3 else max(1, self._total // 20)

    def finish(self) -> None:
        """Remove the checkpoint of a training whose results are saved."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
