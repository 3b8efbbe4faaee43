"""Which data sets a folder has ledgers of, and when two names mean the same data set.

A name can be written in several ways: with spaces around it, composed or decomposed accents, a whole number
as 1.0, a number with leading zeros. None of them is another data set, so none of them opens another budget.
"""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .ledger import Identity

CUT = " cut by "  # between the name of data and how silos were cut from it
ENDINGS = ("sqlite", "secret")


def tidy(name: str) -> str:
    """Return a name without spaces around it, with accents composed.

    >>> tidy(" clinics ")
    'clinics'
    """
    return unicodedata.normalize("NFC", name).strip()


def tidy_silo(name: str) -> str:
    """Return a silo's name as ledgers have it; a whole number is written without a fraction.

    >>> tidy_silo("7.0")
    '7'
    """
    return re.sub(r"\A([+-]?\d+)\.0*\Z", r"\1", tidy(name))


def silo_key(name: str) -> str:
    """Return what is equal for all names of one silo: a number, if the silo is numbered.

    >>> silo_key("silo-07") == silo_key("7.0")
    True
    """
    numbered = re.fullmatch(r"(?:silo-)?0*(\d+)", tidy_silo(name))
    return tidy_silo(name) if numbered is None else numbered[1]


def data_name(source: str) -> str:
    """Return the name of the data that a source was cut from, in lower case.

    >>> data_name('Clinics cut by {"partition": "iid"}')
    'clinics'
    """
    return tidy(source.partition(CUT)[0]).casefold()


def holds_ledgers(folder: Path) -> bool:
    """Return whether a folder holds a ledger, or the secret of one that is missing."""
    return folder.is_dir() and any(next(folder.glob(f"*.{ending}"), None) for ending in ENDINGS)


def data_sets(folder: Path) -> list[tuple[Path, Identity]]:
    """Return the ledgers in a folder and whose they are, sorted by file; others' files are left out."""
    found = []
    for path in sorted(folder.glob("*.sqlite")):
        identity = _identity_in(path)
        if identity is not None and identity.fingerprint == path.stem:
            found.append((path, identity))
    return found


def nothing_spent(path: Path) -> bool:
    """Return whether a ledger has no row but its opening and its budgets."""
    return bool(_first(path, "select count(*) = 0 from entries where kind not in ('open', 'budget')"))


def _identity_in(path: Path) -> Identity | None:
    """Return whose ledger a file is, from its first row alone; None if it is no ledger."""
    try:
        return Identity(**json.loads(_first(path, "select body from entries where seq = 1"))["identity"])
    except (ValueError, KeyError, TypeError):
        return None


def _first(path: Path, query: str) -> Any:
    """Return the first value that a query gives; None if the file cannot be read."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=60)
        try:
            return (connection.execute(query).fetchone() or (None,))[0]
        finally:
            connection.close()
    except sqlite3.Error:
        return None
