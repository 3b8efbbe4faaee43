"""A guard's log: one line per event, of limited length, because strangers can cause lines."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from ..errors import reason
from ..privacy.keys import now, stamp

LINE, LOG = 500, 2**24  # letters of a line, and bytes of a log


def add_line(folder: Path, line: str) -> None:
    """Add a line to the log in a folder, or print it if the disk is full: a guard stays up without a log."""
    text, path = f"{stamp(now())} {' '.join(line[:LINE].split())}", folder / "log.txt"
    try:
        if path.exists() and path.stat().st_size > LOG:
            path.replace(path.with_name("log.old.txt"))
        with path.open("a") as file:
            file.write(f"{text}\n")
    except OSError as error:
        with suppress(OSError):
            print(f"{text} (log.txt: {reason(error)})", file=sys.stderr, flush=True)
