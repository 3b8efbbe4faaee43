"""The names of the units that privacy may protect, the smallest first.

This is the one list, from which types and checks are derived.
"""

from __future__ import annotations

from typing import Literal, get_args

UnitName = Literal["example", "person", "silo"]
UNITS: tuple[str, ...] = get_args(UnitName)
