"""What went wrong, said to a person."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Problem(ValueError):
    """Something the user can mend; its text is one sentence that says how."""


class Refused(Problem):
    """A request that would break a privacy guarantee."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Give a hint that names the closest known word, or lists all of them.

    >>> nearest("mrmtl", ["local", "mr-mtl"])
    "did you mean 'mr-mtl'?"
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(sorted(known))
