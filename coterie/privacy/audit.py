"""Checking a ledger from its rows alone: the chain, every epsilon, and that no budget was passed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import Problem
from .adversaries import ADVERSARIES
from .ledger import Identity, read_ledger
from .rows import State
from .runplan import RunPlan

ROUNDING = 1e-6


@dataclass(frozen=True)
class Report:
    """What a ledger says once it was checked."""

    path: Path
    identity: Identity
    rows: int
    head: str
    filter: str
    budgets: dict[str, tuple[float, float]]
    totals: dict[str, dict[str, tuple[float, float]]]
    runs: int
    uncommitted: int


def check_ledger(path: Path) -> Report:
    """Recompute a ledger; refuse it, naming the row, if anything does not fit."""
    ledger = read_ledger(path)
    try:
        entries = ledger.entries()
        for place, entry in enumerate(entries, 1):
            if entry.kind == "run":
                _check_run(path, entry.seq, RunPlan.from_json(entry.body), int(entry.body["allowed"]))
            if entry.kind in ("run", "reserve"):
                _check_budget(path, entry.seq, State.of(entries[:place]))
        state = State.of(entries)
        units = sorted(state.budgets)
        totals = {unit: {name: state.total(unit, name) for name in ADVERSARIES} for unit in units}
        uncommitted = len(state.reservations.keys() - state.committed)
        return Report(
            path, ledger.identity, len(entries), entries[-1].hash, entries[0].body["filter"],
            state.budgets, totals, len(state.runs), uncommitted,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, Problem):
            raise
        raise Problem(f"ledger '{path}': a row lacks what it must say: {error!r}") from error
    finally:
        ledger.close()


def _check_run(path: Path, row: int, plan: RunPlan, allowed: int) -> None:
    """A run's epsilon is at least what its events cost."""
    true = plan.certified(0, allowed, anew=True)
    if plan.epsilon < true * (1 - ROUNDING):
        raise Problem(
            f"ledger '{path}': row {row} states epsilon {plan.epsilon:.6g}, its events give {true:.6g}"
        )


def _check_budget(path: Path, row: int, state: State) -> None:
    """After each charge the totals were within the budget of that time."""
    for unit, (epsilon, delta) in state.budgets.items():
        for name in ADVERSARIES:
            spent = state.total(unit, name)
            if spent[0] > epsilon * (1 + ROUNDING) or spent[1] > delta * (1 + ROUNDING):
                raise Problem(
                    f"ledger '{path}': row {row} passes the budget ({epsilon:g}, {delta:g}) against {name}:"
                    f" ({spent[0]:.6g}, {spent[1]:.3g})"
                )
