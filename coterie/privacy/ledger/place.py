"""Read, list or change the ledgers at a place, which is a file or a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import Problem, as_path, plainly
from .ledger import Identity, read_ledger
from .verify import Report, check_ledger


def ledger_files(place: str | Path) -> list[Path]:
    """Return the ledger file at a place, or all ledger files in a folder."""
    place = as_path("place", place)
    if place.is_dir():
        files = sorted(place.glob("*.sqlite"))
        if not files:
            raise Problem(f"there is no ledger in '{place}'")
        return files
    if not place.exists():
        raise Problem(f"there is no ledger '{place}'")
    return [place]


@plainly
def read_ledgers(place: str | Path, independently: bool = False) -> list[Report]:
    """Check every ledger at a place and return their contents, sorted by silo.

    The chain of rows is checked, and every epsilon is recomputed from its events. Raise `Problem`, naming
    the row, for the first ledger that fails a check. If `independently`, dp-accounting recomputes them too.
    """
    reports = [check_ledger(path, independently) for path in ledger_files(place)]
    return sorted(reports, key=lambda report: report.identity.silo)


def ledger_rows(place: str | Path) -> Iterator[dict[str, Any]]:
    """Yield every row of the ledgers at a place, with the name of its file."""
    for path in ledger_files(place):
        ledger = read_ledger(path)
        try:
            for entry in ledger.entries():
                yield {"ledger": path.name, **asdict(entry)}
        finally:
            ledger.close()


@plainly
def set_budget(
    place: str | Path,
    epsilon: float,
    delta: float,
    *,
    unit: str = "example",
    reason: str = "",
    higher: bool = False,
) -> list[tuple[Path, Identity]]:
    """Change the budget of the ledgers at a place, and return their files and identities.

    Lowering a budget is always allowed. Raising one needs `higher=True` and a reason, which the ledger keeps.
    """
    for key, value in (("epsilon", epsilon), ("delta", delta)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Problem(f"{key}: expected a number, got {value!r}")
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
    """Raise `Problem` if a change that is meant to raise a budget would lower it."""
    ledger = read_ledger(path)
    now, silo = ledger.state().budgets.get(unit), ledger.identity.silo
    ledger.close()
    if now is not None and (epsilon < now[0] or delta < now[1]):
        raise Problem(
            f"the budget of '{silo}' is ({now[0]:g}, {now[1]:g}), so ({epsilon:g}, {delta:g}) would lower it;"
            " do not ask to raise it, or name only the ledger files whose budget you want to raise"
        )
