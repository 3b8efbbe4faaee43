"""Errors whose messages are written for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Problem(ValueError):
    """A mistake that the user can fix; the message is one sentence that says how."""


class Refused(Problem):
    """A request that was refused because it would break a privacy guarantee."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the closest known word, or lists all of them.

    >>> nearest("mrmtl", ["local", "mr-mtl"])
    "did you mean 'mr-mtl'?"
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(sorted(known))


def reason(error: Exception) -> str:
    """Return why something could not be read, without repeating the error number and the path.

    >>> reason(FileNotFoundError(2, "No such file or directory", "x"))
    'no such file or directory'
    >>> reason(UnicodeDecodeError("utf-8", b"x", 0, 1, "invalid start byte"))
    'it is not text'
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)
