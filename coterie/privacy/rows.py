"""The rows of a ledger, each hashed with the one before, and what they say together."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import Problem
from .adversaries import ADVERSARIES
from .filters import Filter, filter_for
from .runplan import RunPlan

FIRST = "0" * 64


@dataclass(frozen=True)
class Entry:
    """One row of a ledger."""

    seq: int
    kind: str
    body: dict[str, Any]
    previous: str
    hash: str


@dataclass(frozen=True)
class State:
    """What the rows of a ledger say: budgets, runs, reservations."""

    filter: Filter
    order: int
    budgets: dict[str, tuple[float, float]]
    runs: dict[int, dict[str, Any]]
    reservations: dict[int, dict[str, Any]]
    committed: frozenset[int]
    _plans: dict[int, RunPlan] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> State:
        """Read the rows in order."""
        budgets: dict[str, tuple[float, float]] = {}
        runs: dict[int, dict[str, Any]] = {}
        reservations: dict[int, dict[str, Any]] = {}
        committed = set()
        for entry in entries:
            body = entry.body
            if entry.kind == "budget":
                budgets[body["unit"]] = body["epsilon"], body["delta"]
            elif entry.kind == "run":
                runs[entry.seq] = body
            elif entry.kind == "reserve":
                reservations[entry.seq] = body
            elif entry.kind == "commit":
                committed.add(body["reservation"])
            elif entry.kind == "cancel":
                del runs[body["run"]]
        opened: dict[str, Any] = entries[0].body if entries else {"filter": "basic", "order": 2}
        kind = filter_for(opened["filter"])
        return cls(kind, opened["order"], budgets, runs, reservations, frozenset(committed))

    def plan_of(self, run: int) -> RunPlan:
        """Give a run's plan."""
        if run not in self.runs:
            raise Problem(f"the ledger has no run {run}")
        if run not in self._plans:
            self._plans[run] = RunPlan.from_json(self.runs[run])
        return self._plans[run]

    def reserved(self, run: int) -> list[tuple[int, int]]:
        """List the rounds a run reserved; those reserved twice are there twice."""
        return [(r["first"], r["last"]) for r in self.reservations.values() if r["run"] == run]

    def seen(self, unit: str, adversary: str) -> list[int]:
        """List the runs of a unit of which an adversary sees something."""
        return [run for run, body in self.runs.items() if body["unit"] == unit and adversary in body["seen"]]

    def total(self, unit: str, adversary: str) -> tuple[float, float]:
        """Give the (epsilon, delta) spent in a unit against an adversary, over all runs."""
        return self.filter.total(self, unit, adversary)

    def refusal(self, plan: RunPlan) -> str:
        """Say why a run does not fit."""
        spent = max(self.total(plan.unit, adversary) for adversary in ADVERSARIES)
        epsilon, delta = self.budgets.get(plan.unit, (0.0, 0.0))
        return (
            f"the budget of this data set is (epsilon {epsilon:g}, delta {delta:g}) in the unit"
            f" '{plan.unit}', ({spent[0]:.4g}, {spent[1]:.3g}) of it is spent: a run of"
            f" ({plan.epsilon:.4g}, {plan.delta:.3g}) does not fit"
        )


class Changes:
    """Rows that a transaction adds."""

    def __init__(self, known: list[Entry]) -> None:
        self.known = known
        self.added: list[Entry] = []

    @property
    def state(self) -> State:
        """What all rows say, the added ones too."""
        return State.of([*self.known, *self.added])

    def add(self, kind: str, body: dict[str, Any]) -> Entry:
        """Add a row."""
        rows = self.known + self.added
        seq, previous = (rows[-1].seq + 1, rows[-1].hash) if rows else (1, FIRST)
        body = {**body, "time": round(time.time(), 3)}
        entry = Entry(seq, kind, body, previous, "")
        entry = Entry(seq, kind, body, previous, hash_of(entry))
        self.added.append(entry)
        return entry


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


def hash_of(entry: Entry) -> str:
    """Give the hash of a row, which covers the hash of the row before."""
    content = json.dumps([entry.seq, entry.kind, text_of(entry.body), entry.previous])
    return hashlib.sha256(content.encode()).hexdigest()
