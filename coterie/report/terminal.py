"""Shared pieces of tables for the terminal; quick to import."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.table import Table

MOST_SILOS = 20


def number(value: float, digits: int = 4) -> str:
    """Return a number as text with at most `digits` significant digits."""
    return "none" if math.isinf(value) else f"{value:.{digits}g}"


def size(count: float) -> str:
    """Return a number of bytes with a unit.

    >>> size(2048)
    '2.0 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def compact(title: str) -> Table:
    """Return an empty table with narrow margins."""
    return Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
