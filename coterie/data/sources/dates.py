"""Dates as numbers: years of 365.25 days since a day that is public.

Years are numbers around one to a hundred, which a model with clipped gradients learns from; days are not.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import shown

if TYPE_CHECKING:
    import pandas as pd

SINCE = "2000-01-01"
ISO = "ISO8601"
YEAR = 365.25 * 24 * 3600  # seconds


@dataclass(frozen=True)
class Dates:
    """A column of dates: written in a `format` (of strptime), and counted in years since a day."""

    since: str = SINCE
    format: str = ISO

    def years(self, cells: pd.Series[Any]) -> np.ndarray:
        """Return years since the day, in float64; NaN for what is missing or no date."""
        import pandas as pd

        if not pd.api.types.is_datetime64_any_dtype(cells):
            written = cells.map(str, na_action="ignore").str.strip()
            cells = pd.to_datetime(written, format=self.format, errors="coerce", utc=True)
        if cells.dt.tz is not None:
            cells = cells.dt.tz_convert("UTC").dt.tz_localize(None)
        return ((cells - pd.Timestamp(self.since)).dt.total_seconds() / YEAR).to_numpy(np.float64)


def dates_of(given: Any, problems: list[str]) -> dict[str, Dates]:
    """Return columns of dates: from a list, or a table of days or of tables with `since` and `format`."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = dict.fromkeys(given, SINCE)
    if not isinstance(given, Mapping):
        problems.append(
            f"data.dates: expected a list of columns, or a day for each column, got {shown(given)}"
        )
        return {}
    found = {}
    for name, value in given.items():
        where = f"data.dates.{name}"
        table = dict(value) if isinstance(value, Mapping) else {"since": value}
        if unknown := [key for key in table if key not in ("since", "format")]:
            problems.append(f"{where}: unknown key '{unknown[0]}'; known: format, since")
        since, how = str(table.get("since", SINCE)), str(table.get("format", ISO))
        try:
            datetime.date.fromisoformat(since)
        except ValueError:
            problems.append(f"{where}: expected a day such as {SINCE}, got {since!r}")
        if how != ISO and "%" not in how:
            problems.append(f"{where}: expected a format such as '%d.%m.%Y', got {how!r}")
        found[str(name)] = Dates(since, how)
    return found


FORMATS = {  # how dates are often written, and how that begins
    ISO: r"\d{4}-\d\d-\d\d",
    "%d.%m.%Y": r"\d?\d\.",
    "%Y/%m/%d": r"\d{4}/",
    "%d/%m/%Y": r"\d?\d/",
    "%m/%d/%Y": r"\d?\d/",
}


def is_date(cells: pd.Series[Any], written: str = ISO) -> bool:
    """Return whether all cells of a column are dates, written in this way."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(cells):
        return written == ISO
    if pd.api.types.is_numeric_dtype(cells):
        return False
    words = cells.dropna().map(str).str.strip()
    if not len(words) or not words.str.match(FORMATS[written]).all():
        return False
    return bool(pd.to_datetime(words, format=written, errors="coerce", utc=True).notna().all())


def format_of(cells: pd.Series[Any]) -> str | None:
    """Return how the dates of a column are written; None if it holds something else."""
    return next((written for written in FORMATS if is_date(cells, written)), None)


def written_dates(value: Any) -> Any:
    """Return columns of dates with days as text, which every kind of file can hold."""
    if isinstance(value, Mapping):
        return {name: written_dates(each) for name, each in value.items()}
    return value.isoformat() if isinstance(value, datetime.date) else value
