"""The ledger: the durable record of what was spent of one silo's data set.

A ledger is an append-only SQLite file, one per data set. Each row includes the hash of the row before, and
every change ends with a head that is signed with the silo's key and shown to a witness.
A run is charged as planned when it begins. Its rounds are reserved before they happen and committed
afterwards; reserved rounds count as spent whether or not they were committed. Nothing happens that was
not written here first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...errors import Problem, reason
from ..files import make_folder, sync_folder
from ..keys import Key
from .book import Ledger as Ledger
from .book import cannot_read, cannot_write, check_unit
from .book import check_budget as check_budget
from .custody import Custody, missing
from .entries import Changes, parse
from .filters import FILTERS, best_order
from .grants import GrantedClaim as GrantedClaim
from .identity import Identity as Identity

SCHEMA = "coterie-ledger/2"
UNSIGNED = "coterie-ledger/1"  # before rows were signed
TABLE = """
create table if not exists entries (
  seq integer primary key, kind text not null, body text not null, previous text not null, hash text not null
) strict;
create trigger if not exists no_update before update on entries
  begin select raise(abort, 'a ledger is only ever added to'); end;
create trigger if not exists no_delete before delete on entries
  begin select raise(abort, 'a ledger is only ever added to'); end;
"""
HEADS = """
create table if not exists heads (
  row integer primary key references entries (seq), body text not null, signature text not null
) strict;
create trigger if not exists no_update_of_heads before update on heads
  begin select raise(abort, 'a ledger is only ever added to'); end;
create trigger if not exists no_delete_of_heads before delete on heads
  begin select raise(abort, 'a ledger is only ever added to'); end;
"""


def open_ledger(
    folder: Path,
    identity: Identity,
    budget: tuple[float, float] | None = None,
    unit: str = "example",
    filter: str = "basic",
    custody: Custody | None = None,
    *,
    another: bool = False,
) -> Ledger:
    """Open the ledger of a data set to charge it; create it if there is none and a budget is given.

    With `another`, a new ledger says that its folder had ledgers of the same data. Raise `Problem` unless the
    ledger's key is at hand and its witness agrees with it.
    """
    path, custody = folder / f"{identity.fingerprint}.sqlite", custody or Custody()
    custody.witness.ready()
    if not path.exists():
        seen = custody.witness.latest(identity.fingerprint)
        if seen is not None:
            raise missing(path, identity, seen, custody.witness)
        if budget is None:
            raise Problem(
                f"there is no ledger of '{identity.silo}' in '{folder}'; create it with a budget for all runs"
                " (`coterie ledger open`, or open_ledgers in Python)"
            )
        if path.with_suffix(".secret").exists():
            raise Problem(
                f"the ledger '{path}' is missing, although its silo was metered before, and the witness"
                f" '{custody.witness}' does not know it: restore a backup, or name its witness"
            )
        check_budget(*budget)
        check_unit(unit)
        if filter not in FILTERS:
            raise Problem(f"filter: expected one of {', '.join(FILTERS)}, got '{filter}'")
        opened = {"filter": filter, "order": best_order(*budget)} | ({"another": True} if another else {})
        make_ledger(path, identity, opened, {unit: budget}, custody)
    ledger = read_ledger(path, custody=custody)
    try:
        if ledger.identity != identity:
            found = ledger.identity
            raise Problem(
                f"ledger '{path}' belongs to another data set ('{found.silo}' of {found.source}, {found.size}"
                f" examples), not to '{identity.silo}' of {identity.source}, {identity.size} examples"
            )
        ledger.key()
        ledger.check_witness()
    except BaseException:
        ledger.close()
        raise
    return ledger


def make_ledger(
    path: Path,
    identity: Identity,
    opened: dict[str, Any],
    budgets: dict[str, tuple[float, float]],
    custody: Custody,
) -> None:
    """Create a ledger under another name and link it into place: a crash leaves all of it or none."""
    _refuse_remains(path)
    try:
        make_folder(path.parent)
    except OSError as error:
        raise Problem(f"ledger: cannot create '{path.parent}': {reason(error)}") from error
    key = custody.key_for(path, identity.silo, make=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_ledger(beside, identity, opened, budgets, key)
        os.link(beside, path)
        sync_folder(path.parent)
    except FileExistsError:
        pass  # another process was faster
    except Problem as problem:
        raise Problem(str(problem).replace(str(beside), str(path))) from None
    except OSError as error:
        raise Problem(f"ledger '{path}' cannot be created: {reason(error)}") from error
    finally:
        for left in path.parent.glob(f"{beside.name}*"):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)


def _write_ledger(
    path: Path,
    identity: Identity,
    opened: dict[str, Any],
    budgets: dict[str, tuple[float, float]],
    key: Key,
) -> None:
    """Write the first rows of a ledger; all of them are in the file itself when this returns."""
    ledger = Ledger(path, connect(path, mode="rwc"), signer=key)
    try:
        with ledger.change() as rows:
            rows.add("open", {"schema": SCHEMA, "identity": asdict(identity), **opened, **new_custody(key)})
            for unit, budget in budgets.items():
                _first_budget(rows, unit, budget)
        busy = ledger.connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]
        if busy:
            raise Problem(f"ledger '{path}' cannot be created: another process uses it")
    except sqlite3.Error as error:
        raise Problem(cannot_write(path, error)) from error
    finally:
        ledger.close()


def _refuse_remains(path: Path) -> None:
    """Raise `Problem` if a missing ledger left a log behind, which SQLite would add to a new one."""
    logs = [path.with_name(f"{path.name}-{ending}") for ending in ("wal", "journal")]
    left = [log for log in logs if log.exists()]
    if left and not path.exists():  # in this order: whoever makes a ledger links it before there is a log
        raise Problem(f"'{left[0]}' belongs to a ledger that is missing: restore the ledger, or move it away")


def new_custody(key: Key) -> dict[str, Any]:
    """Return what a row says from which on a ledger is signed: an id that no other has, and its key."""
    return {"ledger": secrets.token_hex(16), "key": key.public.facts()}


def _first_budget(rows: Changes, unit: str, budget: tuple[float, float]) -> None:
    first = {"epsilon": budget[0], "delta": budget[1], "raised": False, "reason": "first"}
    rows.add("budget", {"unit": unit, **first})


def read_ledger(path: Path, only_read: bool = False, custody: Custody | None = None) -> Ledger:
    """Open an existing ledger and check its rows and its last signature.

    With `only_read`, it is opened even if it is not writable, and nothing can be changed.
    """
    ledger = Ledger(path, open_file(path, only_read), None if only_read else custody or Custody())
    try:
        if not is_signed_ledger(ledger):
            raise Problem(
                f"ledger '{path}' is of an older version, whose rows are not signed: check it, then take it"
                f" over with `coterie ledger adopt {path} --reason WHY`"
            )
        entries = ledger.entries()
        schema = entries[0].body.get("schema") if entries and entries[0].kind == "open" else None
        if schema != SCHEMA and not (schema == UNSIGNED and ledger.state().adopted):
            raise Problem(f"ledger '{path}': expected the schema {SCHEMA}, got {schema}")
    except BaseException:
        ledger.close()
        raise
    return ledger


def is_signed_ledger(ledger: Ledger) -> bool:
    """Return whether a ledger says that its rows are signed; a row of an older version must adopt it."""
    try:
        first = ledger.connection.execute("select body from entries where seq = 1").fetchone()
        adopted = ledger.connection.execute("select 1 from entries where kind = 'adopt'").fetchone()
    except sqlite3.Error as error:
        raise Problem(cannot_read(ledger.path, error)) from error
    return adopted is not None or first is None or parse(first[0]).get("schema") != UNSIGNED


def open_file(path: Path, only_read: bool = False) -> sqlite3.Connection:
    """Return a connection to a ledger's file."""
    if not path.is_file():
        raise Problem(f"there is no ledger '{path}'")
    fixed = only_read and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    if fixed and path.with_name(f"{path.name}-wal").exists():
        raise Problem(f"ledger '{path}' is in use and not writable; make it writable, or read a copy of it")
    return connect(path, mode="ro&immutable=1" if fixed else "rw")


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Return a connection to a file, with all writes on the disk when a transaction ends."""
    create, connection = mode == "rwc", None
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=60,
            check_same_thread=False,
        )
        connection.execute("pragma synchronous = extra")  # also where there can be no write-ahead log
        if create:
            connection.execute("pragma journal_mode = wal")
            connection.executescript(TABLE + HEADS)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise Problem(cannot_write(path, error)) from error
    return connection
