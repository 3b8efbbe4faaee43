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
from .sources.cells import listed, more, numbers_of
from .sources.columns import read_frame
from .sources.encode import encode, take
from .sources.table import Column, numbers

if TYPE_CHECKING:
    import pandas as pd

Rows = (
    Any  # a pandas DataFrame, a dict of columns, the path of a CSV or Parquet file, or an array [rows, ...]
)


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
        written = [column for column in columns if column.values is not None or column.dates is not None]
        rows = read_frame(Path(rows), {column.name: column.values or () for column in written})
    if isinstance(rows, Mapping):
        try:
            rows = pd.DataFrame(dict(rows))
        except ValueError as error:
            raise Problem(f"rows: these columns do not make a table: {error}") from error
    if isinstance(rows, pd.DataFrame):
        if columns:
            return _from_columns(rows, columns, other_columns)
        rows = _number_columns(rows, math.prod(shape))
    elif any(column != Column(column.name) for column in columns):
        names = ", ".join(f"'{column.name}'" for column in columns)
        kinds = "some of text" if any(c.values is not None for c in columns) else "with rules of their own"
        raise Problem(f"rows: the model was trained on columns, {kinds}: give a DataFrame with {names}")
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
        numbers_of(frame.iloc[:, place], f"column '{name}'", problems)
        for place, name in enumerate(frame.columns)
    ]
    for name, values in zip(frame.columns, arrays, strict=True):
        if len(empty := np.flatnonzero(np.isnan(values))) and frame[name].isna().any():
            problems.append(f"column '{name}' has no value in row {empty[0] + 1}" + more(empty))
    if problems:
        raise Problem(_all(problems))
    return np.stack(arrays, 1)


def _from_columns(frame: pd.DataFrame, columns: Sequence[Column], other: Sequence[str]) -> np.ndarray:
    """Take the columns of a source from a frame, by name, and make text into numbers."""

    present = [str(name) for name in frame.columns]
    names = [column.name for column in columns]
    problems = []
    repeated = sorted({name for name in present if name in names and present.count(name) > 1})
    missing = [name for name in names if name not in present]
    strange = [name for name in dict.fromkeys(present) if name not in names and name not in other]
    for what, wrong in (("repeated", repeated), ("missing", missing)):
        if wrong:
            problems.append(f"{what} column(s): {listed(wrong)}")
    if strange:
        hint = nearest(strange[0], missing or names) if missing else "remove what is no feature"
        problems.append(f"unknown column(s): {listed(strange)}; {hint}")
    if len(frame) == 0:
        problems.append("expected at least one row, got none")
    taken: dict[str, Any] = {}
    for column in columns:
        if column.name in missing or column.name in repeated:
            continue
        series, called = frame.iloc[:, present.index(column.name)], f"column '{column.name}'"
        taken[column.name] = take(series, column, called, problems)
        empty = np.flatnonzero(series.isna())
        if len(empty) and not column.fills:
            problems.append(f"{called} has no value in row {empty[0] + 1}" + more(empty))
    if problems:
        raise Problem(_all(problems))
    return encode(taken, columns)[1]


def _all(problems: Sequence[str]) -> str:
    return "rows: " + "; ".join(problems)
