"""Claims of trainings that have not begun: made all at once, so that all of them fit or none begins.

The rows are kept in a file. If the process is killed, the trainings that had not begun take them up again
instead of being charged twice.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import Problem, reason
from ..privacy.ledger.claim import Claim
from .meter import Meter

Asked = Sequence[Sequence[Claim]]  # of each silo, the claims of one training


def claim_together(meters: Mapping[int, Meter], asked: Mapping[int, Asked], path: Path | None) -> None:
    """Claim the runs of all trainings in every silo's ledger, or raise `Spent` and claim none in any.

    Trainings are known by a number. Each meter then holds the rows of its training, which takes them up when
    it begins. `path` is where the rows are kept.
    """
    kept = {} if path is None else _read(path)
    for number, meter in meters.items():
        rows = kept.get(number, [])
        if rows and _usable(meter, asked[number], rows):
            meter.waiting = rows
    new = [number for number, meter in meters.items() if not meter.waiting]
    if new:
        silos = range(len(meters[new[0]].ledgers))
        together = meters[new[0]].another()
        together.claim([[c for number in new for c in asked[number][k]] for k in silos], partial=False)
        begin = 0
        for number in new:
            end = begin + len(asked[number][0])
            meters[number].waiting = [rows[begin:end] for rows in together.claims]
            begin = end
    if path is not None:
        _write(path, {number: meter.waiting for number, meter in meters.items()})


def cancel_waiting(meters: Iterable[Meter | None], path: Path | None) -> None:
    """Cancel the claims of trainings that did not begin."""
    for meter in meters:
        if meter is not None:
            cancel_unreserved(meter, meter.waiting)
    if path is not None:
        path.unlink(missing_ok=True)


def cancel_unreserved(meter: Meter, claims: Sequence[Sequence[int]]) -> None:
    """Cancel claims of a meter's silos that reserved nothing; what was reserved stays charged."""
    for ledger, rows in zip(meter.ledgers, claims, strict=True) if claims else ():
        state = ledger.state()
        for run in (run for run in rows if run in state.runs and not state.reserved(run)):
            with contextlib.suppress(Problem):  # it stays charged
                ledger.cancel(run)


def _write(path: Path, rows: Mapping[int, list[list[int]]]) -> None:
    """Keep the rows of trainings in a file, all of it or none."""
    beside = path.with_name(f"{path.name}.tmp")
    try:
        beside.write_text(json.dumps(rows))
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise Problem(f"cannot write '{path}': {reason(error)}; nothing is trained or charged") from error


def _read(path: Path) -> dict[int, list[list[int]]]:
    """Return the rows that a killed process left; none if the file is damaged."""
    try:
        return {int(number): rows for number, rows in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _usable(meter: Meter, asked: Asked, rows: list[list[int]]) -> bool:
    """Return whether the ledgers have these rows, for these runs, and no round was reserved."""
    try:
        meter.another().resume(asked, rows)
    except (Problem, ValueError, TypeError, LookupError):
        return False
    pairs = zip(meter.ledgers, rows, strict=True)
    return not any(ledger.state().reserved(run) for ledger, runs in pairs for run in runs)
