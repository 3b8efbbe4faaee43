"""CSV and Parquet files, with a target column and optionally a silo column and a person column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import Problem, nearest, reason
from .cells import listed
from .features import plan_features
from .limits import check_file, check_size, why
from .rules import MISSING_WORDS, Rules
from .table import Table

if TYPE_CHECKING:
    import pandas as pd

EXCEL = (".xlsx", ".xls", ".xlsm", ".ods")


def read_frame(path: Path, text: Mapping[str, Collection[str]] | None = None) -> pd.DataFrame:
    """Read a CSV or Parquet file.

    `text` are columns of a CSV to take as they are written, each with its vocabulary: words of it, such as
    "None", are then no missing values.
    """
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
        text = dict(text or {})
        kinds = dict.fromkeys(text, str)
        if not any(word in words for words in text.values() for word in MISSING_WORDS):
            return pd.read_csv(path, dtype=kinds)
        empty: dict[str, Sequence[str]] = dict.fromkeys(pd.read_csv(path, nrows=0).columns, MISSING_WORDS)
        empty |= {name: [w for w in MISSING_WORDS if w not in words] for name, words in text.items()}
        return pd.read_csv(path, dtype=kinds, na_values=empty, keep_default_na=False)
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


def read(
    path: Path,
    silo_column: str | None,
    target_column: str | Sequence[str] | None,
    drop: Sequence[str] = (),
    person_column: str | None = None,
    rules: Rules = Rules(),
) -> Table:
    """Read a file of columns; a text column becomes one column per value."""
    frame = read_frame(path, rules.as_written)
    named = (silo_column, target_column, drop, person_column)
    return from_frame(frame, path.stem, path.name, *named, rules)


def from_frame(
    frame: pd.DataFrame,
    name: str,
    what: str,
    silo_column: str | None,
    target_column: str | Sequence[str] | None,
    drop: Sequence[str] = (),
    person_column: str | None = None,
    rules: Rules = Rules(),
) -> Table:
    """Make a table from a frame; messages call the frame `what`, and name all its problems at once."""
    import pandas as pd

    first, *further = _listed(target_column)
    keys = {"target_column": first, "silo_column": silo_column, "person_column": person_column}
    roles = {column: key for key, column in keys.items() if column is not None}
    problems = _names_of(frame, what, keys, drop, rules)
    problems += _further_problems(frame, what, further, {*roles, *drop})
    roles |= dict.fromkeys(further, "target_column")
    if first is None or set(roles) - set(frame.columns) or not frame.columns.is_unique:
        _refuse(problems, what)
    rest = frame.drop(columns=[column for column in (*roles, *drop) if column in frame.columns])
    if rest.columns.empty:
        besides = "the target, the silo and the person" if person_column else "the target and the silo"
        problems.append(f"data: '{what}' has no feature column besides {besides}")
    for column in roles:
        missing = np.flatnonzero(frame[column].isna())
        if len(missing):
            problems.append(
                f"data: column '{column}' of '{what}' has {len(missing)} missing value(s), the first in row"
                f" {missing[0] + 1}; fill them in or delete these rows"
            )
    features = plan_features(rest, what, rules, problems)
    if not features.columns and features.ids:
        problems.append(
            f"data: '{what}' has no feature column: {listed(features.ids)} look like ids; to use one as a"
            " feature, name it in data.keep"
        )
    _refuse(problems, what)
    size = 4 * len(rest) * features.width
    check_size(size, f"'{what}' with a column for each value of its text columns")
    encoded, x = features.encode(rest)
    parts = [frame[column] for column in (first, *further)]
    numeric = all(pd.api.types.is_numeric_dtype(part) for part in parts)
    arrays = [part.to_numpy() if numeric else part.astype(str).to_numpy(str) for part in parts]
    y = np.stack(arrays, 1) if further else arrays[0]
    return Table(
        name,
        x,
        y.astype(np.int64) if y.dtype.kind == "b" else y,
        None if silo_column is None else frame[silo_column].astype(str).to_numpy(str),
        person=None if person_column is None else frame[person_column].astype(str).to_numpy(str),
        columns=tuple(encoded),
        not_covered=features.not_covered,
        indicators=tuple(range(features.numbers, len(encoded))),
        float_target_is_number=False,
        raw_columns=features.columns,
        other_columns=tuple(map(str, (*roles, *drop, *features.ids))),
        target=", ".join(map(str, (first, *further))),
        targets=tuple(map(str, (first, *further))) if further else (),
        what=what,
        notes=features.notes,
    )


def _listed(named: str | Sequence[str] | None) -> list[Any]:
    """Return the columns to predict: one, several, or None if none is named."""
    return [named] if named is None or isinstance(named, str) else list(named) or [None]


def _further_problems(frame: pd.DataFrame, what: str, further: Sequence[str], others: set[str]) -> list[str]:
    """Return what is wrong with the second and later columns to predict."""
    known = [str(name) for name in frame.columns]
    problems = [
        f"data.target_column: '{what}' has no column '{name}'; {nearest(name, known)}"
        for name in further
        if name not in frame.columns
    ]
    return problems + [
        f"data.target_column: '{name}' is named twice, or has another role: name it once"
        for place, name in enumerate(further)
        if name in others or name in further[:place]
    ]


def _names_of(
    frame: pd.DataFrame, what: str, keys: Mapping[str, str | None], drop: Sequence[str], rules: Rules
) -> list[str]:
    """Return what is wrong with the columns that a [data] table names."""
    problems = [
        f"data: '{what}' has two columns named '{name}': rename or drop one"
        for name in frame.columns[frame.columns.duplicated()].unique()
    ]
    if keys["target_column"] is None:
        problems.append(f"data.target_column: name the column of '{what}' to predict")
    known = [str(name) for name in frame.columns]
    wanted = [*keys.items(), *(("drop", name) for name in drop)]
    lacking = [(key, name) for key, name in wanted if name is not None and name not in frame.columns]
    lacking += [(key, name) for key, name in rules.names() if name not in known]
    for key, name in lacking:
        hint = nearest(name, known)
        if len(known) == 1:
            hint = "it has only one column: are its values separated by commas?"
        problems.append(f"data.{key}: '{what}' has no column '{name}'; {hint}")
    target, silo, person = keys["target_column"], keys["silo_column"], keys["person_column"]
    if silo is not None and silo == target:
        problems.append(f"data.silo_column: '{silo}' is the column to predict too: name two columns")
    if person is not None and person in (target, silo):
        what_else = "column to predict" if person == target else "silo_column"
        problems.append(f"data.person_column: '{person}' is the {what_else} too: name two columns")
    roles = {name: key for key, name in reversed([*keys.items()]) if name is not None}
    problems += [
        f"data.drop: '{name}' is the {roles[name]}, which is no feature anyway: leave it out here"
        for name in drop
        if name in roles
    ]
    for key, name in rules.names():
        if name in roles or name in drop:
            problems.append(
                f"data.{key}: '{name}' is no feature, but data.{roles.get(name, 'drop')}: leave it out"
            )
    return problems


def _refuse(problems: Sequence[str], what: str) -> None:
    """Raise one `Problem` that names all problems, if there are any."""
    if len(problems) == 1:
        raise Problem(problems[0])
    if problems:
        lines = "".join(f"\n  {problem.removeprefix('data: ')}" for problem in problems)
        raise Problem(f"data: '{what}' has {len(problems)} problems:{lines}")
