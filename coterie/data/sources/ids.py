"""Columns that look like ids: numbers or words that tell rows or people apart and say nothing else.

A model that gets them learns them by heart, and a vocabulary of them is a list of the people.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

NAMES = {"id", "ids", "uid", "uuid", "guid", "mrn", "ssn", "pid", "identifier"}
FEW_VALUES = 20  # a column that is called an id but has no more values may be a group, such as a ward
NEARLY = 0.98  # the share of different values above which a column is one of ids, whatever its name
FEWEST_ROWS = 100  # below this, numbers that are no ids are often all different


def named_like_id(name: object) -> bool:
    """Return whether the name of a column says that it holds ids.

    >>> [named_like_id(name) for name in ("patient_id", "PatientID", "id", "paid", "Unnamed: 0", "mrn")]
    [True, True, True, False, True, True]
    """
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", str(name))
    return str(name).startswith("Unnamed:") or (bool(words) and words[-1].lower() in NAMES)


def looks_like_id(cells: pd.Series[Any]) -> bool:
    """Return whether a column looks like ids: by its name and several values, or by values alone."""
    import pandas as pd

    known = cells.dropna()
    if pd.api.types.is_bool_dtype(known) or pd.api.types.is_datetime64_any_dtype(known):
        return False
    if pd.api.types.is_float_dtype(known) and not (known == known.round()).all():
        return False
    different = known.nunique()
    if named_like_id(cells.name):
        return bool(different > min(FEW_VALUES, len(known) / 2))
    return bool(len(known) >= FEWEST_ROWS and different >= NEARLY * len(known))
