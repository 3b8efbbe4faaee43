"""What a user should know about data that was loaded."""

from __future__ import annotations

from collections.abc import Sequence

from . import preprocess
from .preparation import Preparation
from .silo import Silo
from .sources.table import Table


def remarks_on(table: Table, preparation: Preparation, silos: Sequence[Silo]) -> tuple[str, ...]:
    """Return what looks like a mistake in the options, but may be meant."""
    notes = list(table.notes)
    if preparation.feature_range is not None:
        facts = (preparation.feature_range, table.columns, table.indicators)
        lost = preprocess.out_of_range(table.x, *facts)
        if lost:
            notes.append(
                f"feature_range: no value of {len(lost)} column(s), such as '{lost[0]}', lies within its"
                " bounds, so the column says nothing: the bounds are those of the raw numbers"
            )
    if few := [silo.name for silo in silos if len(silo.y) < 2]:
        notes.append(
            f"{len(few)} silo(s), such as '{few[0]}', have a single training example: hold out fewer (test)"
        )
    return tuple(notes)
