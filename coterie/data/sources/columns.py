"""CSV and Parquet files, with a target column and optionally a silo column and a person column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import Problem, nearest, reason
from .limits import check_file, check_size, why
from .table import Column, Table

if TYPE_CHECKING:
    import pandas as pd

EXCEL = (".xlsx", ".xls", ".xlsm", ".ods")


def read_frame(path: Path, text: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV or Parquet file; `text` are columns of a CSV to take as they are written."""
    import pandas as pd

    if path.suffix.lower() in EXCEL:
        raise Problem(
            f"data: '{path}' is an Excel file: save it as CSV, or read it with pandas.read_excel and give the"
            " DataFrame"
        )
    try:
        if path.suffix.lower() == ".parquet":
            _check_parquet(path)
            return pd.read_parquet(path)
        check_file(path)
        return pd.read_csv(path, dtype=dict.fromkeys(text, str))
    except Problem:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"data: cannot read '{path}': {reason(error)}") from error
    except pd.errors.EmptyDataError as error:
        raise Problem(f"data: cannot read '{path}': it is empty") from error
    except Exception as error:  # the readers raise many kinds
        raise Problem(f"data: cannot read '{path}': {why(error)}") from error


def _check_parquet(path: Path) -> None:
    """Raise `Problem` if a file has more cells than fit: repeated values take no room in it."""
    from pyarrow.parquet import read_metadata

    about = read_metadata(path)
    check_size(8 * about.num_rows * about.num_columns, f"'{path}'")


def encode(frame: pd.DataFrame, text: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Make every text column one column of 0 and 1 per value, after the others; names and float32 numbers."""
    import pandas as pd

    encoded = pd.get_dummies(frame, columns=list(text), dtype=np.float32) if text else frame
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused later
        return list(map(str, encoded.columns)), encoded.to_numpy(dtype=np.float32)


def values_of(column: pd.Series[Any]) -> tuple[str, ...]:
    """Return the different values of a text column, in the order in which `encode` lists them."""
    import pandas as pd

    values = tuple(str(value) for value in pd.Categorical(column).categories)
    if repeated := next((value for value in values if values.count(value) > 1), None):
        raise Problem(f"data: column '{column.name}' holds {repeated!r} both as text and as something else")
    return values


def read(
    path: Path,
    silo_column: str | None,
    target_column: str | None,
    drop: Sequence[str] = (),
    person_column: str | None = None,
) -> Table:
    """Read a file of columns; a text column becomes one column per value."""
    names = (silo_column, target_column, drop, person_column)
    return from_frame(read_frame(path), path.stem, path.name, *names)


def _check_cells(column: pd.Series[Any], what: str) -> None:
    """Raise `Problem` for a column of cells that are neither numbers nor text."""
    if column.dtype.kind == "c":
        raise Problem(
            f"data: column '{column.name}' of '{what}' holds complex numbers: give real and imaginary parts"
            " as two columns"
        )
    held = (
        next((value for value in column if not _is_scalar(value)), None) if column.dtype == object else None
    )
    if held is not None:
        raise Problem(
            f"data: column '{column.name}' of '{what}' holds cells of several values, such as a"
            f" {type(held).__name__}: make a column of each value"
        )


def _is_scalar(value: Any) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_scalar(value)) and not isinstance(value, complex)


def from_frame(
    frame: pd.DataFrame,
    name: str,
    what: str,
    silo_column: str | None,
    target_column: str | None,
    drop: Sequence[str] = (),
    person_column: str | None = None,
) -> Table:
    """Make a table from a frame; messages call the frame `what`."""
    import pandas as pd

    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise Problem(f"data: '{what}' has two columns named '{repeated[0]}': rename or drop one")
    if target_column is None:
        raise Problem(f"data.target_column: name the column of '{what}' to predict")
    keys = {"target_column": target_column, "silo_column": silo_column, "person_column": person_column}
    roles = {column: key for key, column in keys.items() if column is not None}
    for key, column in [*keys.items(), *(("drop", c) for c in drop)]:
        if column is not None and column not in frame.columns:
            hint = nearest(column, map(str, frame.columns))
            if len(frame.columns) == 1:
                hint = "it has only one column: are its values separated by commas?"
            raise Problem(f"data.{key}: '{what}' has no column '{column}'; {hint}")
    if silo_column == target_column:
        raise Problem(f"data.silo_column: '{silo_column}' is the column to predict too: name two columns")
    if person_column is not None and person_column in (target_column, silo_column):
        what_else = "column to predict" if person_column == target_column else "silo_column"
        raise Problem(f"data.person_column: '{person_column}' is the {what_else} too: name two columns")
    named = list(roles)
    for column in drop:
        if column in roles:
            raise Problem(
                f"data.drop: '{column}' is the {roles[column]}, which is no feature anyway: leave it out here"
            )
    rest = frame.drop(columns=[*named, *drop])
    if rest.columns.empty:
        besides = "the target, the silo and the person" if person_column else "the target and the silo"
        raise Problem(f"data: '{what}' has no feature column besides {besides}")
    text = [c for c in rest.columns if not pd.api.types.is_numeric_dtype(rest[c])]
    for column in rest.columns:
        _check_cells(rest[column], what)
    for column in (*named, *text):
        missing = np.flatnonzero(frame[column].isna())
        if len(missing):
            raise Problem(
                f"data: column '{column}' of '{what}' has {len(missing)} missing value(s), the"
                f" first in row {missing[0] + 1}; fill them in or delete these rows"
            )
    for column in text:
        strange = np.flatnonzero(pd.to_numeric(rest[column], errors="coerce").isna())
        if 0 < len(strange) < len(rest) / 2:
            first = str(rest[column].iloc[strange[0]])
            raise Problem(
                f"data: column '{column}' of '{what}' has {len(rest) - len(strange)} numbers and"
                f" {len(strange)} value(s) that are not numbers, the first {first!r} in row"
                f" {strange[0] + 1}; correct them, or leave the column out with data.drop"
            )
        if rest[column].nunique() > 100:
            raise Problem(
                f"data: text column '{column}' of '{what}' has {rest[column].nunique()} different"
                " values, more than the 100 allowed; encode it yourself, or leave it out with data.drop"
            )
    wide = len(rest.columns) - len(text) + sum(rest[column].nunique() for column in text)
    check_size(4 * len(rest) * wide, f"'{what}' with a column for each value of its text columns")
    encoded, x = encode(rest, text)
    kept = len(rest.columns) - len(text)
    counts = ", ".join(f"'{column}' ({rest[column].nunique()})" for column in text)
    notes = (f"text columns became one column for each value found in the data: {counts}",) if text else ()
    target = frame[target_column]
    y = target.to_numpy() if pd.api.types.is_numeric_dtype(target) else target.astype(str).to_numpy(str)
    return Table(
        name,
        x,
        y.astype(np.int64) if y.dtype.kind == "b" else y,
        None if silo_column is None else frame[silo_column].astype(str).to_numpy(str),
        person=None if person_column is None else frame[person_column].astype(str).to_numpy(str),
        columns=tuple(encoded),
        not_covered=notes,
        indicators=tuple(range(kept, len(encoded))),
        float_target_is_number=False,
        raw_columns=tuple(Column(str(c), values_of(rest[c]) if c in text else None) for c in rest.columns),
        other_columns=tuple(map(str, (*named, *drop))),
        target=str(target_column),
        what=what,
    )
