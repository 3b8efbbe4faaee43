"""The ledger: the durable record of what was spent of one silo's data set.

SQLite, one file a data set, append-only, each row hashed with the one before. A run is
charged as planned when it begins, rounds are reserved before and committed after; what
was reserved counts as spent, whether it was committed or not. What is not written here
before it happens does not happen.
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
from urllib.parse import quote

from ...errors import Problem
from ..accountant import MACHINE_TOLERANCE
from ..budget import UNITS
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
    """Which data set a ledger is of: where it comes from, whose it is, how many examples it has."""

    source: str
    silo: str
    size: int

    @property
    def fingerprint(self) -> str:
        """Give the name of the ledger's file: of the identity and the size, never of the content."""
        return hashlib.sha256(json.dumps([self.source, self.silo, self.size]).encode()).hexdigest()[:24]


@dataclass
class Ledger:
    """An open ledger. Two processes may hold one: each change is one exclusive transaction."""

    path: Path
    connection: sqlite3.Connection
    _known: list[LedgerEntry] = field(default_factory=list)
    _state: LedgerState = field(default_factory=LedgerState)

    def entries(self) -> list[LedgerEntry]:
        """Read the rows; refuse a broken chain, naming the row."""
        return list(self._read())

    def _read(self) -> list[LedgerEntry]:
        """Read the rows that are not known yet; give all."""
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
            raise Problem(f"ledger '{self.path}' cannot be read: {error}: restore a copy") from error
        previous = self._known[-1].hash if self._known else FIRST
        for number, (entry, text) in enumerate(found, len(self._known) + 1):
            own = hash_of(entry.seq, entry.kind, str(text), previous)
            if entry.seq != number or entry.previous != previous or entry.hash != own:
                raise Problem(f"ledger '{self.path}': row {entry.seq} was changed or lost: restore a copy")
            previous = entry.hash
            try:
                self._state.add(entry)
            except (KeyError, TypeError, AttributeError) as error:
                raise Problem(
                    f"ledger '{self.path}': row {number} lacks what it must say: {error!r}"
                ) from error
            self._known.append(entry)
        return self._known

    @property
    def identity(self) -> Identity:
        """Which data set this is the ledger of."""
        return Identity(**self.entries()[0].body["identity"])

    @property
    def head(self) -> str:
        """Give the hash of the last row."""
        return self._read()[-1].hash

    def state(self) -> LedgerState:
        """Give what all rows together say."""
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
            self._state = changes.state  # first: rows that are read again can only be charged twice
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
        """Set the budget of a unit: lowering is always allowed, raising must be said, with a reason."""
        _check_budget(epsilon, delta)
        _check_unit(unit)
        with self.change() as rows:
            now = rows.state.budgets.get(unit)
            raised = now is not None and (epsilon > now[0] or delta > now[1])
            if raised and not (higher and reason.strip()):
                missing = "give a reason" if higher else "say so (--raise) and give a reason"
                raise Problem(
                    f"ledger '{self.path}': the budget is ({now[0]:g}, {now[1]:g});"  # type: ignore[index]
                    f" to raise it {missing} (--reason)"
                )
            body = {"unit": unit, "epsilon": epsilon, "delta": delta, "raised": raised, "reason": reason}
            rows.add("budget", body)

    def claim(self, claim: Claim, partial: bool = False) -> GrantedClaim:
        """Begin a run: charge it as planned, or refuse."""
        return self.claim_all([claim], partial)[0]

    def claim_all(self, claims: Sequence[Claim], partial: bool = False) -> list[GrantedClaim]:
        """Begin runs, all or none.

        With `partial` a run that does not fit whole is given as many rounds as fit, fixed now, so that
        when its silo leaves depends on the ledger alone.
        """
        with self.change() as rows:
            return [_grant(rows, claim, partial) for claim in claims]

    def check_all(self, claims: Sequence[Claim]) -> None:
        """Refuse runs that do not all fit together; nothing is written."""
        state = self.state()
        if state.filter.fits(state, claims):
            return
        try:
            with self.change() as rows:
                for claim in claims:
                    _grant(rows, claim, partial=False)
                raise _Undo
        except _Undo:
            pass

    def reserve(self, run: int, first: int, last: int) -> LedgerEntry:
        """Charge rounds before they happen; a round that was reserved before is charged again."""
        return self.reserve_all([run], first, last)

    def reserve_all(
        self, runs: Sequence[int], first: int, last: int, done: tuple[int, str] | None = None
    ) -> LedgerEntry:
        """Charge rounds of several runs, in one row; `done` is a reservation to commit, with its digest."""
        with self.change() as rows:
            if done is not None:
                self._commit(rows, *done)
            return _reserve(rows, runs, first, last)

    def commit(self, reservation: int, digest: str, done: int | None = None) -> None:
        """Record that reserved rounds happened, with a digest of what came out.

        With `done` only the rounds before it did, and no other of them ever will: they are given back.
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
            raise Problem(f"ledger '{self.path}': row {reservation} is no reservation")
        body = {"reservation": reservation, "digest": digest}
        if done is not None and done < rows.state.reservations[reservation]["last"]:
            rows.state.check_shorter(reservation, done)
            body["last"] = done
        rows.add("commit", body)

    def cancel(self, run: int) -> None:
        """Take back a run that never reserved a round: nothing of it was released."""
        with self.change() as rows:
            rows.state.claim_of(run)  # refuses a run that is not there
            if rows.state.reserved(run):
                raise Problem(f"ledger '{self.path}': run {run} has released something and stays charged")
            rows.add("cancel", {"run": run})


class _Undo(Exception):
    """Takes a change back."""


@dataclass(frozen=True)
class GrantedClaim:
    """A run in a ledger: its row, that row's hash, and how many rounds it may do."""

    run: int
    hash: str
    rounds: int


def _grant(rows: Changes, claim: Claim, partial: bool) -> GrantedClaim:
    state, whole = rows.state, claim.certified(0, claim.rounds)
    if claim.epsilon < whole * (1 - MACHINE_TOLERANCE):
        raise Problem(f"the plan states epsilon {claim.epsilon:.6g}, its events give {whole:.6g}: refused")
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
        raise Problem(f"rounds {first} to {last} of no run, or of one run twice, are not reserved")
    for run in runs:
        state.claim_of(run)  # refuses a run that is not there
        allowed = state.runs[run]["allowed"]
        if not 0 <= first < last <= allowed:
            raise Spent(f"run {run} may do {allowed} rounds: rounds {first} to {last} are refused")
    state.filter.check_reserve(state, runs, first, last)
    return rows.add("reserve", {"runs": list(runs), "first": first, "last": last})


def open_ledger(
    folder: Path,
    identity: Identity,
    budget: tuple[float, float] | None = None,
    unit: str = "example",
    filter: str = "basic",
) -> Ledger:
    """Open the ledger of a data set; make it, with a budget, where there is none."""
    path = folder / f"{identity.fingerprint}.sqlite"
    if not path.exists():
        if budget is None:
            raise Problem(
                f"there is no ledger of '{identity.silo}' in '{folder}': make it with a budget for all runs"
                " (coterie ledger open)"
            )
        if path.with_suffix(".secret").exists():
            raise Problem(
                f"the ledger '{path}' is gone, though its silo was metered before: restore a copy (or remove"
                " its .secret, to begin with a whole budget again)"
            )
        _check_budget(*budget)
        _check_unit(unit)
        if filter not in FILTERS:
            raise Problem(f"filter: expected one of {', '.join(FILTERS)}, got '{filter}'")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Problem(f"ledger: cannot make '{folder}': {error.strerror}") from error
        _make(path, identity, budget, unit, filter)
    ledger = read_ledger(path)
    if ledger.identity != identity:
        found = ledger.identity
        raise Problem(
            f"ledger '{path}' is that of another data set ('{found.silo}' of {found.source}, {found.size}"
            f" examples), not of '{identity.silo}' of {identity.source}, {identity.size} examples"
        )
    return ledger


def _make(path: Path, identity: Identity, budget: tuple[float, float], unit: str, filter: str) -> None:
    """Make a ledger beside its place and link it there: killed at any instant, there is all of it or none."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{time.time_ns()}")
    ledger = Ledger(beside, _connect(beside, mode="rwc"))
    try:
        with ledger.change() as rows:
            opened = {"filter": filter, "order": best_order(*budget)}
            rows.add("open", {"schema": SCHEMA, "identity": asdict(identity), **opened})
            first = {"epsilon": budget[0], "delta": budget[1], "raised": False, "reason": "first"}
            rows.add("budget", {"unit": unit, **first})
        ledger.close()
        os.link(beside, path)
    except FileExistsError:
        pass  # another process was quicker
    except OSError as error:
        raise Problem(f"ledger '{path}' cannot be made: {error.strerror or error}") from error
    finally:
        ledger.close()
        for left in path.parent.glob(f"{beside.name}*"):
            left.unlink(missing_ok=True)


def read_ledger(path: Path, only_read: bool = False) -> Ledger:
    """Open a ledger that exists; with `only_read` also where nothing may be written."""
    if not path.is_file():
        raise Problem(f"there is no ledger '{path}'")
    fixed = only_read and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    if fixed and path.with_name(f"{path.name}-wal").exists():
        raise Problem(f"ledger '{path}' is in use: read it where it may be written, or a copy")
    ledger = Ledger(path, _connect(path, mode="ro&immutable=1" if fixed else "rw"))
    entries = ledger.entries()
    schema = entries[0].body.get("schema") if entries and entries[0].kind == "open" else None
    if schema != SCHEMA:
        raise Problem(f"ledger '{path}' is not of the schema {SCHEMA}, but {schema}")
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
        return f"ledger '{path}' cannot be read: {error}: restore a copy"
    return (
        f"ledger '{path}' cannot be written: {error}: nothing is trained without it; free space or permit"
        " writing, or restore a copy"
    )


def _check_unit(unit: str) -> None:
    if unit not in UNITS:
        raise Problem(f"unit: expected one of {', '.join(UNITS)}, got '{unit}'")


def _check_budget(epsilon: float, delta: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise Problem(f"epsilon of a ledger must be a finite number > 0, got {epsilon:g}")
    if not 0 < delta < 1:
        raise Problem(f"delta must be a number in (0, 1), got {delta:g}")
