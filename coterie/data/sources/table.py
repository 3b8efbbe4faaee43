"""Rows as a source delivers them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..._inputs import Input
from ...errors import Problem
from .dates import Dates


@dataclass(frozen=True)
class Column:
    """A feature column of a source: of numbers, of words with their values in order, or of `dates`.

    With `other`, words that are not among the values have a column of their own; else they are refused.
    Missing cells are refused unless they become the value `missing`, or have a column of their own
    (`indicator`) and become 0 here.
    """

    name: str
    values: tuple[str, ...] | None = None
    other: bool = False
    missing: float | str | None = None
    indicator: bool = False
    dates: Dates | None = None

    @property
    def fills(self) -> bool:
        """Whether cells may be missing."""
        return self.indicator or self.missing is not None


def column_to_json(column: Column) -> dict[str, Any]:
    """Return a column as plain data, which `column_from_json` reads back."""
    more = {key: getattr(column, key) for key in ("other", "missing", "indicator", "dates")}
    if column.dates is not None:
        more["dates"] = {"since": column.dates.since, "format": column.dates.format}
    return {"name": column.name, "values": column.values} | {
        k: v for k, v in more.items() if v not in (None, False)
    }


def column_from_json(content: Mapping[str, Any]) -> Column:
    """Read what `column_to_json` returns; raise ValueError, TypeError or KeyError if it is something else."""
    values, missing, dates = content["values"], content.get("missing"), content.get("dates")
    if values is None and missing is not None and not math.isfinite(float(missing)):
        raise ValueError(f"missing: expected a finite number, got {missing}")
    if dates is not None:
        datetime.date.fromisoformat(dates["since"])
    return Column(
        str(content["name"]),
        None if values is None else tuple(map(str, values)),
        other=bool(content.get("other", False)),
        missing=missing if missing is None or values is None else str(missing),
        indicator=bool(content.get("indicator", False)),
        dates=None if dates is None else Dates(str(dates["since"]), str(dates["format"])),
    )


@dataclass(frozen=True, eq=False)
class Table:
    """Features, targets and, if the source has them, silos, persons and a split (1 = test).

    `person` says whose row each is.

    `raw_columns` are the feature columns of the source before text became numbers, `other_columns` those
    that are no features. `indicators` are the columns that are 0 or 1 because they came from text.
    `float_target_is_number` is False if whole floats may be labels, as in a CSV column.
    `notes` say what a user should know about the columns.
    `target` is the column that rows are labelled by. `source` is the name in ledgers if it is not `name`: the
    file's own, whatever path led to it. `always_cut` is true for data whose older ledgers are named after the
    cut even if none was asked for. A table without a name has no ledgers; messages then say `what` it is.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    silo: np.ndarray | None = None
    split: np.ndarray | None = None
    person: np.ndarray | None = None
    columns: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    indicators: tuple[int, ...] = ()
    float_target_is_number: bool = True
    raw_columns: tuple[Column, ...] = ()
    other_columns: tuple[str, ...] = ()
    always_cut: bool = False
    target: str = ""
    targets: tuple[str, ...] = ()
    source: str = ""
    what: str = ""
    notes: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()

    @property
    def called(self) -> str:
        """What messages call the data: its name, or `what` it is."""
        return self.name or self.what or "the data"


def own_name(path: Path) -> str:
    """Return the name of a file without its ending, or of a folder: its own, not that of a link to it."""
    path = path.resolve()
    return path.name if path.is_dir() else path.stem


def numbers(values: Any, what: str) -> np.ndarray:
    """Return values as float32; those that are too large become infinite."""
    try:
        if np.iscomplexobj(values):
            raise Problem(f"data: {what} are complex numbers: give real and imaginary parts as two columns")
        with np.errstate(over="ignore"):
            return np.asarray(values, dtype=np.float32)
    except Problem:
        raise
    except (TypeError, ValueError) as error:
        raise Problem(f"data: {what} must be numbers in rows of equal length: {error}") from error


def join(parts: Sequence[np.ndarray], place: Path) -> np.ndarray:
    """Return the examples of several parts of a source as one array."""
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        raise Problem(f"data: the examples of '{place}' differ in shape: {', '.join(map(str, shapes))}")
    return np.concatenate(parts)


def some_rows(table: Table, count: int, seed: int) -> Table:
    """Return `count` random rows, in their original order."""
    if not 1 <= count <= len(table.y):
        raise Problem(f"data.rows: expected a whole number from 1 to {len(table.y)}, got {count}")
    kept = np.sort(np.random.default_rng([seed, 0x7085]).permutation(len(table.y))[:count])
    silo = None if table.silo is None else table.silo[kept]
    split = None if table.split is None else table.split[kept]
    person = None if table.person is None else table.person[kept]
    return replace(table, x=table.x[kept], y=table.y[kept], silo=silo, split=split, person=person)
