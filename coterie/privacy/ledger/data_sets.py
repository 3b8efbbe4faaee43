"""Which data sets a folder has ledgers of."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...errors import Problem
from .identity import Identity

ENDINGS = ("sqlite", "secret")


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
    row = _first(path, "select body from entries where seq = 1")
    try:
        return Identity(**json.loads(row)["identity"])
    except (ValueError, KeyError, TypeError):
        return None


def _first(path: Path, query: str) -> Any:
    """Return the first value that a query gives; None if the file is no ledger.

    Raise `Problem` if it cannot be read: it may be a ledger, so that another one would be a further budget.
    """
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=60)
        try:
            return (connection.execute(query).fetchone() or (None,))[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB):
            return None
        raise Problem(
            f"'{path}', which may be a ledger, cannot be read: {error}; check the disk and try again, or"
            " restore a backup"
        ) from error
