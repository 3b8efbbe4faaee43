"""Which columns of a frame are features, and how each becomes numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import Problem
from .cells import are_bools, listed
from .dates import is_date
from .encode import encode, take, width_of
from .ids import looks_like_id
from .rules import MEDIAN, Rules
from .table import Column

if TYPE_CHECKING:
    import pandas as pd

MOST_VALUES = 100  # of a text column without a vocabulary
SHOWN = 6  # columns that a sentence names


@dataclass(frozen=True, eq=False)
class Features:
    """The feature columns of a frame, those left out as `ids`, and what a user should know about them."""

    columns: tuple[Column, ...]
    taken: dict[str, Any]
    ids: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many columns a model gets."""
        return width_of(self.columns)

    @property
    def numbers(self) -> int:
        """How many of these are numbers; the others are 0 or 1."""
        return sum(column.values is None for column in self.columns)

    def encode(self, frame: pd.DataFrame) -> tuple[list[str], np.ndarray]:
        """Return the names of the columns that a model gets, and their numbers."""
        if all(column == Column(column.name) for column in self.columns):
            plain = frame.drop(columns=[name for name in frame.columns if str(name) in self.ids])
            with np.errstate(over="ignore"):
                return list(map(str, plain.columns)), plain.to_numpy(dtype=np.float32)
        return encode(self.taken, self.columns)


def plan_features(frame: pd.DataFrame, what: str, rules: Rules, problems: list[str]) -> Features:
    """Return the features of a frame, which messages call `what`; append what is wrong to the problems."""
    asked = {*rules.wanted, *(name for _, name in rules.names())}
    columns, taken, ids, constant, dated, strange = [], {}, [], [], [], []
    for place, label in enumerate(frame.columns):
        cells, name = frame.iloc[:, place], str(label)
        called = f"data: column '{name}' of '{what}'"
        if wrong := wrong_cells(cells, called):
            problems.append(wrong)
            continue
        if not rules.with_ids and name not in asked and looks_like_id(cells):
            ids.append(name)
            continue
        column = _column(cells, called, rules, problems)
        if column is None:
            continue
        columns.append(column)
        taken[name] = take(cells, column, called, problems)
        _check_missing(cells, called, column, rules, problems)
        if cells.nunique(dropna=False) == 1:
            constant.append(name)
        if name in rules.categories and set(taken[name]).isdisjoint(rules.categories[name]):
            strange.append(name)
        if name not in rules.categories and column.values is not None and is_date(cells):
            dated.append(name)
    names = {column.name for column in columns}
    added = [f"{column.name} (missing)" for column in columns if column.indicator]
    added += [f"{column.name} (other)" for column in columns if column.other]
    problems += [
        f"data: '{what}' has a column '{name}', and so would a rule call another one: rename it"
        for name in added
        if name in names
    ]
    found = [c for c in columns if c.values is not None and c.name not in rules.categories]
    notes = []
    if ids:
        notes.append(
            f"column(s) {listed(ids)} look like ids and were left out: name them in data.drop, or in"
            " data.keep to use them as features"
        )
    if constant:
        notes.append(f"column(s) {listed(constant)} have one value in all rows, so they say nothing")
    if dated:
        notes.append(f"column(s) {listed(dated)} hold dates as words: name them in data.dates")
    if strange:
        notes.append(
            f"data.categories: no value of column(s) {listed(strange)} is in the vocabulary: are the values"
            " written as in the data?"
        )
    return Features(tuple(columns), taken, tuple(ids), _not_covered(found, ids), tuple(notes))


def _not_covered(found: Sequence[Column], ids: Sequence[str]) -> tuple[str, ...]:
    """Return what was decided by looking at the data."""
    said = []
    if found:
        counts = ", ".join(f"'{column.name}' ({len(column.values or ())})" for column in found[:SHOWN])
        counts += f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        said.append(
            f"text columns became one column for each value found in the data: {counts}; so a model tells"
            " that some example has each of these values, however rare (data.categories avoids this)"
        )
    if ids:
        said.append(f"columns were left out because their values look like ids: {listed(ids)}")
    return tuple(said)


def _column(cells: pd.Series[Any], called: str, rules: Rules, problems: list[str]) -> Column | None:
    """Return how a column becomes numbers; append to the problems if it cannot."""
    import pandas as pd

    name = str(cells.name)
    if name in rules.dates:
        column = Column(name, dates=rules.dates[name])
    elif name in rules.categories:
        column = Column(name, rules.categories[name], other=rules.unknown == "other")
    elif pd.api.types.is_numeric_dtype(cells) or are_bools(cells):
        column = Column(name)
    else:
        try:
            values = _values_found(cells, called)
        except Problem as problem:
            problems.append(str(problem))
            return None
        column = Column(name, values)
    rule, value = rules.missing_in(name, column.values is None)
    if rule == "indicator":
        return replace(column, indicator=True, missing=value)
    if value is None:
        return column
    return _filled(column, value, name in rules.categories, problems)


def _filled(column: Column, value: float | str, public: bool, problems: list[str]) -> Column:
    """Return a column in which a value stands for missing ones."""
    import pandas as pd

    where = f"data.missing.{column.name}"
    if column.values is not None:
        word, known = str(value), column.values
        if word not in known and not public:
            column = replace(column, values=tuple(sorted((*known, word))))
        elif word not in known and not column.other:
            problems.append(f"{where}: '{word}' is not in data.categories.{column.name}")
        return replace(column, missing=word)
    if column.dates is not None and isinstance(value, str):
        value = float(column.dates.years(pd.Series([value], dtype=object))[0])
        if np.isnan(value):
            problems.append(f"{where}: expected a date, written as the column is, or a number of years")
            value = 0.0
    if isinstance(value, str):
        problems.append(f"{where}: expected a number, got '{value}'")
        value = 0.0
    return replace(column, missing=float(value))


def _check_missing(
    cells: pd.Series[Any], called: str, column: Column, rules: Rules, problems: list[str]
) -> None:
    """Append to the problems that a column has missing values, if nothing says what they become."""
    missing = np.flatnonzero(cells.isna())
    if not len(missing) or column.fills:
        return
    rule = rules.missing_in(column.name, column.values is None)[0]
    hint = "fill them in, delete these rows, or say in data.missing what they become"
    if rule == MEDIAN:
        hint = f"give its public median in data.medians.{column.name}"
    problems.append(
        f"{called} has {len(missing)} missing value(s), the first in row {missing[0] + 1}; {hint}"
    )


def _values_found(cells: pd.Series[Any], called: str) -> tuple[str, ...]:
    """Return the different values of a column of words; raise `Problem` if they make no vocabulary."""
    import pandas as pd

    known = cells.dropna()
    codes, different = pd.factorize(cells)
    odd = pd.to_numeric(pd.Series(different), errors="coerce").isna().to_numpy()
    strange = np.flatnonzero(np.append(odd, False)[codes])
    if 0 < len(strange) < len(known) / 2:
        raise Problem(
            f"{called} has {len(known) - len(strange)} numbers and {len(strange)} value(s) that are not"
            f" numbers, the first {str(cells.iloc[strange[0]])!r} in row {strange[0] + 1}; correct them, or"
            " leave the column out with data.drop"
        )
    if known.nunique() > MOST_VALUES:
        hint = "list the ones to use in data.categories, or leave it out with data.drop"
        hint = "they look like dates: name it in data.dates" if is_date(cells) else hint
        raise Problem(
            f"{called} is text with {known.nunique()} different values, more than the {MOST_VALUES} allowed;"
            f" {hint}"
        )
    return values_of(cells)


def values_of(column: pd.Series[Any]) -> tuple[str, ...]:
    """Return the different values of a text column, in the order in which `encode` lists them."""
    import pandas as pd

    values = tuple(str(value) for value in pd.Categorical(column).categories)
    if repeated := next((value for value in values if values.count(value) > 1), None):
        raise Problem(f"data: column '{column.name}' holds {repeated!r} both as text and as something else")
    return values


def wrong_cells(column: pd.Series[Any], called: str) -> str:
    """Return what is wrong with a column of cells that are neither numbers nor text; "" if nothing is."""
    import pandas as pd

    if column.dtype.kind == "c":
        return f"{called} holds complex numbers: give real and imaginary parts as two columns"
    if column.dtype != object:
        return ""
    several = (v for v in column if isinstance(v, complex) or not pd.api.types.is_scalar(v))
    held = next(several, None)
    if held is None:
        return ""
    kind = type(held).__name__
    return f"{called} holds cells of several values, such as a {kind}: make a column of each value"
