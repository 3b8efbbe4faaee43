"""Metered training: every round is charged to the silos' ledgers before it happens."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .._threads import in_threads
from ..data.federation import Federation
from ..errors import Problem
from ..planning.accounting import Account
from ..privacy.adversaries import ADVERSARIES
from ..privacy.ledger.claim import Claim
from ..privacy.ledger.custody import Custody
from ..privacy.ledger.entries import LedgerEntry, LedgerState, runs_of
from ..privacy.ledger.filters import Spent, charge, repeated
from ..privacy.ledger.ledger import GrantedClaim, Ledger
from .claims import certify
from .ledgers import open_for_run
from .secret_streams import EntropyStreams, secret_of


def make_meter(
    folder: Path,
    federation: Federation,
    budgets: Sequence[tuple[float, float] | None],
    unit: str = "example",
    custody: Custody | None = None,
) -> Meter:
    """Return the meter of a training; in a folder without ledgers, `budgets` are those of new ones."""
    ledgers = open_for_run(folder, federation, budgets, unit, custody)
    secrets = in_threads(lambda ledger: secret_of(folder, ledger.identity), ledgers)
    return Meter(federation.names, ledgers, EntropyStreams(dict(zip(federation.names, secrets, strict=True))))


def totals_of(state: LedgerState, unit: str) -> dict[str, dict[str, float]]:
    """Return the total of a ledger's runs against each adversary, infinite where nothing protects."""
    totals = {name: state.total(unit, name) for name in ADVERSARIES}
    return {name: {"epsilon": e, "delta": d} for name, (e, d) in totals.items()}


@dataclass
class Meter:
    """The ledgers of a training's silos, the claims of its runs, and how many rounds each silo may train.

    `claims[k][run]` is the row of a run in silo k's ledger. `left` says why a silo left early, by its name.
    `held[k]` is a run that was charged in full beforehand, if there is one. `waiting` are the claims of a
    training that has not begun. `may_resume` says that a silo left only because its budget must be raised
    first.
    """

    names: tuple[str, ...]
    ledgers: list[Ledger]
    streams: EntropyStreams
    claims: list[list[int]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    waiting: list[list[int]] = field(default_factory=list)
    may_resume: bool = False
    _open: dict[int, int] = field(default_factory=dict)

    def another(self) -> Meter:
        """Return a meter for another training with the same ledgers."""
        return Meter(self.names, self.ledgers, EntropyStreams(self.streams.secrets))

    def hold(self, asked: Sequence[Claim]) -> None:
        """Charge one run to every silo in full, and reserve it, before anything about it is decided."""
        self.claim([[plan] for plan in asked], partial=False, whole=True)
        self.held, self.claims, self.rounds = [runs[0] for runs in self.claims], [], []

    def take_held(self, asked: Sequence[Claim], held: list[int]) -> None:
        """Resume a run that was charged before; raise `Problem` unless it is the one asked for."""
        self.resume([[plan] for plan in asked], [[run] for run in held])
        for k, (ledger, run) in enumerate(zip(self.ledgers, held, strict=True)):
            if not ledger.state().reserved(run):
                raise Problem(f"silo '{self.names[k]}': row {run} of its ledger was not reserved: start over")
        self.held, self.claims, self.rounds = held, [], []

    def entropy(self) -> bytes:
        """Return 32 bytes derived from the silos' secrets and the held rows."""
        digest = hashlib.blake2b(digest_size=32)
        for name, ledger, run in zip(self.names, self.ledgers, self.held, strict=True):
            row = ledger.entries()[run - 1].hash.encode()
            digest.update(hashlib.blake2b(row, key=self.streams.secrets[name]).digest())
        return digest.digest()

    def release_held(self, digest: str) -> None:
        """Record that the held run happened."""
        for ledger, run in zip(self.ledgers, self.held, strict=True):
            state = ledger.state()
            rows = [seq for seq, row in state.reservations.items() if run in runs_of(row)]
            ledger.commit_all([seq for seq in rows if seq not in state.committed], digest)

    def claim(self, asked: Sequence[Sequence[Claim]], partial: bool, whole: bool = False) -> None:
        """Charge every run `asked[k]` to every silo k, or none to any.

        With `partial`, a silo whose budget does not cover all rounds takes part in those that it covers. With
        `whole`, all rounds are reserved in the same change.
        """
        granted: dict[int, list[GrantedClaim]] = {}
        certify(plan for plans in asked for plan in plans)

        def claim_silo(k: int) -> None:
            try:
                granted[k] = self.ledgers[k].claim_all(asked[k], partial, whole)
            except Problem as problem:
                raise self.refusal(k, problem, len(asked[k])) from None

        try:
            in_threads(claim_silo, range(len(self.ledgers)))
            covered = max(min(claim.rounds for claim in claims) for claims in granted.values())
            if covered < asked[0][0].rounds:
                raise Spent(
                    f"no silo's budget covers more than {covered} of {asked[0][0].rounds} rounds, so the"
                    " training could not finish: use fewer rounds or a smaller epsilon, or raise the budgets"
                    " (`coterie ledger budget`, or set_budget in Python); nothing was charged"
                )
        except BaseException:
            for k, claims in granted.items():
                for claim in claims:
                    with contextlib.suppress(Problem):  # the choice of a sweep stays charged
                        self.ledgers[k].cancel(claim.run)
            raise
        for k, name in enumerate(self.names):
            self.claims.append([claim.run for claim in granted[k]])
            self.rounds.append(min(claim.rounds for claim in granted[k]))
            planned = asked[k][0].rounds
            if self.rounds[k] < planned:
                self.left[name] = f"its budget covers {self.rounds[k]} of {planned} rounds"

    def refusal(self, k: int, problem: Problem, runs: int) -> Problem:
        """Return a problem that names the silo and, for several runs, says that all are refused."""
        more = (
            f"; {runs} runs are asked for, and nothing is trained unless all of them fit (the amount spent"
            " includes the runs before this one: ask for fewer methods, settings or seeds)"
        )
        one = (
            ": use fewer rounds or a smaller epsilon, or raise the budget (`coterie ledger budget`, or"
            " set_budget in Python)"
        )
        next_step = "" if not isinstance(problem, Spent) else more if runs > 1 else one
        return type(problem)(f"silo '{self.names[k]}': {problem}{next_step}")

    def resume(self, asked: Sequence[Sequence[Claim]], claims: list[list[int]]) -> None:
        """Resume the claims of an interrupted training; raise `Problem` unless they are those asked for."""
        self.claims = claims
        for k, (ledger, runs) in enumerate(zip(self.ledgers, claims, strict=True)):
            state = ledger.state()
            for run, plan in zip(runs, asked[k], strict=True):
                if (why := state.why_released(run)) is not None:
                    raise Problem(f"silo '{self.names[k]}': {why}")
                kept = state.claim_of(run) if run in state.runs else None
                same = None if kept is None else replace(kept, epsilon=plan.epsilon, as_example=None)
                if same is None or replace(same, facts=plan.facts) != plan:
                    raise Problem(
                        f"silo '{self.names[k]}': its ledger does not have the run that the checkpoint"
                        " resumes: restore the ledger, or start over in another folder"
                    )
            self.rounds.append(min(int(state.runs[run]["allowed"]) for run in runs))

    def catch_up(self, done: int, digest: str, total: int) -> None:
        """Commit the block before a checkpoint if the training was stopped before doing so.

        If all rounds are done, silos that did not reserve the last one have left.
        """
        self._open = {}
        for k, ledger in enumerate(self.ledgers):
            state = ledger.state()
            blocks = [seq for seq, row in state.reservations.items() if runs_of(row) == self.claims[k]]
            end = min(done, self.rounds[k])
            if blocks and blocks[-1] not in state.committed and state.reservations[blocks[-1]]["last"] == end:
                self._open[k] = blocks[-1]
            paid = max((last for _, last in state.reserved(self.claims[k][0])), default=0)
            if done == total and paid < self.rounds[k]:
                self.rounds[k] = paid
                self.left[self.names[k]] = f"its ledger covered {paid} of {total} rounds"
        self.commit(digest)

    def repeat(self, first: int) -> int:
        """Return the end of the rounds from `first` on that were reserved before and must be repeated.

        They are charged again. Silos whose budgets do not cover them leave. If no silo's budget covers
        them, raise `Spent` and charge nothing.
        """
        ends: list[int] = [first]
        refused: dict[int, Spent] = {}
        for k, ledger in enumerate(self.ledgers):
            state = ledger.state()
            end = max((last for _, last in state.reserved(self.claims[k][0])), default=0)
            ends.append(end)
            if first < end:
                try:
                    state.filter.check_reserve(state, self.claims[k], first, end)
                except Spent as problem:
                    refused[k] = problem
        if refused and len(refused) == sum(first < rounds for rounds in self.rounds):
            k = min(refused)
            raise Spent(
                f"silo '{self.names[k]}': {refused[k]}, and neither do the budgets of the others: raise the"
                " budgets (`coterie ledger budget`, or set_budget in Python), then run the same again;"
                " nothing was charged"
            )
        for k, why in refused.items():
            self._leave(k, first, why)
        return max(ends)

    def _leave(self, k: int, first: int, why: Spent) -> None:
        """Let silo k take part in no round from `first` on."""
        self.rounds[k], self.left[self.names[k]] = first, str(why)
        self.may_resume = self.may_resume or why.resumable

    def present(self, number: int) -> list[int]:
        """Return the indices of the silos that may take part in a round."""
        return [k for k, rounds in enumerate(self.rounds) if number < rounds]

    def reserve(self, first: int, last: int, digest: str | None = None) -> None:
        """Charge rounds to every silo before they happen; a silo whose budget does not cover them leaves.

        With a `digest`, the rounds reserved before are committed in the same transactions.
        """
        before, self._open = {} if digest is None else self._open, {}

        def reserve_silo(k: int) -> LedgerEntry | Spent | None:
            end = min(last, self.rounds[k])
            done = (before[k], str(digest)) if k in before else None
            try:
                if end > first:
                    return self.ledgers[k].reserve_all(self.claims[k], first, end, done)
                problem = None
            except Spent as refusal:
                problem = refusal
            if done is not None:
                self.ledgers[k].commit(*done)
            return problem

        for name in self.names:
            self.streams.end(name)
        for k, row in enumerate(in_threads(reserve_silo, range(len(self.ledgers)))):
            if isinstance(row, Spent):
                self._leave(k, first, row)
            elif row is not None:
                self.streams.begin(self.names[k], row.hash, first, min(last, self.rounds[k]))
                self._open[k] = row.seq

    def commit(self, digest: str, done: int | None = None) -> None:
        """Record that the reserved rounds happened: all of them, or only those before `done`."""
        for name in self.names:
            self.streams.end(name)
        in_threads(lambda k: self.ledgers[k].commit(self._open[k], digest, done), self._open)
        self._open = {}

    def notes(self) -> list[str]:
        """Return a sentence for each silo that left early, and one if rounds were repeated."""
        notes = [f"'{silo}' left early: {why}" for silo, why in self.left.items()]
        states = [ledger.state() for ledger in self.ledgers]
        spans = [state.reserved(runs[0]) for state, runs in zip(states, self.claims, strict=True)]
        twice = sum(bool(repeated(each)) for each in spans)
        if twice:
            notes.append(
                f"the training was stopped, and {twice} silo(s) repeated rounds that had been reserved: these"
                " rounds are charged again, so more is spent than planned"
            )
        return notes

    def charged(self, k: int) -> list[tuple[float, float]]:
        """Return the (epsilon, delta) that silo k's ledger charged for each claim."""
        state = self.ledgers[k].state()
        return [charge(state, run) for run in self.claims[k]]

    def account(self, k: int, run: int) -> Account:
        """Return what a run released of silo k, what it was charged, and the state of its ledger."""
        ledger, row = self.ledgers[k], self.claims[k][run]
        state = ledger.state()
        plan, rounds, head = state.claim_of(row), state.reserved(row), ledger.signed_head
        facts = {
            "file": ledger.path.name,
            "id": state.ledger,
            "sequence": head.number,
            "head": head.hash,
            "budget": dict(zip(("epsilon", "delta"), state.budgets[plan.unit], strict=True)),
            "recovered": state.recoveries,
            "raised": state.raised.get(plan.unit, 0),
            "run": row,
            "rounds": int(state.runs[row]["allowed"]),
            "total": totals_of(state, plan.unit),
            "chosen": self.held[k] if self.held else None,
        }
        if plan.unit != "example":
            facts["as_example"] = totals_of(state, "example")
        events = tuple(event for span in rounds for event in plan.events(*span))
        return Account(events, *charge(state, row), state.budgets[plan.unit][0], rounds, facts)

    def rows(self, run: int) -> list[tuple[str, int]]:
        """Return each silo's ledger, by its id, and the row of a run in it."""
        return [
            (book.state().ledger, runs[run]) for book, runs in zip(self.ledgers, self.claims, strict=True)
        ]

    def close(self) -> None:
        """Close the ledgers."""
        in_threads(Ledger.close, self.ledgers)
