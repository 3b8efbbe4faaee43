"""What all tables for the terminal share; quick to import."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.table import Table

MOST_SILOS = 20


def number(value: float, digits: int = 4) -> str:
    """Show a number shortly."""
    return "none" if math.isinf(value) else f"{value:.{digits}g}"


def size(count: float) -> str:
    """Show bytes with a unit.

    >>> size(2048)
    '2.0 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def compact(title: str) -> Table:
    """Make a table that is no wider than it must be."""
    return Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
