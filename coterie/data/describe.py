"""What the columns of a table look like, and the [data] table of a configuration that they suggest.

This reads the rows themselves, so it is for the owner of the data, on the owner's machine. What it returns
(counts and values) is not private: check a suggested [data] table before you show it to others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Problem, as_path, plainly
from .cut import DEFAULT_SILOS
from .sources.cells import are_bools, listed, words_of
from .sources.columns import read_frame
from .sources.dates import ISO, SINCE, Dates, format_of, is_date
from .sources.features import MOST_VALUES, wrong_cells
from .sources.ids import FEW_VALUES, looks_like_id

if TYPE_CHECKING:
    import pandas as pd

RARE = 10  # words of fewer people are not suggested for a vocabulary: they would point at them
MOST_SILOS = 1000
REPEATED = 0.9  # different ids per row, below which an id seems to have several rows
LIKELY = {
    "silo_column": ("silo", "hospital", "clinic", "site", "centre", "center", "school", "bank", "branch"),
    "person_column": (
        "patient",
        "person",
        "subject",
        "participant",
        "user",
        "customer",
        "pupil",
        "student",
        "mrn",
    ),
    "target_column": ("target", "label", "outcome", "class", "y", "died", "death", "readmitted", "ill"),
}
HOW = {"silo_column": "the silo", "person_column": "the person", "target_column": "the target"}


@dataclass(frozen=True)
class ColumnFacts:
    """One column: what it holds, how many different values and missing ones, and what it is used as."""

    name: str
    kind: str
    values: int
    missing: int
    use: str


@dataclass(frozen=True)
class Description:
    """What a table holds, and the keys of a [data] table that it suggests.

    `guesses` explains keys that were guessed, by key. `ranges` are rounded bounds of the numbers in the file;
    they are no suggestion, since bounds must be public. `remarks` are what to check.
    """

    source: str
    rows: int
    columns: tuple[ColumnFacts, ...]
    data: Mapping[str, Any]
    guesses: Mapping[str, str]
    ranges: Mapping[str, tuple[float, float]]
    remarks: tuple[str, ...]
    silo_sizes: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "source": self.source,
            "rows": self.rows,
            "columns": [vars(column) for column in self.columns],
            "data": dict(self.data),
            "guesses": dict(self.guesses),
            "ranges": {name: list(pair) for name, pair in self.ranges.items()},
            "remarks": list(self.remarks),
            "silo_sizes": dict(self.silo_sizes),
        }


@plainly
def describe(
    source: Any,
    *,
    silo_column: str | None = None,
    target_column: str | None = None,
    person_column: str | None = None,
) -> Description:
    """Describe the columns of a CSV or Parquet file, or of a DataFrame, and suggest a [data] table for it.

    Columns that you name are taken as you say; the others are guessed by their names and values.

    >>> import pandas as pd
    >>> rows = {"clinic": ["a", "b"] * 30, "age": range(60), "ill": ["yes", "no", "no"] * 20}
    >>> describe(pd.DataFrame(rows)).data
    {'source': 'in memory', 'silo_column': 'clinic', 'target_column': 'ill'}
    """
    named = {"silo_column": silo_column, "target_column": target_column, "person_column": person_column}
    frame, name = _frame(source)
    names = [str(label) for label in frame.columns]
    frame.columns = names
    for key, column in named.items():
        if column is not None and column not in names:
            raise Problem(f"data.{key}: '{name}' has no column '{column}'; it has {listed(names, 10)}")
    roles, guesses = _roles(frame, {key: column for key, column in named.items() if column is not None})
    draft = _Draft(frame, roles, _taken_for_missing(source, frame))
    draft.remarks += _not_found(frame, roles)
    return draft.description(name, guesses)


def _taken_for_missing(source: Any, frame: pd.DataFrame) -> dict[str, str]:
    """Return, for text columns of a CSV file, a word such as "None" that was taken for a missing value."""
    import pandas as pd

    words = [name for name in frame.columns if _kind(frame[name]) == "text" and frame[name].isna().any()]
    if not isinstance(source, str | Path) or Path(source).suffix.lower() != ".csv" or not words:
        return {}
    written = pd.read_csv(source, usecols=words, dtype=str, keep_default_na=False)
    empty = {name: written[name][frame[name].isna() & (written[name] != "")] for name in words}
    return {name: str(cells.mode()[0]) for name, cells in empty.items() if len(cells)}


def _frame(source: Any) -> tuple[pd.DataFrame, str]:
    """Return a table and its name."""
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        frame, name = source.copy(deep=False), "in memory"
    elif isinstance(source, str | Path):
        path = as_path("source", source)
        if path.suffix.lower() not in (".csv", ".parquet"):
            raise Problem(f"data.source: only CSV and Parquet files have columns to describe, not '{path}'")
        frame, name = read_frame(path), str(source)
        if words := [label for label in frame.columns if _kind(frame[label]) == "text"]:
            frame = read_frame(path, dict.fromkeys(words, ()))  # as a vocabulary would have them
    else:
        raise Problem(f"source: expected a file or a DataFrame, got a {type(source).__name__}")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise Problem(f"data: '{name}' has two columns named '{twice}': rename or drop one")
    if frame.empty:
        raise Problem(
            f"data: '{name}' has no rows" if len(frame.columns) else f"data: '{name}' has no columns"
        )
    return frame, name


def _tokens(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)]


def _roles(frame: pd.DataFrame, named: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the column of each key, and why those that nobody named were chosen."""
    roles, guesses = dict(named), {}
    for key, words in LIKELY.items():
        if key in roles:
            continue
        taken = set(roles.values())
        fitting = [c for c in frame.columns if c not in taken and _fits(frame[c], key, words)]
        if fitting:
            roles[key] = fitting[-1] if key == "target_column" else fitting[0]
            guesses[key] = f"guessed from its name: does it hold {HOW[key]} of each row?"
        elif key == "target_column":
            left = [c for c in frame.columns if c not in taken and frame[c].nunique() > 1]
            if left:
                roles[key], guesses[key] = left[-1], "guessed, because it is last: is it what to predict?"
    return roles, guesses


def _not_found(frame: pd.DataFrame, roles: Mapping[str, str]) -> list[str]:
    """Return what the owner should name: the column of silos, and ids that may be those of persons."""
    remarks = []
    if "silo_column" not in roles:
        remarks.append(
            f"no column was recognised as the silo, so rows are cut into {DEFAULT_SILOS} silos at random: if"
            " a column says where a row comes from, name it as the silo_column"
        )
    left = frame.drop(columns=list(roles.values()))
    several = [str(c) for c in left if looks_like_id(left[c]) and left[c].nunique() <= len(left) * REPEATED]
    if several and "person_column" not in roles:
        remarks.append(
            f"'{several[0]}' looks like ids, and the same one is in several rows: if it says whose rows are"
            " whose, name it as the person_column, so that all rows of a person are protected together"
        )
    return remarks


def _fits(cells: pd.Series[Any], key: str, words: Sequence[str]) -> bool:
    """Return whether a column may hold what a key stands for: by its name, and by how often values repeat."""
    if not set(_tokens(str(cells.name))) & set(words):
        return False
    different, rows = cells.nunique(), len(cells)
    if key == "silo_column":
        return bool(2 <= different <= min(MOST_SILOS, rows / 2))
    if key == "person_column":
        return bool(min(FEW_VALUES, rows / 8) < different < rows) and _kind(cells) in ("text", "whole number")
    return bool(different > 1)


class _Draft:
    """A description in the making."""

    def __init__(self, frame: pd.DataFrame, roles: Mapping[str, str], spelled: Mapping[str, str]) -> None:
        self.frame, self.roles, self.spelled = frame, roles, spelled
        self.drop: list[str] = []
        self.missing: dict[str, Any] = {}
        self.categories: dict[str, list[str]] = {}
        self.dates: dict[str, Any] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self.remarks: list[str] = []

    def description(self, name: str, guesses: Mapping[str, str]) -> Description:
        keys = {column: key for key, column in self.roles.items()}
        columns = tuple(
            self.role(cells, keys[label]) if label in keys else self.feature(cells)
            for label, cells in self.frame.items()
        )
        given = {
            "drop": self.drop,
            "missing": self.missing,
            "categories": self.categories,
            "dates": self.dates,
        }
        data = {"source": name, **self.roles, **{key: value for key, value in given.items() if value}}
        silo = self.roles.get("silo_column")
        sizes = {} if silo is None else self.frame[silo].value_counts(sort=False).to_dict()
        return Description(
            name, len(self.frame), columns, data, guesses, self.ranges, tuple(self.remarks),
            {str(key): int(value) for key, value in sizes.items()},
        )  # fmt: skip

    def role(self, cells: pd.Series[Any], key: str) -> ColumnFacts:
        """Describe a column that is no feature."""
        label, empty = str(cells.name), int(cells.isna().sum())
        if empty:
            self.remarks.append(f"'{label}' ({HOW[key]}) is missing in {empty} row(s): delete these rows")
        if key == "target_column" and 2 <= cells.nunique() <= 10:
            shares = cells.value_counts(normalize=True)
            if shares.iloc[-1] < 0.2:
                self.remarks.append(
                    f"only {shares.iloc[-1]:.1%} of the rows have '{label}' = {shares.index[-1]}: accuracy"
                    " says little about a model"
                )
        return ColumnFacts(label, _kind(cells), int(cells.nunique()), empty, key)

    def feature(self, cells: pd.Series[Any]) -> ColumnFacts:
        """Describe a column that may be a feature, and note what to do with it."""
        label, empty, different = str(cells.name), int(cells.isna().sum()), int(cells.nunique())
        kind, written = _kind(cells), format_of(cells)
        if wrong_cells(cells, ""):
            kind, use = "other", self.left_out(label, "neither numbers nor words")
        elif different <= 1 and not (different and empty):
            use = self.left_out(label, "the same in all rows")
        elif looks_like_id(cells) and written is None:
            use = self.left_out(label, "looks like ids")
        elif written is not None:
            kind, use = "date", "years"
            if written == "%d/%m/%Y" and is_date(cells, "%m/%d/%Y"):
                self.remarks.append(f"'{label}' may begin with the day or with the month: check its format")
            years = Dates(SINCE, written).years(cells)
            self.ranges[label] = float(np.floor(np.nanmin(years))), float(np.ceil(np.nanmax(years)))
            self.dates[label] = SINCE if written == ISO else {"since": SINCE, "format": written}
        elif kind == "text" and different > MOST_VALUES:
            use = self.left_out(label, f"more than {MOST_VALUES} words")
        elif kind == "text":
            use = self.words(cells)
        elif kind == "yes or no":
            use = "0 or 1"
        else:
            use = "number"
            self.ranges[label] = bounds_around(float(cells.min()), float(cells.max()))
        if label not in self.drop and empty:
            self.missing[label] = "indicator"
            if label in self.spelled:
                self.remarks.append(
                    f"'{label}' has cells with '{self.spelled[label]}', which count as missing: if it is a"
                    " value, list it in data.categories"
                )
            use += ", and whether it is missing"
        return ColumnFacts(label, kind, different, empty, use)

    def left_out(self, label: str, why: str) -> str:
        self.drop.append(label)
        return f"left out: {why}"

    def words(self, cells: pd.Series[Any]) -> str:
        """Note the vocabulary of a column: words that are not rare."""
        import pandas as pd

        label, words = str(cells.name), pd.Series(words_of(cells), index=cells.index, dtype=object)
        person, silo = self.roles.get("person_column"), self.roles.get("silo_column")
        counts = words.value_counts() if person is None else self.frame[person].groupby(words).nunique()
        if silo is not None and self.frame[silo].nunique() > 1:
            counts = counts[self.frame[silo].groupby(words).nunique().reindex(counts.index) > 1]
        common = sorted(str(word) for word in counts.index[counts >= RARE])
        rare = words.nunique() - len(common)
        few = f"fewer than {RARE} {'rows' if person is None else 'persons'}, or in one silo only"
        if not common:
            return self.left_out(label, f"every word is in {few}")
        self.categories[label] = common
        if rare:
            self.remarks.append(
                f"{rare} value(s) of '{label}' are in {few}: they are not listed, and become"
                f" '{label} (other)'"
            )
        return f"{len(common)} words" + (" and others" if rare else "")


def _kind(cells: pd.Series[Any]) -> str:
    import pandas as pd

    if are_bools(cells):
        return "yes or no"
    if not pd.api.types.is_numeric_dtype(cells):
        return "date" if pd.api.types.is_datetime64_any_dtype(cells) else "text"
    known = cells.dropna()
    whole = not pd.api.types.is_float_dtype(known) or bool((known == known.round()).all())
    return "whole number" if whole else "number"


def bounds_around(low: float, high: float) -> tuple[float, float]:
    """Return round bounds around numbers: 1, 2 or 5 times a power of ten, or 0.

    >>> bounds_around(18, 97), bounds_around(-0.3, 3.4), bounds_around(120, 180)
    ((0.0, 100.0), (-0.5, 5.0), (0.0, 200.0))
    """
    return -_beyond(-low) or 0.0, _beyond(high)


def _beyond(value: float) -> float:
    if not 0 < value < float("inf"):
        return 0.0
    power = 10.0 ** len(str(int(value))) if value >= 1 else 1.0
    steps = [power * step for step in (0.1, 0.2, 0.5, 1.0)] if value >= 1 else [0.1, 0.2, 0.5, 1.0]
    return next(step for step in steps if step >= value)
