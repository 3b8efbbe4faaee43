"""What somebody with a text editor can do to a ledger's file: change rows and chain them anew, or cut it off."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from coterie.privacy.ledger.entries import FIRST, hash_of, text_of


def rewrite(path, change, heads=True):
    """Change the (kind, body) rows of a ledger and chain them anew; without `heads`, drop all signatures."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("select kind, body from entries order by seq").fetchall()
        rows = change([(kind, json.loads(body)) for kind, body in found])
        for trigger in ("no_update", "no_delete", "no_delete_of_heads"):
            connection.execute(f"drop trigger if exists {trigger}")
        connection.execute("delete from entries")
        previous = FIRST
        for seq, (kind, body) in enumerate(rows, 1):
            text = text_of(body)
            own = hash_of(seq, kind, text, previous)
            connection.execute("insert into entries values (?, ?, ?, ?, ?)", (seq, kind, text, previous, own))
            previous = own
        if not heads:
            connection.execute("drop table heads")
        connection.commit()


def cut(path, rows):
    """Drop all rows after a number, and their signatures: a state that once was, and is properly signed."""
    with closing(sqlite3.connect(path)) as connection:
        for trigger in ("no_delete", "no_delete_of_heads"):
            connection.execute(f"drop trigger if exists {trigger}")
        connection.execute("delete from entries where seq > ?", (rows,))
        connection.execute("delete from heads where row > ?", (rows,))
        connection.commit()


def make_unsigned(path):
    """Turn a ledger into one of the version before rows were signed."""

    def older(rows):
        (kind, body), *rest = rows
        body = {key: value for key, value in body.items() if key not in ("ledger", "key")}
        return [(kind, body | {"schema": "coterie-ledger/1"}), *rest]

    rewrite(path, older, heads=False)


def snapshot(path):
    """Give the bytes of a ledger's files, as a backup would have them."""
    return {file: file.read_bytes() for file in path.parent.glob(f"{path.name}*")}


def restore(path, files):
    """Put back what a backup had."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    for file, content in files.items():
        file.write_bytes(content)
