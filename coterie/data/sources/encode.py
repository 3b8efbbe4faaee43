"""Columns of numbers, dates and words as one array of float32, for training rows and new rows alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .cells import dates_of, listed, more, numbers_of, words_of
from .table import Column

if TYPE_CHECKING:
    import pandas as pd

Cells = Mapping[str, Any]  # of each column: float32 with NaN, or words with None


def take(cells: pd.Series[Any], column: Column, called: str, problems: list[str]) -> Any:
    """Return the cells of a column as numbers or words; append to the problems what is neither."""
    if column.dates is not None:
        return dates_of(cells, called, column.dates, problems)
    if column.values is None:
        return numbers_of(cells, called, problems)
    words = words_of(cells)
    unknown = np.flatnonzero(_unknown(words, column.values))
    if len(unknown) and not column.other:
        problems.append(
            f"{called} has the unknown value {words[unknown[0]]!r} in row {unknown[0] + 1}{more(unknown)};"
            f" known: {listed(column.values)}"
        )
    return words


def _unknown(words: np.ndarray, values: Sequence[str]) -> np.ndarray:
    """Return which words are not among the values."""
    import pandas as pd

    cells = pd.Series(words, dtype=object)
    unknown: np.ndarray = (~cells.isin(list(values)) & cells.notna()).to_numpy()
    return unknown


def encode(taken: Cells, columns: Sequence[Column]) -> tuple[list[str], np.ndarray]:
    """Return the names of the encoded columns, and their numbers.

    Numbers and dates come first, then a column of 0 and 1 per value of each column of words. Last come the
    columns for words outside a vocabulary, and those for missing values. Which columns there are follows from
    the `columns` alone.
    """
    import pandas as pd

    ready: dict[str, Any] = {}
    extra: dict[str, np.ndarray] = {}
    for column in columns:
        cells = taken[column.name]
        if column.values is None:
            missing = np.isnan(cells)
            fill = 0.0 if column.missing is None else float(column.missing)
            ready[column.name] = np.where(missing, np.float32(fill), cells) if column.fills else cells
        else:
            missing = pd.isna(cells)
            if column.missing is not None:
                cells = np.where(missing, str(column.missing), cells)
            unknown = _unknown(cells, column.values)
            known = pd.Series(np.where(unknown, None, cells), dtype=object)
            ready[column.name] = known.astype(pd.CategoricalDtype(list(column.values)))
            if column.other:
                extra[f"{column.name} (other)"] = unknown
        if column.indicator:
            extra[f"{column.name} (missing)"] = missing
    words = [column.name for column in columns if column.values is not None]
    frame = pd.DataFrame(ready)
    encoded = pd.get_dummies(frame, columns=words, dtype=np.float32) if words else frame
    x = encoded.to_numpy(dtype=np.float32)
    if extra:
        x = np.concatenate([x, np.stack(list(extra.values()), 1).astype(np.float32)], 1)
    return [*map(str, encoded.columns), *extra], x


def width_of(columns: Sequence[Column]) -> int:
    """Return how many columns `encode` makes."""
    return sum(
        (1 if column.values is None else len(column.values)) + column.other + column.indicator
        for column in columns
    )
