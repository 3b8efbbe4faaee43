"""Read and check new raw rows, from a file, a DataFrame or an array, in the form the source has.

Everything that is wrong with the rows is reported at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Problem, nearest
from .sources.columns import encode, read_frame
from .sources.table import Column, numbers

if TYPE_CHECKING:
    import pandas as pd

Rows = (
    Any  # a pandas DataFrame, a dict of columns, the path of a CSV or Parquet file, or an array [rows, ...]
)
SHOWN = 5  # names or values in one message


def read_rows(
    rows: Rows,
    shape: tuple[int, ...],
    columns: Sequence[Column] = (),
    other_columns: Sequence[str] = (),
    uint8: bool = False,
) -> np.ndarray:
    """Return raw rows as the source holds them: `[rows, *shape]`, in float32 or bytes."""
    import pandas as pd

    if isinstance(rows, str | Path):
        text = [column.name for column in columns if column.values is not None]
        rows = read_frame(Path(rows), text=text)
    if isinstance(rows, Mapping):
        try:
            rows = pd.DataFrame(dict(rows))
        except ValueError as error:
            raise Problem(f"rows: these columns do not make a table: {error}") from error
    if isinstance(rows, pd.DataFrame):
        if columns:
            return _from_columns(rows, columns, other_columns)
        rows = _number_columns(rows, math.prod(shape))
    elif any(column.values is not None for column in columns):
        names = ", ".join(f"'{column.name}'" for column in columns)
        raise Problem(f"rows: the model was trained on columns, some of text: give a DataFrame with {names}")
    x = _reshaped(numbers(rows, "new rows"), shape)
    bad = ~np.isfinite(x)
    if bad.any():
        raise Problem(
            f"rows: {int(bad.sum())} value(s) are missing or infinite, the first in row"
            f" {int(np.flatnonzero(bad.reshape(len(x), -1).any(1))[0]) + 1}"
        )
    return _to_bytes(x) if uint8 else x


def _reshaped(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the rows in the source's shape."""
    if x.ndim < 2 or x.shape[1:] not in (shape, (math.prod(shape),)):
        expected = ", ".join(map(str, ("rows", *shape)))
        flat = "" if len(shape) == 1 else f" or (rows, {math.prod(shape)})"
        raise Problem(f"rows: expected an array of shape ({expected}){flat}, got {x.shape}")
    if len(x) == 0:
        raise Problem("rows: expected at least one row, got none")
    return x.reshape(len(x), *shape)


def _to_bytes(x: np.ndarray) -> np.ndarray:
    if x.min() < 0 or x.max() > 255 or (x != np.round(x)).any():
        raise Problem(
            "rows: the model was trained on bytes: expected whole numbers from 0 to 255, got values from"
            f" {x.min():g} to {x.max():g}"
        )
    return x.astype(np.uint8)


def _number_columns(frame: pd.DataFrame, count: int) -> np.ndarray:
    """Take the columns of a frame as the numbers of flat rows, in order."""
    if len(frame.columns) != count:
        raise Problem(
            f"rows: the model was trained on arrays of {count} numbers: expected as many columns, in the"
            f" order of the flat array, got {len(frame.columns)}"
        )
    problems: list[str] = []
    arrays = [
        _numbers_of(frame.iloc[:, place], str(name), problems) for place, name in enumerate(frame.columns)
    ]
    if problems:
        raise Problem(_all(problems))
    return np.stack(arrays, 1)


def _from_columns(frame: pd.DataFrame, columns: Sequence[Column], other: Sequence[str]) -> np.ndarray:
    """Take the columns of a source from a frame, by name, and make text into numbers."""
    import pandas as pd

    present = [str(name) for name in frame.columns]
    names = [column.name for column in columns]
    problems = []
    repeated = sorted({name for name in present if name in names and present.count(name) > 1})
    missing = [name for name in names if name not in present]
    strange = [name for name in dict.fromkeys(present) if name not in names and name not in other]
    for what, listed in (("repeated", repeated), ("missing", missing)):
        if listed:
            problems.append(f"{what} column(s): {_listed(listed)}")
    if strange:
        hint = nearest(strange[0], missing or names) if missing else "remove what is no feature"
        problems.append(f"unknown column(s): {_listed(strange)}; {hint}")
    if len(frame) == 0:
        problems.append("expected at least one row, got none")
    taken: dict[str, Any] = {}
    for column in columns:
        if column.name in missing or column.name in repeated:
            continue
        series = frame.iloc[:, present.index(column.name)]
        if column.values is None:
            taken[column.name] = _numbers_of(series, column.name, problems)
        else:
            taken[column.name] = _values_of(series, column, problems)
    if problems:
        raise Problem(_all(problems))
    text = {column.name: list(column.values) for column in columns if column.values is not None}
    for name, values in text.items():
        taken[name] = pd.Categorical(taken[name], categories=values)
    return encode(pd.DataFrame(taken), list(text))[1]


def _numbers_of(series: pd.Series[Any], name: str, problems: list[str]) -> np.ndarray:
    """Return a column of numbers; add to the problems what is none."""
    import pandas as pd

    types, values = pd.api.types, series
    if types.is_object_dtype(series) or types.is_string_dtype(series):
        values = pd.to_numeric(series, errors="coerce")
    elif not types.is_numeric_dtype(series):
        problems.append(f"column '{name}' must hold numbers, got {series.dtype}")
        return np.zeros(len(series), np.float32)
    wrong = np.flatnonzero(values.isna() & ~series.isna())
    if len(wrong):
        problems.append(
            f"column '{name}' must hold numbers, got {str(series.iloc[wrong[0]])!r} in row {wrong[0] + 1}"
            + _more(wrong)
        )
    missing = np.flatnonzero(series.isna())
    if len(missing):
        problems.append(f"column '{name}' has no value in row {missing[0] + 1}" + _more(missing))
    with np.errstate(over="ignore"):
        x = values.to_numpy(dtype=np.float32, na_value=np.nan)
    infinite = np.flatnonzero(np.isinf(x))
    if len(infinite):
        problems.append(f"column '{name}' has an infinite value in row {infinite[0] + 1}" + _more(infinite))
    return x


def _values_of(series: pd.Series[Any], column: Column, problems: list[str]) -> list[str]:
    """Return a column of text; add to the problems values that the training data did not have."""
    assert column.values is not None
    missing = np.flatnonzero(series.isna())
    if len(missing):
        problems.append(f"column '{column.name}' has no value in row {missing[0] + 1}" + _more(missing))
    values = [str(value) for value in series]
    known = {*column.values, *(values[row] for row in missing)}
    unknown = [row for row, value in enumerate(values) if value not in known]
    if unknown:
        problems.append(
            f"column '{column.name}' has the unknown value {values[unknown[0]]!r} in row {unknown[0] + 1}"
            f"{_more(unknown)}; known: {_listed(column.values)}"
        )
    return values


def _more(rows: Sequence[int] | np.ndarray) -> str:
    return f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _all(problems: Sequence[str]) -> str:
    return "rows: " + "; ".join(problems)
