"""CSV and Parquet files with a silo column and a target column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import Problem, nearest
from .table import Table

if TYPE_CHECKING:
    import pandas as pd


def read(path: Path, silo_column: str | None, target_column: str | None, drop: Sequence[str] = ()) -> Table:
    """Read a file of columns; text columns become one column a value."""
    import pandas as pd

    reader = pd.read_parquet if path.suffix.lower() == ".parquet" else pd.read_csv
    try:
        frame = reader(path)
    except Exception as error:  # the readers raise many kinds
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Problem(f"data: cannot read '{path}': {first}") from error
    return from_frame(frame, path.stem, path.name, silo_column, target_column, drop)


def from_frame(
    frame: pd.DataFrame,
    name: str,
    what: str,
    silo_column: str | None,
    target_column: str | None,
    drop: Sequence[str] = (),
) -> Table:
    """Make a table of a frame; `what` it is of is for messages."""
    import pandas as pd

    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise Problem(f"data: '{what}' has two columns named '{repeated[0]}': rename or drop one")
    if target_column is None:
        raise Problem(f"data.target_column: name the column of '{what}' that is to be predicted")
    asked = [("target_column", target_column), ("silo_column", silo_column), *(("drop", c) for c in drop)]
    for key, column in asked:
        if column is not None and column not in frame.columns:
            hint = nearest(column, map(str, frame.columns))
            if len(frame.columns) == 1:
                hint = "it has one column only: are its values separated by commas?"
            raise Problem(f"data.{key}: '{what}' has no column '{column}'; {hint}")
    named = [c for c in (target_column, silo_column) if c is not None]
    rest = frame.drop(columns=[*named, *drop])
    if rest.columns.empty:
        raise Problem(f"data: '{what}' has no feature column beside the target and the silo")
    text = [c for c in rest.columns if not pd.api.types.is_numeric_dtype(rest[c])]
    for column in (*named, *text):
        missing = np.flatnonzero(frame[column].isna())
        if len(missing):
            raise Problem(
                f"data: column '{column}' of '{what}' has {len(missing)} missing value(s), the"
                f" first in row {missing[0] + 1}: fill it in or drop the row"
            )
    for column in text:
        strange = np.flatnonzero(pd.to_numeric(rest[column], errors="coerce").isna())
        if 0 < len(strange) < len(rest) / 2:
            first = str(rest[column].iloc[strange[0]])
            raise Problem(
                f"data: column '{column}' of '{what}' has {len(rest) - len(strange)} numbers and"
                f" {len(strange)} value(s) that are none, the first {first!r} in row {strange[0] + 1}:"
                " mend it, or leave the column out with data.drop"
            )
        if rest[column].nunique() > 100:
            raise Problem(
                f"data: text column '{column}' of '{what}' has {rest[column].nunique()} different"
                " values (at most 100 make sense as features): encode it, or leave it out with data.drop"
            )
    encoded = pd.get_dummies(rest, columns=text, dtype=np.float32) if text else rest
    kept = len(rest.columns) - len(text)
    made = ", ".join(f"'{column}' ({rest[column].nunique()})" for column in text)
    notes = (f"text columns became one column for each value found in the data: {made}",) if text else ()
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused later
        x = encoded.to_numpy(dtype=np.float32)
    target = frame[target_column]
    y = target.to_numpy() if pd.api.types.is_numeric_dtype(target) else target.astype(str).to_numpy(str)
    return Table(
        name,
        x,
        y.astype(np.int64) if y.dtype.kind == "b" else y,
        None if silo_column is None else frame[silo_column].astype(str).to_numpy(str),
        columns=tuple(map(str, encoded.columns)),
        not_covered=notes,
        indicators=tuple(range(kept, len(encoded.columns))),
        float_target_is_number=False,
    )
