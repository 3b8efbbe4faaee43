"""An open ledger: rows are added in transactions, each of which ends with a signed head."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import Problem
from ..keys import Key
from ..units import UNITS
from .claim import Claim
from .custody import Custody, disagreement, refusal
from .entries import FIRST, Changes, LedgerEntry, LedgerState, hash_of, parse
from .grants import GrantedClaim, grant_all, reserve
from .heads import SignedHead, sign_head
from .identity import Identity

ROWS = """
select seq, kind, entries.body, previous, hash, heads.body, signature, (select max(row) from heads)
from entries left join heads on heads.row = seq where seq > ? order by seq
"""


@dataclass
class Ledger:
    """An open ledger, which threads may share: they take turns.

    Several processes may open the same one: each change is an exclusive transaction.

    Every change ends with a signed head, which the witness of `custody` keeps before anything relies on the
    change. Without custody nobody is told: a ledger that is only read, or not yet in its place. `unsigned`
    is only one that is about to be adopted.
    """

    path: Path
    connection: sqlite3.Connection
    custody: Custody | None = None
    signer: Key | None = None
    unsigned: bool = False
    _known: list[LedgerEntry] = field(default_factory=list)
    _heads: list[SignedHead] = field(default_factory=list)
    _state: LedgerState = field(default_factory=LedgerState)
    _turn: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def entries(self) -> list[LedgerEntry]:
        """Return all rows; raise `Problem`, naming the row, if the chain of hashes is broken."""
        return list(self._read())

    def heads(self) -> list[SignedHead]:
        """Return all signed heads, in order."""
        self._read()
        return list(self._heads)

    def _read(self) -> list[LedgerEntry]:
        """Read the rows that are not known yet, and return all rows."""
        with self._turn:
            return self._read_further()

    def _read_further(self) -> list[LedgerEntry]:
        try:
            found = list(self.connection.execute(ROWS, (len(self._known),)))
        except sqlite3.Error as error:
            raise Problem(cannot_read(self.path, error)) from error
        if not found:
            return self._known
        previous = self._known[-1].hash if self._known else FIRST
        for number, (seq, kind, text, before, own, *head) in enumerate(found, len(self._known) + 1):
            entry = LedgerEntry(seq, kind, parse(text), before, own)
            if seq != number or before != previous or own != hash_of(seq, kind, str(text), previous):
                raise Problem(f"ledger '{self.path}': row {seq} was changed or lost; restore a backup")
            previous = entry.hash
            try:
                self._state.add(entry)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise Problem(f"ledger '{self.path}': row {number} is incomplete: {error!r}") from error
            self._known.append(entry)
            if head[0] is not None:
                self._heads.append(SignedHead(*head[:2]))
        try:
            self._check_head(found[-1][-1])
        except Problem:
            self._known, self._heads, self._state = [], [], LedgerState()  # whoever asks again is told again
            raise
        return self._known

    def _check_head(self, signed_row: int | None) -> None:
        """Raise `Problem` unless the last row is the one that the ledger's key signed last."""
        if self.unsigned:
            return
        last, head = self._known[-1], self._heads[-1] if self._heads else None
        broken = Problem(
            f"ledger '{self.path}': row {last.seq} is not the last that its key signed; rows were changed,"
            " added or lost: restore a backup"
        )
        if head is None or signed_row != last.seq:
            raise broken
        try:
            head.check()
        except Problem as problem:
            raise Problem(f"ledger '{self.path}': row {last.seq}: {problem}; restore a backup") from None
        signed = (head.rows, head.hash, head.ledger, head.public)
        if signed != (last.seq, last.hash, self._state.ledger, self._state.key.get("public")):
            raise broken

    @property
    def identity(self) -> Identity:
        """The data set this ledger belongs to."""
        return Identity(**self._read()[0].body["identity"])

    @property
    def head(self) -> str:
        """The hash of the last row."""
        return self._read()[-1].hash

    @property
    def signed_head(self) -> SignedHead:
        """The head that the ledger's key signed last."""
        self._read()
        return self._heads[-1]

    def state(self) -> LedgerState:
        """Return what all rows together say."""
        self._read()
        return self._state

    @contextmanager
    def change(self, check: bool = True) -> Iterator[Changes]:
        """Add rows in one exclusive transaction, all of them or none, and show its head to the witness.

        Raise `Unwitnessed` if the witness does not agree with the rows before, unless they are not to be
        checked; and if the rows were added, but the witness could not be told.
        """
        with self._turn, self._transaction(check) as changes:
            yield changes

    @contextmanager
    def _transaction(self, check: bool) -> Iterator[Changes]:
        try:
            self.connection.execute("begin immediate")
        except sqlite3.Error as error:
            raise Problem(cannot_write(self.path, error)) from error
        try:
            if check:
                self.check_witness(catch_up=False)
            known = self._read()
            number = self._heads[-1].number + 1 if self._heads else 1
            changes = Changes(known[-1] if known else None, self._state, number)
            yield changes
            if not changes.added:
                self._give_up()
                return
            head = self._sign(changes)
            self._write(changes, head)
            self.connection.execute("commit")
            self._state = changes.state  # before `_known`: if this is interrupted, rows only count twice
            self._known += changes.added
            self._heads.append(head)
        except sqlite3.Error as error:
            self._give_up()
            raise Problem(cannot_write(self.path, error)) from error
        except BaseException:
            self._give_up()
            raise
        self._show(head)

    def _sign(self, changes: Changes) -> SignedHead:
        """Return the signed head of a change."""
        last = changes.last
        assert last is not None
        identity = Identity(**(self._known or changes.added)[0].body["identity"])
        return sign_head(self._key(changes.state, identity), identity, changes.number, last, changes.state)

    def _key(self, state: LedgerState, identity: Identity) -> Key:
        """Return the key that signs; raise `Problem` unless it is the ledger's own and valid today."""
        if self.signer is None:
            custody = self.custody or Custody()
            self.signer = custody.key_for(self.path, identity.silo)
        self.signer.public.check(identity.silo)
        if self.signer.public.public != state.key.get("public"):
            raise Problem(
                f"ledger '{self.path}' is signed with key {state.key.get('id')}, but this is key"
                f" {self.signer.id}: give the right one (--keys), or change it with `coterie ledger rekey`"
            )
        return self.signer

    def _write(self, changes: Changes, head: SignedHead) -> None:
        """Insert the rows of a change, and its head."""
        rows = zip(changes.added, changes.texts, strict=True)
        self.connection.executemany(
            "insert into entries values (?, ?, ?, ?, ?)",
            [(e.seq, e.kind, text, e.previous, e.hash) for e, text in rows],
        )
        self.connection.execute("insert into heads values (?, ?, ?)", (head.rows, head.text, head.signature))

    def _give_up(self) -> None:
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # whoever asks is about to say what went wrong
                self.connection.execute("rollback")

    def _show(self, head: SignedHead) -> None:
        """Have the witness keep a head; raise `Unwitnessed` if it has seen another ledger in its place."""
        if self.custody is None:
            return
        self.custody.witness.record(head)
        self.check_witness(catch_up=False)

    def check_witness(self, catch_up: bool = True) -> None:
        """Raise `Unwitnessed` unless the witness agrees with this ledger.

        With `catch_up`, the witness is told of a head that a crash kept from it.
        """
        if self.custody is None:
            return
        seen = self.seen()
        if (why := self.why_refused(seen)) is not None:
            raise refusal(self.path, self.custody.witness, why)
        if catch_up and (seen is None or seen.number < self._heads[-1].number):
            self._show(self._heads[-1])

    def seen(self) -> SignedHead | None:
        """Return the last head that the witness has seen of this data set, if it knows it."""
        return None if self.custody is None else self.custody.witness.latest(self.identity.fingerprint)

    def why_refused(self, seen: SignedHead | None) -> str | None:
        """Return why this ledger does not agree with a head that its witness has seen; None if it does.

        Rows are read after the head: others may add some in between.
        """
        return disagreement(seen, self.signed_head, self._read())

    def key(self) -> Key:
        """Return the key that signs; raise `Problem` unless it is the ledger's own and valid today."""
        return self._key(self.state(), self.identity)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def set_budget(
        self, unit: str, epsilon: float, delta: float, reason: str = "", higher: bool = False
    ) -> None:
        """Set the budget of a unit. Lowering is always allowed; raising needs `higher` and a reason."""
        check_budget(epsilon, delta)
        check_unit(unit)
        with self.change() as rows:
            now = rows.state.budgets.get(unit)
            raised = now is not None and (epsilon > now[0] or delta > now[1])
            if raised and not (higher and reason.strip()):
                missing = (
                    "a reason"
                    if higher
                    else "saying so and a reason (--raise --reason WHY, or higher=True, reason=... in Python)"
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

    def claim_all(
        self, claims: Sequence[Claim], partial: bool = False, whole: bool = False
    ) -> list[GrantedClaim]:
        """Begin all of these runs, or none; with `whole`, all their rounds are reserved in the same change.

        With `partial`, a run that does not fit is granted as many rounds as do, a number that is fixed now.
        """
        granted: list[GrantedClaim] = []
        try:
            with self.change() as rows:
                granted += grant_all(rows, claims, partial)
                for claim in granted if whole else ():
                    reserve(rows, [claim.run], 0, claim.rounds)
        except Problem:
            for run in (g.run for g in granted if g.hash in {entry.hash for entry in self._known}):
                with contextlib.suppress(Problem):  # nothing was released, so nothing needs to stay charged
                    self.cancel(run)
            raise
        return granted

    def check_all(self, claims: Sequence[Claim]) -> None:
        """Raise `Spent` unless all of these runs fit together; nothing is written."""
        state = self.state()
        if state.filter.fits(state, claims):
            return
        try:
            with self.change() as rows:
                grant_all(rows, claims, partial=False)
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
            return reserve(rows, runs, first, last)

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
            rows.state.check_not_released(run)
            rows.state.claim_of(run)  # raises if there is no such run
            rows.state.check_not_before(run)
            if rows.state.claim_of(run).trials is not None:
                raise Problem(
                    f"ledger '{self.path}': run {run} is the choice of a sweep; its row decides how many"
                    " trials there are, so it stays charged"
                )
            if rows.state.reserved(run):
                raise Problem(f"ledger '{self.path}': run {run} has released something, so it stays charged")
            rows.add("cancel", {"run": run})


class _Undo(Exception):
    """Raised to roll a change back."""


def cannot_read(path: Path, error: sqlite3.Error) -> str:
    """Return why a ledger cannot be read, and what to do."""
    if not _is_damaged(error):
        return f"ledger '{path}' cannot be read: {error}; check the disk and try again, or restore a backup"
    return (
        f"ledger '{path}' cannot be read: {error}; restore a backup or, if there is none, remove the file and"
        f" begin with what its witness knows (`coterie ledger recover {path} --reason WHY`)"
    )


def _is_damaged(error: sqlite3.Error) -> bool:
    return any(sign in str(error) for sign in ("not a database", "malformed", "no such table"))


def cannot_write(path: Path, error: sqlite3.Error) -> str:
    """Return why a ledger cannot be written, and what to do."""
    if _is_damaged(error):
        return cannot_read(path, error)
    return (
        f"ledger '{path}' cannot be written: {error}; nothing is trained without it. Free some space, make it"
        " writable, or restore a backup"
    )


def check_unit(unit: str) -> None:
    """Raise `Problem` if there is no such unit."""
    if unit not in UNITS:
        raise Problem(f"unit: expected one of {', '.join(UNITS)}, got '{unit}'")


def check_budget(epsilon: float, delta: float) -> None:
    """Raise `Problem` unless a ledger can have this budget."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise Problem(f"a ledger's epsilon must be a finite number > 0, got {epsilon:g}")
    if not 0 < delta < 1:
        raise Problem(f"delta must be a number in (0, 1), got {delta:g}")
