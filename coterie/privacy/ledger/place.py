"""Ledgers of a place, which is one file or a folder: read and checked, listed, or given another budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import Problem
from .ledger import Identity, read_ledger
from .verify import Report, check_ledger


def ledger_files(place: str | Path) -> list[Path]:
    """List the ledger at a place, or those in a folder."""
    place = Path(place)
    if place.is_dir():
        files = sorted(place.glob("*.sqlite"))
        if not files:
            raise Problem(f"there is no ledger in '{place}'")
        return files
    if not place.exists():
        raise Problem(f"there is no ledger '{place}'")
    return [place]


def read_ledgers(place: str | Path) -> list[Report]:
    """Check every ledger of a place and return what each says, sorted by silo.

    The chain of rows is checked and every epsilon is recomputed from its events. The first ledger that does
    not fit is refused, naming the row.
    """
    reports = [check_ledger(path) for path in ledger_files(place)]
    return sorted(reports, key=lambda report: report.identity.silo)


def ledger_rows(place: str | Path) -> Iterator[dict[str, Any]]:
    """Return every row of the ledgers of a place, with the name of its file."""
    for path in ledger_files(place):
        ledger = read_ledger(path)
        try:
            for entry in ledger.entries():
                yield {"ledger": path.name, **asdict(entry)}
        finally:
            ledger.close()


def set_budget(
    place: str | Path,
    epsilon: float,
    delta: float,
    *,
    unit: str = "example",
    reason: str = "",
    higher: bool = False,
) -> list[tuple[Path, Identity]]:
    """Give the ledgers of a place another budget, and return whose they are.

    Any budget may be lowered. To raise one, say `higher=True` and give a reason, which the ledger keeps.
    """
    paths = ledger_files(place)
    if higher:
        for path in paths:
            _refuse_lowering(path, unit, epsilon, delta)
    changed = []
    for path in paths:
        ledger = read_ledger(path)
        ledger.set_budget(unit, epsilon, delta, reason, higher)
        changed.append((path, ledger.identity))
        ledger.close()
    return changed


def _refuse_lowering(path: Path, unit: str, epsilon: float, delta: float) -> None:
    """Refuse to lower a budget by an act that says it raises it."""
    ledger = read_ledger(path)
    now, silo = ledger.state().budgets.get(unit), ledger.identity.silo
    ledger.close()
    if now is not None and (epsilon < now[0] or delta < now[1]):
        raise Problem(
            f"the budget of '{silo}' is ({now[0]:g}, {now[1]:g}), ({epsilon:g}, {delta:g}) would lower it:"
            " leave --raise out, or name the files of those to be raised"
        )
