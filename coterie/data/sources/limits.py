"""How much a source may hold: files say how large their content is, and are believed before they are read.

A small file can unpack to more than a machine has (zeros compress a thousandfold), or declare a shape that
its bytes do not have. So readers look at headers first, and refuse in one sentence what is over the limit.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...errors import Problem

VARIABLE = "COTERIE_DATA_LIMIT"
DEFAULT = 8 * 2**30
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def data_limit() -> int:
    """Return how many bytes a source may need in memory: `COTERIE_DATA_LIMIT`, or 8 GB."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)i?b?", text.lower())
    if not match or not float(match[1]) > 0:
        raise Problem(f"{VARIABLE}: expected a size such as 64GB, got '{text}'")
    return int(float(match[1]) * 1024 ** _UNITS[match[2]])


def check_size(size: int, what: str) -> None:
    """Raise `Problem` if something needs more memory than a source may."""
    most = data_limit()
    if size > most:
        raise Problem(
            f"data: {what} may need {shown(size)} of memory, more than the limit of {shown(most)}: if you"
            f" trust it, set the environment variable {VARIABLE} to more, such as {-(-2 * size // 2**30)}GB"
        )


def check_file(path: Path, times: int = 1) -> None:
    """Raise `Problem` if a file is too large, where memory needs so many times its size."""
    try:
        size = path.stat().st_size
    except OSError:
        return  # whoever opens it says why it cannot be read
    check_size(times * size, f"'{path}'")


def shown(size: int) -> str:
    """Return a number of bytes for people.

    >>> shown(3 * 2**30), shown(1000)
    ('3 GB', '1000 bytes')
    """
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "KB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.3g} {unit}" if size < 1000 * 1024**power else f"{size:.3g} bytes"
    return f"{size} bytes"


def why(error: Exception) -> str:
    """Return the reason of an error in one line, whatever kind it is."""
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    return str(error).splitlines()[0] if str(error).strip() else type(error).__name__
