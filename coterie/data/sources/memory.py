"""Data that is already in memory: a pandas DataFrame, or a dict of arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import Problem, nearest
from . import columns, npz
from .rules import Rules
from .table import Table

ARRAYS = ("x", "y", "silo", "split", "person")


def read(
    source: Any,
    name: str,
    silo_column: str | None = None,
    target_column: str | Sequence[str] | None = None,
    drop: Sequence[str] = (),
    person_column: str | None = None,
    rules: Rules = Rules(),
) -> Table:
    """Take a DataFrame, a dict of columns (with `target_column`), or a dict of arrays (`ARRAYS`).

    Without a name the data has no ledgers, since they could not find it again.
    """
    named = (silo_column, target_column, drop, person_column, rules)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return columns.from_frame(source, name, name or "the frame", *named)
    if not isinstance(source, Mapping):
        raise Problem(
            "data.source: expected a name, a file, a folder, a pandas DataFrame or a dict of arrays, got a"
            f" {type(source).__name__}"
        )
    if target_column is not None or silo_column is not None or person_column is not None:
        import pandas as pd

        try:
            frame = pd.DataFrame(dict(source))
        except ValueError as error:
            raise Problem(f"data: these columns do not make a table: {error}") from error
        return columns.from_frame(frame, name, name or "the dict", *named)
    rules.check_unused(name or "the dict")
    return _arrays(source, name)


def _array(key: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise Problem(f"data: '{key}' must be an array with rows of equal length") from error


def _arrays(source: Mapping[Any, Any], name: str) -> Table:
    """Take the arrays of a dict, which means what it means in an .npz file."""
    unknown = [key for key in source if key not in ARRAYS and not str(key).startswith(npz.PART)]
    if unknown:
        raise Problem(
            "data: a dict of arrays has x, y, silo and perhaps split and person, not"
            f" '{unknown[0]}'; for columns with names of their own, name the target_column"
            f" ({nearest(str(unknown[0]), ARRAYS)})"
        )
    given = {key: value for key, value in source.items() if value is not None}
    if isinstance(given.get("x"), Mapping):  # several inputs
        parts = given.pop("x")
        given |= {f"{npz.PART}{name}": value for name, value in parts.items()}
    arrays = {key: _array(key, value) for key, value in given.items()}
    for key in ("y", "silo", "person"):
        if key in arrays and arrays[key].dtype.kind == "O":
            missing = [row for row, value in enumerate(arrays[key]) if value is None or value != value]
            if missing:
                raise Problem(f"data: '{key}' is missing in row {missing[0] + 1}: fill it in or drop the row")
            arrays[key] = arrays[key].astype(str)
    return npz.from_arrays(arrays, name, name or "the dict")
