"""The rows of a ledger, each hashed with the one before, and what they say together."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import Problem
from .claim import Claim
from .filters import Filter, charge, filter_for, vetoing

FIRST = "0" * 64
# The units of the runs that count in a unit: protecting a whole silo protects each of its examples.
COUNTED = {"example": ("example", "silo"), "silo": ("silo",)}
NONE = math.inf, math.inf  # where nothing protects


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
    """What the rows of a ledger say: budgets, runs, reservations. Rows are only ever added."""

    filter: Filter = field(default_factory=lambda: filter_for("basic"))
    order: int = 2
    budgets: dict[str, tuple[float, float]] = field(default_factory=dict)
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    reservations: dict[int, dict[str, Any]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    charges: dict[tuple[int, int, str], tuple[float, float]] = field(default_factory=dict)
    sums: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    _spans: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    _claims: dict[int, Claim] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Sequence[LedgerEntry]) -> LedgerState:
        """Read the rows in order."""
        state = cls()
        for entry in entries:
            state.add(entry)
        return state

    def copy(self) -> LedgerState:
        """Give a copy, to which rows can be added that may be taken back."""
        return LedgerState(
            self.filter, self.order, dict(self.budgets), dict(self.runs), dict(self.reservations),
            set(self.committed), dict(self.charges), dict(self.sums), dict(self._spans), dict(self._claims),
        )  # fmt: skip

    def add(self, entry: LedgerEntry, claim: Claim | None = None) -> None:
        """Read one more row; `claim` is that of a run which was just made."""
        body = entry.body
        if entry.kind == "open":
            self.filter, self.order = filter_for(body["filter"]), body["order"]
        elif entry.kind == "budget":
            self.budgets[body["unit"]] = body["epsilon"], body["delta"]
        elif entry.kind == "run":
            self.runs[entry.seq] = body
            if claim is not None:
                self._claims[entry.seq] = claim
            self._add_to_sums(entry.seq)
        elif entry.kind == "reserve":
            self.reservations[entry.seq] = body
            for run in runs_of(body):
                if self.repeats(run, body["first"]):  # charged again
                    self.sums.clear()
                self._spans[run] = (*self.reserved(run), (body["first"], body["last"]))
        elif entry.kind == "commit":
            self.committed.add(body["reservation"])
            if "last" in body:
                self._shorten(body["reservation"], body["last"])
        elif entry.kind == "cancel":
            del self.runs[body["run"]]
            self.sums.clear()

    def check_shorter(self, reservation: int, last: int) -> None:
        """Refuse to give back rounds of a reservation that is not the newest of its runs, or committed."""
        body = self.reservations[reservation]
        mine = set(runs_of(body))
        later = any(seq > reservation and mine & set(runs_of(row)) for seq, row in self.reservations.items())
        if reservation in self.committed or later or not body["first"] < last <= body["last"]:
            raise Problem(f"the rounds from {last} of row {reservation} cannot be given back")

    def _shorten(self, reservation: int, last: int) -> None:
        """Give back the rounds of a reservation that were not done."""
        body = self.reservations[reservation]
        for run in runs_of(body):
            self._spans[run] = (*self.reserved(run)[:-1], (body["first"], last))
        self.charges = {key: found for key, found in self.charges.items() if key[0] not in runs_of(body)}
        self.sums.clear()

    def _add_to_sums(self, run: int) -> None:
        """Add a new run to the sums that are known, so that they need not be found anew."""
        body = self.runs[run]
        for (unit, adversary), (epsilon, delta) in self.sums.items():
            if body["unit"] in COUNTED[unit] and adversary in body["seen"]:
                more = charge(self, run, unit=unit)
                self.sums[unit, adversary] = epsilon + more[0], delta + more[1]

    def claim_of(self, run: int) -> Claim:
        """Give a run's claim."""
        if run not in self.runs:
            raise Problem(f"the ledger has no run {run}")
        if run not in self._claims:
            self._claims[run] = Claim.from_json(self.runs[run])
        return self._claims[run]

    def reserved(self, run: int) -> tuple[tuple[int, int], ...]:
        """List the rounds a run reserved; those reserved twice are there twice."""
        return self._spans.get(run, ())

    def repeats(self, run: int, first: int) -> bool:
        """Whether a run reserved the round `first`, or a later one, before."""
        return any(first < last for _, last in self.reserved(run))

    def seen(self, unit: str, adversary: str) -> tuple[int, ...]:
        """List the runs that count in a unit and of which an adversary sees something protected."""
        counted, runs = COUNTED[unit], self.runs.items()
        return tuple(run for run, body in runs if body["unit"] in counted and adversary in body["seen"])

    def bare(self, unit: str, adversary: str) -> bool:
        """Whether an adversary once saw the silo as it is: nothing is left to protect against it."""
        counted = (body for body in self.runs.values() if body["unit"] in COUNTED[unit])
        return any(adversary in body.get("unprotected", ()) for body in counted)

    def spent(self, unit: str, adversary: str) -> tuple[float, float]:
        """Give the (epsilon, delta) spent in a unit by what an adversary sees protected, over all runs."""
        return self.filter.total(self, unit, adversary)

    def total(self, unit: str, adversary: str) -> tuple[float, float]:
        """Give the (epsilon, delta) that hold in a unit against an adversary, over all runs, or `NONE`."""
        return NONE if self.bare(unit, adversary) else self.spent(unit, adversary)

    def refusal(self, claim: Claim) -> str:
        """Say why a run does not fit, in the last unit in which it does not."""
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
                f" '{unit}', ({spent[0]:.4g}, {spent[1]:.3g}) of it is spent: a run of"
                f" ({said}, {claim.delta:.3g}) does not fit"
            )
        return found


class Changes:
    """Rows that a transaction adds, and what all rows say with them."""

    def __init__(self, last: LedgerEntry | None, state: LedgerState) -> None:
        self.last = last
        self.state = state.copy()
        self.added: list[LedgerEntry] = []
        self.texts: list[str] = []

    def add(self, kind: str, body: dict[str, Any], claim: Claim | None = None) -> LedgerEntry:
        """Add a row; with the `claim` that its body says, it need not be read back."""
        seq, previous = (self.last.seq + 1, self.last.hash) if self.last is not None else (1, FIRST)
        body = {**body, "time": round(time.time(), 3)}
        text = text_of(body)
        entry = LedgerEntry(seq, kind, body, previous, hash_of(seq, kind, text, previous))
        self.added.append(entry)
        self.texts.append(text)
        self.state.add(entry, claim)
        self.last = entry
        return entry


def runs_of(reservation: dict[str, Any]) -> list[int]:
    """List the runs of a reservation; older ledgers have one row for each."""
    return list(reservation["runs"]) if "runs" in reservation else [reservation["run"]]


def text_of(body: dict[str, Any]) -> str:
    """Give a row's content as text, always the same."""
    return json.dumps(body, sort_keys=True)


def parse(text: Any) -> dict[str, Any]:
    """Read a row's content; what cannot be read does not fit its hash."""
    try:
        body = json.loads(text)
    except (ValueError, TypeError):
        return {"unreadable": repr(text)}
    return body if isinstance(body, dict) else {"unreadable": repr(text)}


def hash_of(seq: int, kind: str, text: str, previous: str) -> str:
    """Give the hash of a row, which covers the hash of the row before."""
    return hashlib.sha256(json.dumps([seq, kind, text, previous]).encode()).hexdigest()
