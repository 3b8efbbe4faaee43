"""Measure columns in one call, with the folder of the run that paid for it."""

from __future__ import annotations

from pathlib import Path

from ..data.federation import Federation
from ..errors import as_path, plainly
from ..experiment.column_measures import ColumnMeasures, measure
from ..experiment.listener import Listener
from ..privacy.budget import Privacy
from .folder import Folder
from .views import Views


@plainly
def measure_columns(
    federation: Federation,
    privacy: Privacy,
    *,
    ledger: str | Path | None = None,
    keys: str | Path | None = None,
    witness: str | Path | None = None,
    out: str | Path | None = None,
    listener: Listener | None = None,
) -> ColumnMeasures:
    """Measure the mean and the deviation of every column of numbers, with noise, and charge for it.

    The columns need public bounds (`feature_range`), and may have missing values. Each silo releases one
    noisy sum over its training examples, whose epsilon is that of `privacy`. With `ledger`, it is charged
    like a training. `standardize` of the result is for `load` and [data]. `out` is a folder for statements.
    """
    folder = _path("out", out)
    store = None if folder is None else Folder(folder)
    places = (_path("ledger", ledger), _path("keys", keys), _path("witness", witness))
    measured = measure(federation, privacy, places, listener, store)
    measured.result.views = Views()
    return measured


def _path(name: str, value: str | Path | None) -> Path | None:
    return None if value is None else as_path(name, value)
