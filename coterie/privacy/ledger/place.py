"""Read, list or change the ledgers at a place, which is a file or a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import Problem, as_path, plainly
from .absent import gone_ledgers
from .custody import Custody
from .ledger import Identity, Ledger, read_ledger
from .recovery import adopt_ledger, check_reason, new_and_old_key, recover_ledger, rekey_ledger
from .release import held, release, unfinished
from .verify import Report, check_ledger
from .witness import find_witness


@dataclass(frozen=True)
class Released:
    """The rounds `first` up to `last` that a run of a ledger held, and that it has given back."""

    path: Path
    identity: Identity
    run: int
    first: int
    last: int


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
    epsilon is recomputed from its events; if `independently`, by dp-accounting too. Raise one `Problem` that
    names the row of every ledger that fails. A ledger that no witness knows is read too, but may be an old
    copy: `Report.witnessed` is then None.
    """
    reports, problems = check_ledgers(place, independently, witness=witness)
    raise_all(place, problems)
    return reports


def check_ledgers(
    place: str | Path, independently: bool = False, *, witness: str | Path | None = None
) -> tuple[list[Report], list[str]]:
    """Return the contents of every ledger at a place that passes all checks, and what is wrong with the rest.

    In a folder, a ledger that is missing although its secret or its key is there is also wrong.
    """
    place, known = as_path("place", place), find_witness(witness)
    reports, problems = [], gone_ledgers(place, known) if place.is_dir() else []
    for path in ledger_files(place) if not problems else sorted(place.glob("*.sqlite")):
        try:
            reports.append(check_ledger(path, known, independently))
        except Problem as problem:
            problems.append(str(problem))
    return sorted(reports, key=lambda report: report.identity.silo), list(dict.fromkeys(problems))


def raise_all(place: str | Path, problems: Sequence[str]) -> None:
    """Raise one `Problem` that has all of these, if there are any."""
    if len(problems) == 1:
        raise Problem(problems[0])
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise Problem(f"the ledgers in '{place}' have {len(problems)} problems:{lines}")


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
    new_key: bool = False,
) -> list[tuple[Path, Identity]]:
    """Accept ledgers that their witness does not agree with; return their files and identities.

    A ledger is charged with all that the witness knows and it does not, and its earlier runs cannot continue.
    `place` may be the file of a ledger that is lost: it is made again, with the key that its witness knows.
    If that is lost too, `new_key=True` accepts another. In a folder, ledgers with which the witness agrees
    stay as they are.
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
    return [_closed(recover_ledger(path, reason, custody, new_key)) for path in paths]


@plainly
def rekey_ledgers(
    place: str | Path,
    reason: str,
    keys: str | Path,
    *,
    old: str | Path | None = None,
    old_key_lost: bool = False,
    witness: str | Path | None = None,
) -> list[tuple[Path, Identity]]:
    """Sign the ledgers at a place with other keys from now on; return their files and identities.

    The old keys, at `old`, else beside the ledgers, vouch for the new ones. If one is not there, no ledger is
    changed, unless `old_key_lost`: then its ledger says that nobody vouches for the new key.
    """
    custody, before = Custody.of(keys, witness), None if old is None else as_path("old", old)
    paths = ledger_files(place)
    for path in paths:
        ledger = read_ledger(path, only_read=True)
        try:
            new_and_old_key(ledger, custody, before, old_key_lost)
        finally:
            ledger.close()
    return [_closed(rekey_ledger(path, reason, custody, before, old_key_lost)) for path in paths]


@plainly
def release_runs(
    place: str | Path,
    run: int | str,
    reason: str,
    *,
    keys: str | Path | None = None,
    witness: str | Path | None = None,
) -> list[Released]:
    """Give back the rounds that abandoned runs never reserved, and return them; these runs cannot continue.

    `run` is the row of a run, if `place` is the file of its ledger, or "all": every run at the place that
    holds rounds, which `Report.held` lists. Reserved rounds stay charged. Each ledger keeps the reason.
    """
    check_reason(reason)
    paths, custody = ledger_files(place), Custody.of(keys, witness)
    if run != "all" and (isinstance(run, bool) or not isinstance(run, int)):
        raise Problem(f"run: expected the row of a run, or 'all', got {run!r}")
    if run != "all" and Path(place).is_dir():
        raise Problem(f"run: row {run} differs from ledger to ledger: name the ledger's file, or say 'all'")
    found = [each for path in paths for each in _release(path, run, reason, custody)]
    if not found:
        raise Problem(
            f"no run in '{place}' holds rounds that it may give back: there is nothing to release"
            f"{_kept_runs(paths)}"
        )
    return found


def _kept_runs(paths: Sequence[Path]) -> str:
    """Return what becomes of unfinished runs that give nothing back; "" if there are none."""
    found, whole = [], ""
    for path in paths:
        ledger = read_ledger(path, only_read=True)
        try:
            state, silo = ledger.state(), ledger.identity.silo
            whole = whole if state.filter.by_round else f" in full under the filter '{state.filter_name}'"
            found += [f"run {run} ({state.claim_of(run).label}) of '{silo}'" for run in unfinished(state)]
        finally:
            ledger.close()
    if not found:
        return ""
    return (
        f"; unfinished runs ({len(found)}), such as {found[0]}, have reserved rounds, so they stay charged"
        f"{whole}; if they were interrupted, the same command with --out FOLDER resumes them"
    )


def _release(path: Path, run: int | str, reason: str, custody: Custody) -> list[Released]:
    """Release a run of a ledger, or all that hold rounds."""
    ledger = read_ledger(path, custody=custody)
    try:
        runs = list(held(ledger.state())) if isinstance(run, str) else [run]
        return [Released(path, ledger.identity, each, *release(ledger, each, reason)) for each in runs]
    finally:
        ledger.close()


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
