"""Metered training: ledgers are asked before a round, and noise comes from the system's entropy."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .doors import all_sums
from .errors import Problem
from .federation import Federation
from .plan import Plan, SiloPlan
from .privacy.adversaries import ADVERSARIES, seen_by
from .privacy.events import Event
from .privacy.filters import Spent, charge
from .privacy.ledger import Identity, Ledger, open_ledger
from .privacy.runplan import RunPlan
from .streams import Pair, Refilled


@dataclass
class EntropyStreams:
    """Coins and noise from the operating system's entropy, keyed by a silo's secret and a ledger row.

    Each reservation has a salt of its own, drawn when it is made and kept nowhere: nobody can draw the
    same noise again. The salt seeds numpy's SFC64, which is not a cryptographic generator.
    """

    secrets: dict[str, bytes]
    _salts: dict[str, bytes] = field(default_factory=dict)
    _given: dict[str, set[tuple[int, int, int]]] = field(default_factory=dict)
    _generators: Refilled = field(default_factory=Refilled)

    def begin(self, silo: str, row: str) -> None:
        """Begin a reservation, whose row has this hash."""
        self._salts[silo] = row.encode() + os.urandom(32)
        self._given[silo] = set()

    def generators(self, run: int, silo: str, round_: int, call: int) -> Pair:
        """Give the generators of one call of a door, once."""
        if silo not in self._salts:
            raise Problem(f"round {round_} of '{silo}' was not reserved: it is not answered")
        if (run, round_, call) in self._given[silo]:
            raise Problem(f"round {round_} of '{silo}' was answered before: it is never answered twice")
        self._given[silo].add((run, round_, call))
        key = f"{run}\0{round_}\0{call}\0{silo}\0".encode() + self._salts[silo]
        digest = hashlib.blake2b(key, key=self.secrets[silo], digest_size=48).digest()
        return self._generators.fill((run, silo), digest)

    def merging(self, run: int, silo: str, round_: int) -> np.random.Generator:
        """Refuse: ledgers do not know the unit 'silo' yet."""
        raise Problem("ledgers do not keep the unit 'silo' yet: run it without a ledger")

    def kept(self, silo: str, what: str) -> np.random.Generator:
        """Give noise for one answer: the same whenever it is repeated, another for any other question."""
        digest = hashlib.blake2b(what.encode(), key=self.secrets[silo], digest_size=32).digest()
        return np.random.Generator(np.random.SFC64(int.from_bytes(digest)))


def secret_of(folder: Path, identity: Identity) -> bytes:
    """Read a silo's secret, or make it: a file that only its owner may read."""
    path = folder / f"{identity.fingerprint}.secret"
    if not path.exists():
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(32))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was quicker
            os.link(beside, path)
        beside.unlink()
    secret = path.read_bytes()
    if len(secret) != 32:
        raise Problem(f"secret '{path}' is damaged: restore a copy")
    return secret


def identities(federation: Federation, source: str) -> list[Identity]:
    """Give each silo's identity: the data's name, the silo's, and all its examples, also those for tests."""
    return [Identity(source, silo.name, len(silo.y) + len(silo.test_y)) for silo in federation.silos]


def open_ledgers(
    folder: Path,
    federation: Federation,
    source: str,
    budgets: Sequence[tuple[float, float] | None],
    filter: str = "basic",
) -> list[Ledger]:
    """Open the ledgers of all silos of a federation, making those that are not there and have a budget."""
    pairs = zip(identities(federation, source), budgets, strict=True)
    return [open_ledger(folder, who, budget, filter=filter) for who, budget in pairs]


def make_meter(
    folder: Path, federation: Federation, source: str, budgets: Sequence[tuple[float, float] | None]
) -> Meter:
    """Make the meter of a training; a ledger that is not there yet gets the silo's budget of it."""
    ledgers = open_ledgers(folder, federation, source, budgets)
    secrets = {who.silo: secret_of(folder, who) for who in identities(federation, source)}
    return Meter(federation.names, ledgers, EntropyStreams(secrets))


def run_plans(label: str, plan: Plan, k: int) -> list[RunPlan]:
    """Give what each run of a training asks of silo k's data set."""
    found = []
    for r, run in enumerate(plan.silos):
        silo = run[k]
        here = None if plan.present is None else tuple(plan.present[:, r, k].tolist())
        steps = None if plan.steps is None else tuple(plan.steps[:, r, k].tolist())
        stages = tuple(
            (rounds, _events(silo, doors, made))
            for rounds, doors, made in _doors(plan.counts.calls, here, steps)
        )
        seen = seen_by(silo.bytes_up > 0) if any(events for _, events in stages) else ()
        found.append(RunPlan(label, "example", silo.delta, silo.epsilon, stages, seen))
    return found


def _events(silo: SiloPlan, doors: tuple[str, ...], steps: int | None) -> tuple[Event, ...]:
    """Give what a silo releases in a round in which these doors are opened and so many steps taken."""
    each = silo.work.steps if steps is None else steps
    rate, sums = all_sums([(door, 1, each) for door in doors], silo.work)
    choices = sum(door.startswith("select") for door in doors)
    made = []
    if sums:
        made.append(Event("gaussian", silo.noise, rate, sums))
    if choices:
        made.append(Event("selection", silo.choice_noise, 1.0, choices))
    return tuple(made)


@functools.lru_cache(maxsize=4096)
def _doors(
    calls: tuple[tuple[str, ...], ...], here: tuple[bool, ...] | None, steps: tuple[int, ...] | None
) -> tuple[tuple[int, tuple[str, ...], int | None], ...]:
    """Give (rounds, doors of each, steps of a door) of a plan in order; no door where a silo is away."""
    doors = calls if here is None else tuple(d if flag else () for d, flag in zip(calls, here, strict=True))
    each = (
        [None] * len(doors)
        if steps is None
        else [n if d else None for d, n in zip(doors, steps, strict=True)]
    )
    stages = itertools.groupby(zip(doors, each, strict=True))
    return tuple((len(list(same)), made, count) for (made, count), same in stages)


class Account(NamedTuple):
    """What a run released and was charged, the budget that paid for it, and facts of the ledger, if any.

    `rounds` lists the rounds it did, those repeated twice.
    """

    events: tuple[Event, ...]
    epsilon: float
    delta: float
    budget: float
    rounds: tuple[tuple[int, int], ...]
    facts: dict[str, Any] | None


@dataclass
class Meter:
    """The ledgers of a training's silos: claims of its runs, `claims[k][run]`, and what each may do.

    `held[k]` is a run that was charged whole beforehand, if there is one.
    """

    names: tuple[str, ...]
    ledgers: list[Ledger]
    streams: EntropyStreams
    claims: list[list[int]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    _open: list[list[int]] = field(default_factory=list)

    def hold(self, asked: Sequence[RunPlan]) -> None:
        """Charge one run to every silo, all of it at once, before anything about it is decided."""
        self.claim([[plan] for plan in asked], partial=False)
        self.held, self.claims, self.rounds = [runs[0] for runs in self.claims], [], []
        for ledger, run, plan in zip(self.ledgers, self.held, asked, strict=True):
            ledger.reserve(run, 0, plan.rounds)

    def take_held(self, asked: Sequence[RunPlan], held: list[int]) -> None:
        """Take up a run that was charged before; it must be what is asked."""
        self.go_on([[plan] for plan in asked], [[run] for run in held])
        for k, (ledger, run) in enumerate(zip(self.ledgers, held, strict=True)):
            if not ledger.state().reserved(run):
                raise Problem(f"silo '{self.names[k]}': row {run} of its ledger was not reserved: begin anew")
        self.held, self.claims, self.rounds = held, [], []

    def entropy(self) -> int:
        """Give a number that follows from the silos' secrets and the rows that are held."""
        digest = hashlib.blake2b(digest_size=32)
        for name, ledger, run in zip(self.names, self.ledgers, self.held, strict=True):
            row = ledger.entries()[run - 1].hash.encode()
            digest.update(hashlib.blake2b(row, key=self.streams.secrets[name]).digest())
        return int.from_bytes(digest.digest())

    def release_held(self, digest: str) -> None:
        """Record that the held run happened."""
        for ledger, run in zip(self.ledgers, self.held, strict=True):
            state = ledger.state()
            rows = [seq for seq, row in state.reservations.items() if row["run"] == run]
            ledger.commit_all([seq for seq in rows if seq not in state.committed], digest)

    def claim(self, asked: Sequence[Sequence[RunPlan]], partial: bool) -> None:
        """Charge every run `asked[k]` to every silo k, or none to any.

        With `partial` a silo that cannot pay for all rounds takes part in as many as it can.
        """
        made: list[tuple[Ledger, list[int]]] = []
        try:
            for k, ledger in enumerate(self.ledgers):
                try:
                    got = ledger.claim_all(asked[k], partial)
                except Problem as problem:
                    raise type(problem)(f"silo '{self.names[k]}': {problem}") from None
                made.append((ledger, [claim.run for claim in got]))
                self.rounds.append(min(claim.rounds for claim in got))
                planned = asked[k][0].rounds
                if self.rounds[k] < planned:
                    pays = f"its budget pays for {self.rounds[k]} of {planned} rounds"
                    self.left[self.names[k]] = pays
        except BaseException:
            for ledger, runs in made:
                for run in runs:
                    ledger.cancel(run)
            raise
        self.claims = [runs for _, runs in made]

    def go_on(self, asked: Sequence[Sequence[RunPlan]], claims: list[list[int]]) -> None:
        """Take up the claims of a training that was interrupted; they must be of what is asked."""
        self.claims = claims
        for k, (ledger, runs) in enumerate(zip(self.ledgers, claims, strict=True)):
            state = ledger.state()
            for run, plan in zip(runs, asked[k], strict=True):
                kept = state.plan_of(run) if run in state.runs else None
                if kept is None or replace(kept, epsilon=plan.epsilon) != plan:
                    raise Problem(
                        f"silo '{self.names[k]}': its ledger does not have the run that the checkpoint goes"
                        " on with: restore the ledger, or begin anew in another folder"
                    )
            self.rounds.append(min(int(state.runs[run]["allowed"]) for run in runs))

    def present(self, number: int) -> list[int]:
        """Give the places of the silos that may take part in a round."""
        return [k for k, rounds in enumerate(self.rounds) if number < rounds]

    def reserve(self, first: int, last: int) -> None:
        """Charge rounds to every silo before they happen; a silo that cannot pay leaves before the first."""

        def one(k: int) -> list[int]:
            end = min(last, self.rounds[k])
            if end <= first:
                return []
            try:
                rows = self.ledgers[k].reserve_all([(run, first, end) for run in self.claims[k]])
            except Spent as problem:
                self.rounds[k] = first
                self.left[self.names[k]] = str(problem)
                return []
            self.streams.begin(self.names[k], rows[-1].hash)
            return [row.seq for row in rows]

        self._open = [one(k) for k in range(len(self.ledgers))]

    def commit(self, digest: str) -> None:
        """Record that the reserved rounds happened."""
        for ledger, rows in zip(self.ledgers, self._open, strict=True):
            ledger.commit_all(rows, digest)
        self._open = []

    def charged(self, k: int) -> list[tuple[float, float]]:
        """Give the (epsilon, delta) that silo k's ledger charged for each claim."""
        state = self.ledgers[k].state()
        return [charge(state, run) for run in self.claims[k]]

    def account(self, k: int, run: int) -> Account:
        """Give what a run released of silo k, what was charged, and where its ledger stands."""
        ledger, row = self.ledgers[k], self.claims[k][run]
        state = ledger.state()
        totals = {name: state.total("example", name) for name in ADVERSARIES}
        facts = {
            "file": ledger.path.name,
            "head": ledger.head,
            "run": row,
            "rounds": int(state.runs[row]["allowed"]),
            "total": {name: {"epsilon": e, "delta": d} for name, (e, d) in totals.items()},
            "chosen": self.held[k] if self.held else None,
        }
        plan, rounds = state.plan_of(row), state.reserved(row)
        events = tuple(event for span in rounds for event in plan.events(*span))
        return Account(events, *charge(state, row), state.budgets["example"][0], rounds, facts)

    def close(self) -> None:
        """Close the files."""
        for ledger in self.ledgers:
            ledger.close()
