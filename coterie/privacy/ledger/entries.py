"""The rows of a ledger, each with the hash of the row before, and what they say together."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

from ...errors import Problem
from .claim import Claim
from .filters import PASSES_COUNT_WHOLE, Filter, Renyi, charge, filter_for, vetoing

FIRST = "0" * 64
# The units of runs that count toward a unit: protecting a whole silo also protects its persons and examples.
COUNTED = {"example": ("example", "person", "silo"), "person": ("person", "silo"), "silo": ("silo",)}
NONE = math.inf, math.inf  # the total against an adversary without protection


@dataclass(frozen=True)
class LedgerEntry:
    """One row of a ledger."""

    seq: int
    kind: str
    body: dict[str, Any]
    previous: str
    hash: str


@dataclass
class LedgerState:
    """What the rows of a ledger say: budgets, runs and reservations. Rows are only ever added.

    `ledger` is the id of the ledger and `key` its public key, as plain data. `carried` is what a recovered
    ledger begins with, for each unit and adversary, in the filter's own numbers; `bare_before` are those
    against whom nothing protects. Runs before the row `recovered` cannot continue. `released` has the runs
    that were given up, each with the row that says so. `raised` counts how often the budget of each
    unit was raised, before a recovery too.
    """

    filter_name: str = "basic"
    filter: Filter = field(default_factory=lambda: filter_for("basic"))
    order: int = 2
    ledger: str = ""
    key: dict[str, Any] = field(default_factory=dict)
    carried: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    bare_before: frozenset[tuple[str, str]] = frozenset()
    adopted: int = 0
    recovered: int = 0
    recoveries: int = 0
    raised: dict[str, int] = field(default_factory=dict)
    budgets: dict[str, tuple[float, float]] = field(default_factory=dict)
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    reservations: dict[int, dict[str, Any]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    released: dict[int, int] = field(default_factory=dict)
    charges: dict[tuple[int, int, str], tuple[float, float]] = field(default_factory=dict)
    sums: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    _spans: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    _claims: dict[int, Claim] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Sequence[LedgerEntry]) -> LedgerState:
        """Return the state after these rows."""
        state = cls()
        for entry in entries:
            state.add(entry)
        return state

    def copy(self) -> LedgerState:
        """Return a copy, so that rows can be added and dropped again."""
        return LedgerState(**{each.name: copy(getattr(self, each.name)) for each in fields(self)})

    def add(self, entry: LedgerEntry, claim: Claim | None = None) -> None:
        """Add one row; `claim` may be given for a new run, so that it need not be parsed."""
        body = entry.body
        if entry.kind == "open":
            self.filter_name, self.order = body["filter"], body["order"]
            self.filter = filter_for(self.filter_name)
            self.ledger, self.key = body.get("ledger", ""), body.get("key", {})
        elif entry.kind == "budget":
            self.budgets[body["unit"]] = body["epsilon"], body["delta"]
            if body.get("raised") is True:  # `verify` refuses a row that raises a budget and does not say so
                self.raised[body["unit"]] = self.raised.get(body["unit"], 0) + 1
        elif entry.kind == "run":
            self.runs[entry.seq] = body
            if claim is not None:
                self._claims[entry.seq] = claim
            self._add_to_sums(entry.seq)
        elif entry.kind == "reserve":
            self.reservations[entry.seq] = body
            for run in runs_of(body):
                if self.repeats(run, body["first"]):  # repeated rounds are charged again
                    self.sums.clear()
                self._spans[run] = (*self.reserved(run), (body["first"], body["last"]))
        elif entry.kind == "commit":
            self.committed.add(body["reservation"])
            if "last" in body:
                self._shorten(body["reservation"], body["last"])
        elif entry.kind == "cancel":
            del self.runs[body["run"]]
            self.sums.clear()
        elif entry.kind == "release":
            self._release(body["run"], entry.seq)
        elif entry.kind == "adopt":
            self.adopted, self.ledger, self.key = entry.seq, body["ledger"], body["key"]
        elif entry.kind == "key":
            self.key = body["key"]
        elif entry.kind == "recover":
            self._recover(entry)

    def _recover(self, entry: LedgerEntry) -> None:
        """Begin again with what a lost ledger spent; no run before this row can continue."""
        self.recovered, self.recoveries = entry.seq, self.recoveries + 1
        for unit, amounts in entry.body["carried"].items():
            for name, amount in amounts.items():
                more = [math.inf if part is None else float(part) for part in amount]
                before = self.carried.get((unit, name), (0.0, 0.0))
                self.carried[unit, name] = before[0] + more[0], before[1] + more[1]
        for unit, times in entry.body.get("raised", {}).items():
            self.raised[unit] = self.raised.get(unit, 0) + times
        bare = {(unit, name) for unit, names in entry.body["bare"].items() for name in names}
        if (
            "person" not in entry.body["carried"]
        ):  # nobody counted persons, but whole silos may have been charged
            self._carry_for_persons(entry.body["carried"], bare)
        self.bare_before |= bare
        self.sums.clear()

    def _carry_for_persons(
        self, carried: dict[str, dict[str, list[float | None]]], bare: set[tuple[str, str]]
    ) -> None:
        """Charge persons what examples were charged: whatever counts for persons counts for examples, too."""
        for name in carried.get("example", {}):
            self.carried["person", name] = self.carried["example", name]
        bare |= {("person", name) for unit, name in bare if unit == "example"}

    def _release(self, run: int, row: int) -> None:
        """Let a run reserve no more rounds; one that reserved none is forgotten."""
        self.released[run] = row
        if not self.reserved(run):
            del self.runs[run]
            self.sums.clear()

    def why_released(self, run: int) -> str | None:
        """Return why a run that was given up cannot continue; None for any other."""
        if run not in self.released:
            return None
        row = self.released[run]
        return f"run {run} was released at row {row}, so it cannot continue: start over in another folder"

    def check_not_released(self, run: int) -> None:
        """Raise `Problem` for a run that was given up."""
        if (why := self.why_released(run)) is not None:
            raise Problem(why)

    def check_not_before(self, run: int) -> None:
        """Raise `Problem` for a run that began before a recovery: what became of it is not known."""
        if run < self.recovered:
            raise Problem(
                f"run {run} began before the ledger was recovered (row {self.recovered}), so it stays charged"
                " and cannot continue: start over in another folder"
            )

    def check_shorter(self, reservation: int, last: int) -> None:
        """Raise `Problem` unless a reservation's rounds from `last` on may be given back.

        The reservation must be the newest of its runs and not yet committed.
        """
        body = self.reservations[reservation]
        mine = set(runs_of(body))
        for run in mine:
            self.check_not_before(run)
        later = any(seq > reservation and mine & set(runs_of(row)) for seq, row in self.reservations.items())
        if reservation in self.committed or later or not body["first"] < last <= body["last"]:
            raise Problem(f"row {reservation}: the rounds from {last} on cannot be given back")

    def _shorten(self, reservation: int, last: int) -> None:
        """Give back the rounds of a reservation from `last` on."""
        body = self.reservations[reservation]
        for run in runs_of(body):
            self._spans[run] = (*self.reserved(run)[:-1], (body["first"], last))
        self.charges = {key: found for key, found in self.charges.items() if key[0] not in runs_of(body)}
        self.sums.clear()

    def _add_to_sums(self, run: int) -> None:
        """Add a new run to the known sums, so that they need not be computed again."""
        body = self.runs[run]
        for (unit, adversary), (epsilon, delta) in self.sums.items():
            if body["unit"] in COUNTED[unit] and adversary in body["seen"]:
                more = charge(self, run, unit=unit)
                self.sums[unit, adversary] = epsilon + more[0], delta + more[1]

    def claim_of(self, run: int) -> Claim:
        """Return a run's claim."""
        if run not in self.runs:
            raise Problem(f"the ledger has no run {run}")
        if run not in self._claims:
            self._claims[run] = Claim.from_json(self.runs[run])
        return self._claims[run]

    def reserved(self, run: int) -> tuple[tuple[int, int], ...]:
        """Return the spans of rounds that a run reserved; rounds reserved twice appear twice."""
        return self._spans.get(run, ())

    def unreserved(self) -> dict[int, tuple[int, int]]:
        """Return the rounds that each unfinished run may still reserve.

        A run is unfinished until it has reserved all rounds that it may train. If its newest reservation is
        committed, it was stopped and gave the others back. A run that was released, or began before a
        recovery, cannot continue.
        """
        newest = {run: seq for seq, row in self.reservations.items() for run in runs_of(row)}
        ends = {run: max((last for _, last in self.reserved(run)), default=0) for run in self.runs}
        return {
            run: (ends[run], int(body["allowed"]))
            for run, body in self.runs.items()
            if run > self.recovered
            and run not in self.released
            and ends[run] < int(body["allowed"])
            and newest.get(run) not in self.committed
        }

    def repeats(self, run: int, first: int) -> bool:
        """Return whether a run has reserved the round `first`, or a later one, before."""
        return any(first < last for _, last in self.reserved(run))

    def seen(self, unit: str, adversary: str) -> tuple[int, ...]:
        """Return the runs that count in a unit and whose protected releases an adversary sees."""
        counted, runs = COUNTED[unit], self.runs.items()
        return tuple(run for run, body in runs if body["unit"] in counted and adversary in body["seen"])

    def bare(self, unit: str, adversary: str) -> bool:
        """Return whether an adversary has ever seen the silo's raw uploads, so that nothing protects it."""
        counted = (body for body in self.runs.values() if body["unit"] in COUNTED[unit])
        before = (unit, adversary) in self.bare_before
        return before or any(adversary in body.get("unprotected", ()) for body in counted)

    def spent(self, unit: str, adversary: str) -> tuple[float, float]:
        """Return the (epsilon, delta) of all protected releases that an adversary sees, in a unit."""
        return self.filter.total(self, unit, adversary)

    def total(self, unit: str, adversary: str) -> tuple[float, float]:
        """Return the (epsilon, delta) of all runs against an adversary, or `NONE` without protection."""
        return NONE if self.bare(unit, adversary) else self.spent(unit, adversary)

    def refusal(self, claim: Claim) -> str:
        """Return why a run does not fit, for the last unit in which it does not."""
        found = ""
        for unit in vetoing(self, claim):
            spent = max(self.spent(unit, adversary) for adversary in claim.seen)
            epsilon, delta = self.budgets[unit]
            asked = claim.epsilon if unit == claim.unit else claim.certified(0, claim.rounds, unit=unit)
            if found and spent[0] + asked <= epsilon and spent[1] + claim.delta <= delta:
                continue
            said = f"{asked:.4g}" if math.isfinite(asked) else "no known bound"
            found = (
                f"the budget of this data set is (epsilon {epsilon:g}, delta {delta:g}) in the unit"
                f" '{unit}', and ({spent[0]:.4g}, {spent[1]:.3g}) of it is spent, so a run that needs"
                f" ({said}, {claim.delta:.3g}) does not fit"
            )
        passes = any(event.in_passes for event in claim.events(0, claim.rounds))
        return f"{found} ({PASSES_COUNT_WHOLE})" if passes and isinstance(self.filter, Renyi) else found


class Changes:
    """The rows that a transaction adds, and the state that includes them.

    `number` is the sequence number of the head that the transaction ends with.
    """

    def __init__(self, last: LedgerEntry | None, state: LedgerState, number: int = 1) -> None:
        self.last = last
        self.number = number
        self.state = state.copy()
        self.added: list[LedgerEntry] = []
        self.texts: list[str] = []

    def add(self, kind: str, body: dict[str, Any], claim: Claim | None = None) -> LedgerEntry:
        """Add a row; `claim` may be given for a new run, so that it need not be parsed.

        Each row has a random `nonce`. Two copies of a ledger that add the same row in the same millisecond
        would otherwise agree, and their witness could not tell that there are two.
        """
        seq, previous = (self.last.seq + 1, self.last.hash) if self.last is not None else (1, FIRST)
        body = {**body, "time": round(time.time(), 3), "nonce": secrets.token_hex(8)}
        text = text_of(body)
        entry = LedgerEntry(seq, kind, body, previous, hash_of(seq, kind, text, previous))
        self.added.append(entry)
        self.texts.append(text)
        self.state.add(entry, claim)
        self.last = entry
        return entry


def runs_of(reservation: dict[str, Any]) -> list[int]:
    """Return the runs of a reservation; older ledgers have one row per run."""
    return list(reservation["runs"]) if "runs" in reservation else [reservation["run"]]


def text_of(body: dict[str, Any]) -> str:
    """Return a row's content as text; equal contents give equal texts."""
    return json.dumps(body, sort_keys=True)


def parse(text: Any) -> dict[str, Any]:
    """Parse a row's content; the hash of an unreadable row will not match."""
    try:
        body = json.loads(text)
    except (ValueError, TypeError):
        return {"unreadable": repr(text)}
    return body if isinstance(body, dict) else {"unreadable": repr(text)}


def hash_of(seq: int, kind: str, text: str, previous: str) -> str:
    """Return the hash of a row, which includes the hash of the row before."""
    return hashlib.sha256(json.dumps([seq, kind, text, previous]).encode()).hexdigest()
