"""The cells of one column as numbers or words, for the rows of a source and for new rows alike.

What is wrong with a column is appended to a list of problems, so that a file's problems are told together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .dates import ISO, Dates

if TYPE_CHECKING:
    import pandas as pd


def numbers_of(cells: pd.Series[Any], called: str, problems: list[str]) -> np.ndarray:
    """Return numbers as float32, NaN where they are missing; problems name the column as it is `called`."""
    import pandas as pd

    types, values = pd.api.types, cells
    if types.is_object_dtype(cells) or types.is_string_dtype(cells):
        values = pd.to_numeric(cells, errors="coerce")
    elif not types.is_numeric_dtype(cells):
        problems.append(f"{called} must hold numbers, got {cells.dtype}")
        return np.zeros(len(cells), np.float32)
    wrong = np.flatnonzero(values.isna() & ~cells.isna())
    if len(wrong):
        problems.append(
            f"{called} must hold numbers, got {str(cells.iloc[wrong[0]])!r} in row {wrong[0] + 1}"
            + more(wrong)
        )
    with np.errstate(over="ignore"):
        x = values.to_numpy(dtype=np.float32, na_value=np.nan)
    infinite = np.flatnonzero(np.isinf(x))
    if len(infinite):
        problems.append(f"{called} has an infinite value in row {infinite[0] + 1}" + more(infinite))
    return x


def dates_of(cells: pd.Series[Any], called: str, dates: Dates, problems: list[str]) -> np.ndarray:
    """Return dates as years in float32, NaN where they are missing."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells) and dates.format == ISO:
        problems.append(f"{called} must hold dates, got {cells.dtype}")
        return np.zeros(len(cells), np.float32)
    years = dates.years(cells)
    wrong = np.flatnonzero(np.isnan(years) & ~cells.isna())
    if len(wrong):
        how = "such as 2024-01-31" if dates.format == ISO else f"written as {dates.format}"
        hint = "; for another way to write them, give data.dates a format" if dates.format == ISO else ""
        problems.append(
            f"{called} must hold dates {how}, got {str(cells.iloc[wrong[0]])!r} in row"
            f" {wrong[0] + 1}{more(wrong)}{hint}"
        )
    return years.astype(np.float32)


def words_of(cells: pd.Series[Any]) -> np.ndarray:
    """Return the cells as text, None where they are missing; whole numbers are written without a point."""
    import pandas as pd

    if pd.api.types.is_float_dtype(cells):
        known = cells.dropna()
        if (known == known.round()).all():
            cells = cells.astype("Int64")
    codes, different = pd.factorize(cells)
    return np.array([*map(str, different), None], dtype=object)[codes]  # a missing cell has the code -1


def are_bools(cells: pd.Series[Any]) -> bool:
    """Return whether a column holds true and false only; with missing cells, pandas takes it for words."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(cells):
        return True
    if cells.dtype != object or not cells.isna().any():
        return False
    return pd.api.types.infer_dtype(cells, skipna=True) == "boolean"


def more(rows: Sequence[int] | np.ndarray) -> str:
    """Return how many rows there are besides the first, for a message."""
    return f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return names for a message, not all of them if there are many."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
