"""What is recorded while a training runs: its checkpoint, and its rows in the ledgers.

Between two checkpoints lies a block of rounds. The block is reserved in every ledger before its first round.
After its last round the checkpoint is written; then the block is committed, together with the reservation of
the next one. A training that is killed at any moment resumes from its checkpoint, and what was reserved stays
charged. A training that is asked to stop finishes its round and writes its checkpoint, and the ledgers are
given back the rounds that did not happen.
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
from .claims import claims_of
from .interrupts import InterruptAfterRound
from .meter import Meter

BLOCK_SECONDS = 30.0


@dataclass
class Pace:
    """How many seconds a call of a door takes, measured in this training or an earlier one."""

    seconds_per_call: float | None = None


@dataclass(frozen=True)
class Charging:
    """How the runs of a training are claimed in silos' ledgers: one claim each, or one for all `together`."""

    claims: Callable[[str, Plan, int], list[Claim]] = claims_of
    together: bool = False


@dataclass(frozen=True)
class Session:
    """How a training is recorded: without a path there is no checkpoint, without a meter no ledger.

    `key` identifies the training: a checkpoint with another key is refused. `every` is the number of rounds
    in a block; with None a block takes about half a minute. With `partial`, a silo whose budget does not
    cover all rounds takes part in those that it covers. `stopping` knows whether the training was asked to
    stop.
    """

    path: Path | None = None
    key: str = ""
    meter: Meter | None = None
    every: int | None = None
    charging: Charging = field(default_factory=Charging)
    partial: bool = False
    stopping: InterruptAfterRound | None = None
    pace: Pace = field(default_factory=Pace)

    def begin(self, label: str, plan: Plan) -> OpenSession:
        """Return an open session whose runs are claimed in every ledger, or resumed from the checkpoint."""
        checkpoint = load(self.path, self.key) if self.path is not None else None
        opened = OpenSession(self, plan, Blocks.of(plan, self.every, self.pace), checkpoint)
        opened.claim(label)
        return opened

    def finish(self) -> None:
        """Remove the checkpoint of a training whose results are saved."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@dataclass
class Blocks:
    """Where blocks of rounds begin and end: after `every` rounds or, if it is None, by the clock."""

    rounds: int
    calls_per_round: float
    every: int | None
    pace: Pace
    first: int = 0
    last: int = 0
    measured: bool = False
    started: float = 0.0

    @classmethod
    def of(cls, plan: Plan, every: int | None, pace: Pace) -> Blocks:
        """Return the blocks of a planned training."""
        rounds = len(plan.counts.calls)
        calls = sum(map(len, plan.counts.calls))
        return cls(rounds, max(1.0, calls / rounds) * len(plan.silos), every, pace)

    def start(self, number: int, at_least: int = 0) -> None:
        """Begin a block at round `number` that ends no earlier than round `at_least`."""
        self.first, self.started = number, time.perf_counter()
        self.last = min(self.rounds, max(number + self._length(), at_least))

    def measure(self, done: int) -> None:
        """Measure how long a call takes, from the rounds of the block that are done."""
        if done > self.first:
            took = time.perf_counter() - self.started
            self.pace.seconds_per_call = took / (done - self.first) / self.calls_per_round
            self.measured = True

    def _length(self) -> int:
        if self.every is not None:
            return self.every
        known = self.pace.seconds_per_call
        per_round = math.inf if known is None else known * self.calls_per_round
        if self.measured:
            return max(1, int(BLOCK_SECONDS / max(per_round, 1e-9)))
        short = per_round * self.rounds < BLOCK_SECONDS / 3
        return self.rounds if short else max(1, self.rounds // 20)


@dataclass
class OpenSession:
    """The session of a training that has begun; `checkpoint` is what it resumes from, if anything."""

    session: Session
    plan: Plan
    blocks: Blocks
    checkpoint: Checkpoint | None
    repeated_until: int = 0
    uncommitted: str | None = None  # the digest of a block that is done but not yet committed

    def claim(self, label: str) -> None:
        """Claim the runs in every ledger or, from a checkpoint, resume its claims and repeat what must be."""
        meter, point = self.session.meter, self.checkpoint
        done = 0 if point is None else point.state.round
        self.blocks.first, self.blocks.last, self.blocks.started = done, done, time.perf_counter()
        if meter is None:
            return
        claims = [self.session.charging.claims(label, self.plan, k) for k in range(len(meter.ledgers))]
        if point is None and meter.waiting:
            meter.resume(claims, meter.waiting)
        elif point is None:
            meter.claim(claims, self.session.partial)
        else:
            meter.resume(claims, point.claims)
            meter.catch_up(done, self._digest_of(point.state), self.blocks.rounds)
            self.repeated_until = meter.repeat(done)

    def before(self, number: int) -> list[int]:
        """Reserve a block if one begins; return the indices of the silos that may take part in the round."""
        meter = self.session.meter
        if number >= self.blocks.last:
            self.blocks.start(number, self.repeated_until)
            if meter is not None:
                self._check_enough(meter, number)
                meter.reserve(number, self.blocks.last, self.uncommitted)
            self.uncommitted = None
        if meter is None:
            return list(range(len(self.plan.silos[0])))
        return self._check_enough(meter, number)

    def _check_enough(self, meter: Meter, number: int) -> list[int]:
        """Return the silos that may take part in a round; raise `Spent` if these are too few."""
        present, merge = meter.present(number), self.plan.merge
        if len(present) >= max(1, 0 if merge is None else merge.least):
            return present
        if self.uncommitted is not None:
            meter.commit(self.uncommitted)
            self.uncommitted = None
        who = "too few silos" if present else "no silo"
        why = next(iter(meter.left.values()), "their budgets are spent")
        again = "run the same again" if meter.may_resume else "start over in another folder (out)"
        raise Spent(
            f"round {number}: {who} can continue ({why}): raise the budgets (`coterie ledger budget`,"
            f" or set_budget in Python), then {again}"
        )

    def after(self, state: State, history: History) -> None:
        """Write the checkpoint if a block ends; commit the last block now, any other one with the next."""
        session, blocks = self.session, self.blocks
        stopping = session.path is not None and session.stopping is not None and session.stopping.asked()
        if state.round != blocks.last and not (stopping and state.round > blocks.first):
            return
        self._keep(state, history, stopping)
        if stopping and state.round < blocks.rounds:
            raise KeyboardInterrupt

    def end_early(self, state: State, history: History) -> None:
        """Write a checkpoint within a block, and commit it, because the caller failed after a round."""
        if self.session.path is not None and self.blocks.first < state.round < self.blocks.last:
            self._keep(state, history, stopping=True)

    def _keep(self, state: State, history: History, stopping: bool) -> None:
        session, blocks = self.session, self.blocks
        blocks.measure(state.round)
        if session.path is not None:
            claims = [] if session.meter is None else session.meter.claims
            save(session.path, session.key, Checkpoint(state, history, claims))
        if session.meter is not None and state.round > blocks.first:
            self.uncommitted = self._digest_of(state)
            if stopping or state.round == blocks.rounds:
                session.meter.commit(self.uncommitted, state.round)

    def _digest_of(self, state: State) -> str:
        # If doors add no noise, what silos keep at home is raw, so the digest must not depend on it.
        public = state if self.plan.unit.noise_in_doors else State(state.round, state.shared, None)
        return digest_of(public, self.plan.counts.sealed)

    def spent(self) -> list[list[tuple[float, float]]] | None:
        """Return what each silo's ledger charged for each run; runs charged together share one amount."""
        meter, runs = self.session.meter, len(self.plan.silos)
        if meter is None:
            return None
        charged = [meter.charged(k) for k in range(len(meter.ledgers))]
        return [each[:1] * runs for each in charged] if self.session.charging.together else charged
