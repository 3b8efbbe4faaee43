"""Print plain lines, wrapped to the width of a terminal; quick to import."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import TextIO


def say(text: str, file: TextIO | None = None) -> None:
    """Print lines, wrapped between words on a terminal and unwrapped to a file or pipe."""
    out = file or sys.stdout
    if out.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
    print(text, file=out)


def without_python(text: str) -> str:
    """Return a message without what it says to people who call the library.

    >>> without_python("raise it (`coterie ledger budget`, or set_budget in Python)")
    'raise it (`coterie ledger budget`)'
    """
    return re.sub(r", or [^;()`]*? in Python", "", text)


def _wrapped(line: str, width: int) -> str:
    """Wrap a line between words, indenting continuation lines by two more spaces."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
