"""The ledger: the durable record of what was spent of one silo's data set.

A ledger is an append-only SQLite file, one per data set. Each row includes the hash of the row before.
A run is charged as planned when it begins. Its rounds are reserved before they happen and committed
afterwards; reserved rounds count as spent whether or not they were committed. Nothing happens that was
not written here first.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...errors import Problem
from ..accountant import MACHINE_TOLERANCE
from ..units import UNITS
from .claim import Claim
from .entries import FIRST, Changes, LedgerEntry, LedgerState, hash_of, parse
from .filters import FILTERS, Spent, best_order

SCHEMA = "coterie-ledger/1"
TABLE = """
create table if not exists entries (
  seq integer primary key, kind text not null, body text not null, previous text not null, hash text not null
) strict;
create trigger if not exists no_update before update on entries
  begin select raise(abort, 'a ledger is only ever added to'); end;
create trigger if not exists no_delete before delete on entries
  begin select raise(abort, 'a ledger is only ever added to'); end;
"""


@dataclass(frozen=True)
class Identity:
    """The data set a ledger belongs to: its source, its silo and its number of examples."""

    source: str
    silo: str
    size: int

    @property
    def fingerprint(self) -> str:
        """The name of the ledger's file: a hash of the identity, never of the content."""
        return hashlib.sha256(json.dumps([self.source, self.silo, self.size]).encode()).hexdigest()[:24]


@dataclass
class Ledger:
    """An open ledger. Several processes may open the same one: each change is an exclusive transaction."""

    path: Path
    connection: sqlite3.Connection
    _known: list[LedgerEntry] = field(default_factory=list)
    _state: LedgerState = field(default_factory=LedgerState)

    def entries(self) -> list[LedgerEntry]:
        """Return all rows; raise `Problem`, naming the row, if the chain of hashes is broken."""
        return list(self._read())

    def _read(self) -> list[LedgerEntry]:
        """Read the rows that are not known yet, and return all rows."""
        try:
            rows = self.connection.execute(
                "select seq, kind, body, previous, hash from entries where seq > ? order by seq",
                (len(self._known),),
            )
            found = [
                (LedgerEntry(seq, kind, parse(text), before, own), text)
                for seq, kind, text, before, own in rows
            ]
        except sqlite3.Error as error:
            raise Problem(f"ledger '{self.path}' cannot be read: {error}; restore a backup") from error
        previous = self._known[-1].hash if self._known else FIRST
        for number, (entry, text) in enumerate(found, len(self._known) + 1):
            own = hash_of(entry.seq, entry.kind, str(text), previous)
            if entry.seq != number or entry.previous != previous or entry.hash != own:
                raise Problem(f"ledger '{self.path}': row {entry.seq} was changed or lost; restore a backup")
            previous = entry.hash
            try:
                self._state.add(entry)
            except (KeyError, TypeError, AttributeError) as error:
                raise Problem(f"ledger '{self.path}': row {number} is incomplete: {error!r}") from error
            self._known.append(entry)
        return self._known

    @property
    def identity(self) -> Identity:
        """The data set this ledger belongs to."""
        return Identity(**self.entries()[0].body["identity"])

    @property
    def head(self) -> str:
        """The hash of the last row."""
        return self._read()[-1].hash

    def state(self) -> LedgerState:
        """Return what all rows together say."""
        self._read()
        return self._state

    @contextmanager
    def change(self) -> Iterator[Changes]:
        """Add rows in one exclusive transaction: all of them, or none."""
        try:
            self.connection.execute("begin immediate")
        except sqlite3.Error as error:
            raise Problem(_cannot_write(self.path, error)) from error
        try:
            known = self._read()
            changes = Changes(known[-1] if known else None, self._state)
            yield changes
            self.connection.executemany(
                "insert into entries values (?, ?, ?, ?, ?)",
                [
                    (e.seq, e.kind, text, e.previous, e.hash)
                    for e, text in zip(changes.added, changes.texts, strict=True)
                ],
            )
            self.connection.execute("commit")
            self._state = changes.state  # before `_known`: if this is interrupted, rows only count twice
            self._known += changes.added
        except sqlite3.Error as error:
            self._give_up()
            raise Problem(_cannot_write(self.path, error)) from error
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("rollback")

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def set_budget(
        self, unit: str, epsilon: float, delta: float, reason: str = "", higher: bool = False
    ) -> None:
        """Set the budget of a unit. Lowering is always allowed; raising needs `higher` and a reason."""
        check_budget(epsilon, delta)
        _check_unit(unit)
        with self.change() as rows:
            now = rows.state.budgets.get(unit)
            raised = now is not None and (epsilon > now[0] or delta > now[1])
            if raised and not (higher and reason.strip()):
                missing = (
                    "a reason"
                    if higher
                    else "saying so and a reason (--raise --reason WHY, or higher=True, reason=...)"
                )
                raise Problem(
                    f"ledger '{self.path}': the budget is ({now[0]:g}, {now[1]:g});"  # type: ignore[index]
                    f" raising it requires {missing}"
                )
            body = {"unit": unit, "epsilon": epsilon, "delta": delta, "raised": raised, "reason": reason}
            rows.add("budget", body)

    def claim(self, claim: Claim, partial: bool = False) -> GrantedClaim:
        """Begin a run: charge it as planned, or raise `Spent`."""
        return self.claim_all([claim], partial)[0]

    def claim_all(self, claims: Sequence[Claim], partial: bool = False) -> list[GrantedClaim]:
        """Begin all of these runs, or none.

        With `partial`, a run that does not fit is granted as many rounds as do. The number is fixed now, so
        the round in which its silo leaves depends on the ledger alone.
        """
        with self.change() as rows:
            granted = [_grant(rows, claim, partial) for claim in claims]
            if not partial:
                rows.state.filter.check_granted(rows.state, claims)
            return granted

    def check_all(self, claims: Sequence[Claim]) -> None:
        """Raise `Spent` unless all of these runs fit together; nothing is written."""
        state = self.state()
        if state.filter.fits(state, claims):
            return
        try:
            with self.change() as rows:
                for claim in claims:
                    _grant(rows, claim, partial=False)
                rows.state.filter.check_granted(rows.state, claims)
                raise _Undo
        except _Undo:
            pass

    def reserve(self, run: int, first: int, last: int) -> LedgerEntry:
        """Charge rounds before they happen; a round that is reserved twice is charged twice."""
        return self.reserve_all([run], first, last)

    def reserve_all(
        self, runs: Sequence[int], first: int, last: int, done: tuple[int, str] | None = None
    ) -> LedgerEntry:
        """Charge rounds of several runs in one row, and commit the reservation `done` (row, digest) first."""
        with self.change() as rows:
            if done is not None:
                self._commit(rows, *done)
            return _reserve(rows, runs, first, last)

    def commit(self, reservation: int, digest: str, done: int | None = None) -> None:
        """Record that reserved rounds happened, with a digest of their results.

        With `done`, only the rounds before it happened. The others never will, so they are given back.
        """
        with self.change() as rows:
            self._commit(rows, reservation, digest, done)

    def commit_all(self, reservations: Sequence[int], digest: str) -> None:
        """Record that several reservations happened."""
        if not reservations:
            return
        with self.change() as rows:
            for reservation in reservations:
                self._commit(rows, reservation, digest)

    def _commit(self, rows: Changes, reservation: int, digest: str, done: int | None = None) -> None:
        if reservation not in rows.state.reservations:
            raise Problem(f"ledger '{self.path}': row {reservation} is not a reservation")
        body = {"reservation": reservation, "digest": digest}
        if done is not None and done < rows.state.reservations[reservation]["last"]:
            rows.state.check_shorter(reservation, done)
            body["last"] = done
        rows.add("commit", body)

    def cancel(self, run: int) -> None:
        """Cancel a run that never reserved a round, and so never released anything."""
        with self.change() as rows:
            rows.state.claim_of(run)  # raises if there is no such run
            if rows.state.reserved(run):
                raise Problem(f"ledger '{self.path}': run {run} has released something, so it stays charged")
            rows.add("cancel", {"run": run})


class _Undo(Exception):
    """Raised to roll a change back."""


@dataclass(frozen=True)
class GrantedClaim:
    """A run in a ledger: its row, that row's hash, and the number of rounds it may train."""

    run: int
    hash: str
    rounds: int


def _grant(rows: Changes, claim: Claim, partial: bool) -> GrantedClaim:
    state, whole = rows.state, claim.certified(0, claim.rounds)
    if claim.epsilon < whole * (1 - MACHINE_TOLERANCE):
        raise Problem(f"the plan states epsilon {claim.epsilon:.6g}, but its events give {whole:.6g}")
    rounds = state.filter.affordable(state, claim, partial)
    if rounds < 1:
        raise Spent(state.refusal(claim))
    epsilon = max(claim.epsilon, whole) if rounds == claim.rounds else claim.certified(0, rounds)
    other = claim.certified(0, rounds, unit="example") if claim.unit == "silo" else math.inf
    made = replace(claim, epsilon=epsilon, as_example=other if math.isfinite(other) else None)
    entry = rows.add("run", {**made.to_json(), "allowed": rounds}, made)
    return GrantedClaim(entry.seq, entry.hash, rounds)


def _reserve(rows: Changes, runs: Sequence[int], first: int, last: int) -> LedgerEntry:
    state = rows.state
    if not runs or len(set(runs)) != len(runs):
        raise Problem(f"cannot reserve rounds {first} to {last}: expected one or more different runs")
    for run in runs:
        state.claim_of(run)  # raises if there is no such run
        allowed = state.runs[run]["allowed"]
        if not 0 <= first < last <= allowed:
            raise Spent(f"run {run} may train {allowed} rounds, so rounds {first} to {last} are refused")
    state.filter.check_reserve(state, runs, first, last)
    return rows.add("reserve", {"runs": list(runs), "first": first, "last": last})


def open_ledger(
    folder: Path,
    identity: Identity,
    budget: tuple[float, float] | None = None,
    unit: str = "example",
    filter: str = "basic",
    *,
    another: bool = False,
) -> Ledger:
    """Open the ledger of a data set; create it if there is none and a budget is given.

    With `another`, a new ledger says that its folder had ledgers of the same data.
    """
    path = folder / f"{identity.fingerprint}.sqlite"
    if not path.exists():
        if budget is None:
            raise Problem(
                f"there is no ledger of '{identity.silo}' in '{folder}'; create it with a budget for all runs"
                " (`coterie ledger open`, or open_ledgers in Python)"
            )
        if path.with_suffix(".secret").exists():
            raise Problem(
                f"the ledger '{path}' is missing, although its silo was metered before; restore a backup (or"
                " delete its .secret file to start again with a full budget)"
            )
        check_budget(*budget)
        _check_unit(unit)
        if filter not in FILTERS:
            raise Problem(f"filter: expected one of {', '.join(FILTERS)}, got '{filter}'")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Problem(f"ledger: cannot create '{folder}': {error.strerror}") from error
        _make(path, identity, budget, unit, {"filter": filter} | ({"another": True} if another else {}))
    ledger = read_ledger(path)
    if ledger.identity != identity:
        found = ledger.identity
        raise Problem(
            f"ledger '{path}' belongs to another data set ('{found.silo}' of {found.source}, {found.size}"
            f" examples), not to '{identity.silo}' of {identity.source}, {identity.size} examples"
        )
    return ledger


def _make(
    path: Path, identity: Identity, budget: tuple[float, float], unit: str, facts: dict[str, Any]
) -> None:
    """Create a ledger under another name and link it into place: a crash leaves all of it or none."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{time.time_ns()}")
    ledger = Ledger(beside, _connect(beside, mode="rwc"))
    try:
        with ledger.change() as rows:
            opened = {**facts, "order": best_order(*budget)}
            rows.add("open", {"schema": SCHEMA, "identity": asdict(identity), **opened})
            first = {"epsilon": budget[0], "delta": budget[1], "raised": False, "reason": "first"}
            rows.add("budget", {"unit": unit, **first})
        ledger.close()
        os.link(beside, path)
    except FileExistsError:
        pass  # another process was faster
    except OSError as error:
        raise Problem(f"ledger '{path}' cannot be created: {error.strerror or error}") from error
    finally:
        ledger.close()
        for left in path.parent.glob(f"{beside.name}*"):
            left.unlink(missing_ok=True)


def read_ledger(path: Path, only_read: bool = False) -> Ledger:
    """Open an existing ledger; with `only_read`, even if it is not writable."""
    if not path.is_file():
        raise Problem(f"there is no ledger '{path}'")
    fixed = only_read and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    if fixed and path.with_name(f"{path.name}-wal").exists():
        raise Problem(f"ledger '{path}' is in use and not writable; make it writable, or read a copy of it")
    ledger = Ledger(path, _connect(path, mode="ro&immutable=1" if fixed else "rw"))
    entries = ledger.entries()
    schema = entries[0].body.get("schema") if entries and entries[0].kind == "open" else None
    if schema != SCHEMA:
        raise Problem(f"ledger '{path}': expected the schema {SCHEMA}, got {schema}")
    return ledger


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    create = mode == "rwc"
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=60,
            check_same_thread=False,
        )
        connection.execute("pragma synchronous = full")
        if create:
            connection.execute("pragma journal_mode = wal")
            connection.executescript(TABLE)
    except sqlite3.Error as error:
        raise Problem(_cannot_write(path, error)) from error
    return connection


def _cannot_write(path: Path, error: sqlite3.Error) -> str:
    if "not a database" in str(error) or "malformed" in str(error):
        return f"ledger '{path}' cannot be read: {error}; restore a backup"
    return (
        f"ledger '{path}' cannot be written: {error}; nothing is trained without it. Free some space, make it"
        " writable, or restore a backup"
    )


def _check_unit(unit: str) -> None:
    if unit not in UNITS:
        raise Problem(f"unit: expected one of {', '.join(UNITS)}, got '{unit}'")


def check_budget(epsilon: float, delta: float) -> None:
    """Raise `Problem` for numbers that cannot be the budget of a ledger."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise Problem(f"a ledger's epsilon must be a finite number > 0, got {epsilon:g}")
    if not 0 < delta < 1:
        raise Problem(f"delta must be a number in (0, 1), got {delta:g}")
