"""What a guard must not forget: approvals, trainings, and every answer it gave.

An answer is on the disk before it leaves. The same request again gets the same bytes, and costs nothing,
because it is the same release; any other request for an answered call is refused. Of each kind of call, the
answers of the last rounds are kept whole, older ones by their digest only. So the answer to a plan is always
there for a coordinator that starts again.

Answers and states may be as long as a model, so they are written in place (`_put`): SQLite would hold two
more copies of a value that it is given.
The state of a round's secure sum is written together with the answer that it belongs to. It holds secrets, so
once a later round is answered only its row stays, empty.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from ..errors import Problem

PAGE = 65_536  # bytes: models are written about three times faster than with small pages
KEPT = 3  # rounds whose answers are kept whole
TABLES = """
create table if not exists approvals (hash text primary key, time text not null, how text not null) strict;
create table if not exists trainings (
  training text primary key, hash text not null, plan text not null, epsilon real not null,
  began text not null, run integer, round integer not null default 0, status text not null
) strict;
create table if not exists states (training text primary key, state blob not null) strict;
create table if not exists answers (
  training text not null, round integer not null, call integer not null, request text not null,
  digest text not null, answer blob, primary key (training, round, call)
) strict;
create table if not exists sums (
  training text not null, round integer not null, state blob not null, primary key (training, round)
) strict;
"""


@dataclass(frozen=True)
class Training:
    """What a guard knows about a training; `round` is the first that it has not answered."""

    training: str
    hash: str
    plan: str
    epsilon: float
    began: str
    run: int | None
    round: int
    status: str


KNOWN = ", ".join(field.name for field in fields(Training))


class Store:
    """A guard's memory, an SQLite file; every change is on the disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.connection = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
            self.connection.execute(f"pragma page_size = {PAGE}")
            self.connection.execute("pragma journal_mode = wal")
            self.connection.execute("pragma synchronous = full")
            self.connection.executescript(TABLES)
            columns = self.connection.execute("select name from pragma_table_info('trainings')").fetchall()
        except sqlite3.Error as error:
            raise Problem(f"the guard's memory '{path}' cannot be opened: {error}") from error
        if ("state",) in columns:  # models kept at home would be lost, and start anew
            self.close()
            raise Problem(
                f"the guard's memory '{path}' was written by an older version: finish its trainings with that"
                " version, then move the file away"
            )

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Change several rows, all or none."""
        try:
            self.connection.execute("begin immediate")
            try:
                yield self.connection
                self.connection.execute("commit")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("rollback")
                raise
        except sqlite3.Error as error:
            raise Problem(f"the guard's memory '{self.path}' cannot be written: {error}") from error

    def approve(self, plan_hash: str, time: str, how: str) -> None:
        """Remember that a plan was approved."""
        with self._change() as rows:
            rows.execute("insert or ignore into approvals values (?, ?, ?)", (plan_hash, time, how))

    def is_approved(self, plan_hash: str) -> bool:
        """Return whether a plan was approved."""
        found = self.connection.execute("select 1 from approvals where hash = ?", (plan_hash,))
        return found.fetchone() is not None

    def training(self, name: str) -> Training | None:
        """Return what is known about a training."""
        row = self.connection.execute(f"select {KNOWN} from trainings where training = ?", (name,)).fetchone()
        return None if row is None else Training(*row)

    def trainings(self) -> list[Training]:
        """Return all trainings, the oldest first."""
        rows = self.connection.execute(f"select {KNOWN} from trainings order by began, training")
        return [Training(*row) for row in rows]

    def state(self, name: str) -> bytes | None:
        """Return what a silo keeps between the rounds of a training, which may be as long as a model."""
        row = self.connection.execute("select state from states where training = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def begin(self, training: Training) -> None:
        """Remember a training before it is charged."""
        values = tuple(vars(training).values())
        with self._change() as rows:
            rows.execute(f"insert into trainings ({KNOWN}) values (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def update(self, name: str, **fields: int | str | bytes | None) -> None:
        """Change some fields of a training."""
        keys = ", ".join(f"{key} = ?" for key in fields)
        with self._change() as rows:
            rows.execute(f"update trainings set {keys} where training = ?", (*fields.values(), name))

    def answered(self, name: str, number: int, call: int) -> tuple[str, str, bytes | None] | None:
        """Return the request, the digest of the answer and the answer of a call, if it was answered."""
        found = self.connection.execute(
            "select request, digest, answer from answers where training = ? and round = ? and call = ?",
            (name, number, call),
        )
        row = found.fetchone()
        return None if row is None else (row[0], row[1], row[2])

    def sum_state(self, name: str, number: int) -> bytes | None:
        """Return the state of a round's secure sum: None before it begins, empty when it is closed."""
        found = self.connection.execute(
            "select state from sums where training = ? and round = ?", (name, number)
        )
        row = found.fetchone()
        return None if row is None else bytes(row[0])

    def answer(
        self,
        name: str,
        number: int,
        call: int,
        request: str,
        digest: str,
        answer: bytes,
        state: bytes | None,
        further: int | None,
        sum_state: bytes | None = None,
        status: str | None = None,
    ) -> None:
        """Remember an answer, with the silo's new state, its next round, sum and status, all or nothing."""
        with self._change() as rows:
            known = (name, number, call, request, digest, len(answer))
            added = rows.execute("insert into answers values (?, ?, ?, ?, ?, zeroblob(?))", known)
            _put(rows, "answers", "answer", added.lastrowid, answer)
            if further is not None:
                rows.execute("update trainings set round = ? where training = ?", (further, name))
            if state is not None:
                _keep_state(rows, name, state)
            if status is not None:
                rows.execute("update trainings set status = ? where training = ?", (status, name))
            if sum_state is not None:
                rows.execute("insert or replace into sums values (?, ?, ?)", (name, number, sum_state))
            rows.execute("update sums set state = x'' where training = ? and round < ?", (name, number))
            rows.execute(
                "update answers set answer = null where training = ? and call = ? and round < ?",
                (name, call, number - KEPT + 1),
            )


def _keep_state(rows: sqlite3.Connection, name: str, state: bytes) -> None:
    """Write what a silo keeps of a training, over the last one if that is as long."""
    found = rows.execute("select rowid, length(state) from states where training = ?", (name,)).fetchone()
    if found is not None and found[1] == len(state):
        place = found[0]
    else:
        blank = "insert or replace into states values (?, zeroblob(?))"
        place = rows.execute(blank, (name, len(state))).lastrowid
    _put(rows, "states", "state", place, state)


def _put(rows: sqlite3.Connection, table: str, column: str, row: int | None, content: bytes) -> None:
    """Write bytes in the place that a row has for them."""
    assert row is not None
    if content:
        with rows.blobopen(table, column, row) as place:
            place.write(content)
