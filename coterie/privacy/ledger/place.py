"""Read, list or change the ledgers at a place, which is a file or a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import Problem, as_path, plainly
from .custody import Custody
from .ledger import Identity, Ledger, read_ledger
from .recovery import adopt_ledger, recover_ledger, rekey_ledger
from .verify import Report, check_ledger
from .witness import find_witness


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
def read_ledgers(
    place: str | Path, independently: bool = False, *, witness: str | Path | None = None
) -> list[Report]:
    """Check every ledger at a place and return their contents, sorted by silo.

    The chain of rows and every signature are checked, the witness has seen no later or other rows, and every
    epsilon is recomputed from its events; if `independently`, by dp-accounting too. Raise `Problem`, naming
    the row, for the first ledger that fails.
    """
    known = find_witness(witness)
    reports = [check_ledger(path, known, independently) for path in ledger_files(place)]
    return sorted(reports, key=lambda report: report.identity.silo)


def ledger_rows(place: str | Path) -> Iterator[dict[str, Any]]:
    """Yield every row of the ledgers at a place, with the name of its file."""
    for path in ledger_files(place):
        ledger = read_ledger(path, only_read=True)
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
    keys: str | Path | None = None,
    witness: str | Path | None = None,
) -> list[tuple[Path, Identity]]:
    """Change the budget of the ledgers at a place, and return their files and identities.

    Lowering a budget is always allowed. Raising one needs `higher=True` and a reason, which the ledger keeps.
    """
    for key, value in (("epsilon", epsilon), ("delta", delta)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Problem(f"{key}: expected a number, got {value!r}")
    paths, custody = ledger_files(place), Custody.of(keys, witness)
    if higher:
        for path in paths:
            _refuse_lowering(path, unit, epsilon, delta)
    changed = []
    for path in paths:
        ledger = read_ledger(path, custody=custody)
        try:
            ledger.set_budget(unit, epsilon, delta, reason, higher)
            changed.append((path, ledger.identity))
        finally:
            ledger.close()
    return changed


@plainly
def adopt_ledgers(
    place: str | Path,
    reason: str,
    *,
    keys: str | Path | None = None,
    witness: str | Path | None = None,
) -> list[tuple[Path, Identity]]:
    """Sign the ledgers of an older version at a place from now on; return their files and identities.

    Each keeps the reason, and says that the rows before were never signed.
    """
    custody = Custody.of(keys, witness)
    return [_closed(adopt_ledger(path, reason, custody)) for path in ledger_files(place)]


@plainly
def recover_ledgers(
    place: str | Path,
    reason: str,
    *,
    keys: str | Path | None = None,
    witness: str | Path | None = None,
) -> list[tuple[Path, Identity]]:
    """Accept ledgers that their witness does not agree with; return their files and identities.

    A ledger is charged with all that the witness knows and it does not, and its earlier runs cannot continue.
    `place` may be the file of a ledger that is lost: it is made again. In a folder, ledgers with which the
    witness agrees stay as they are.
    """
    custody, place = Custody.of(keys, witness), as_path("place", place)
    paths = ledger_files(place) if place.is_dir() else [place]
    if place.is_dir():
        paths = [path for path in paths if _differs(path, custody)]
        if not paths:
            raise Problem(
                f"the ledgers in '{place}' agree with their witness: there is nothing to recover (name the"
                " file of one that is lost)"
            )
    return [_closed(recover_ledger(path, reason, custody)) for path in paths]


@plainly
def rekey_ledgers(
    place: str | Path,
    reason: str,
    keys: str | Path,
    *,
    old: str | Path | None = None,
    witness: str | Path | None = None,
) -> list[tuple[Path, Identity]]:
    """Sign the ledgers at a place with other keys from now on; return their files and identities.

    The old keys vouch for the new ones where they are at hand: at `old`, else beside the ledgers.
    """
    custody, before = Custody.of(keys, witness), None if old is None else Path(old)
    return [_closed(rekey_ledger(path, reason, custody, before)) for path in ledger_files(place)]


def _differs(path: Path, custody: Custody) -> bool:
    """Return whether a ledger's witness does not agree with it."""
    ledger = read_ledger(path, custody=custody)
    try:
        return ledger.why_refused(ledger.seen()) is not None
    finally:
        ledger.close()


def _closed(ledger: Ledger) -> tuple[Path, Identity]:
    found = ledger.path, ledger.identity
    ledger.close()
    return found


def _refuse_lowering(path: Path, unit: str, epsilon: float, delta: float) -> None:
    """Raise `Problem` if a change that is meant to raise a budget would lower it."""
    ledger = read_ledger(path, only_read=True)
    now, silo = ledger.state().budgets.get(unit), ledger.identity.silo
    ledger.close()
    if now is not None and (epsilon < now[0] or delta < now[1]):
        raise Problem(
            f"the budget of '{silo}' is ({now[0]:g}, {now[1]:g}), so ({epsilon:g}, {delta:g}) would lower it;"
            " do not ask to raise it, or name only the ledger files whose budget you want to raise"
        )
