"""Kills within blocks, two writers, and clocks that jump: what is released is charged, and never too much."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from coterie.privacy import keys
from coterie.privacy.keys import new_key
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.ledger import make_ledger, open_ledger, read_ledger
from coterie.privacy.ledger.place import rekey_ledgers
from coterie.privacy.ledger.verify import check_ledger
from tests.books import WHO, custody, spent
from tests.faulty_books import claim
from tests.helpers import refused
from tests.releases import meter_at, prepare, train

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What became of trainings and writers that were killed."""
    command = [sys.executable, "-m", "tests.block_kills", str(tmp_path_factory.mktemp("kills"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_training_killed_within_a_block_is_charged_for_the_block_and_resumes(killed):
    """Both silos' reservations of the block stay open, since nobody knows what became of it."""
    assert killed["blocks"] == {"left": [2] * 5, "end": [2] * 5}


def test_a_writer_that_is_killed_beside_another_takes_no_more_than_there_is(killed):
    """It is killed within a change: nothing of that is left, and the other goes on."""
    assert killed["writers"] == {"killed": 1, "first": 5, "second": 35, "runs": 40, "reserved": 40}


def take_all(book) -> int:
    """Claim and reserve one round after the other until the budget is spent; give how many."""
    count = 0
    while True:
        try:
            run = book.claim(claim(rounds=1)).run
        except Spent:
            return count
        book.reserve(run, 0, 1)
        count += 1


@pytest.mark.parametrize("connections", [1, 3])
def test_threads_that_claim_at_once_take_exactly_what_there_is(tmp_path, connections):
    """Each with a ledger of its own, or all with the same."""
    budget = 30.5 * claim(rounds=1).epsilon, 0.1
    books = [open_ledger(tmp_path, WHO, budget, custody=custody(tmp_path)) for _ in range(connections)]
    with ThreadPoolExecutor(3) as pool:
        counts = list(pool.map(take_all, (books * 3)[:3]))
    assert sum(counts) == 30
    for book in books:
        assert len(book.state().runs) == 30
        book.close()
    check_ledger(books[0].path, custody(tmp_path).witness)


class Clock:
    """A clock that tests set: it is what rows, heads and keys are stamped and checked with."""

    def __init__(self, monkeypatch) -> None:
        self.ahead = timedelta()
        clock, real = self, time.time

        class Datetime(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.fromtimestamp(real(), tz) + clock.ahead

        monkeypatch.setattr(keys, "datetime", Datetime)
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead.total_seconds())


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


JUMPS = [timedelta(days=365 * 70), timedelta(minutes=-4), timedelta(hours=1), timedelta(days=30), timedelta()]


def test_a_clock_that_jumps_between_rows_changes_no_total(tmp_path, clock):
    """Also back, by as much as two clocks may differ; rows, heads and the witness keep their order."""
    totals = []
    for name, jumps in (("steady", [timedelta()] * 5), ("jumping", JUMPS)):
        clock.ahead = timedelta()
        book = open_ledger(tmp_path / name, WHO, (1e6, 0.5), custody=custody(tmp_path / name))
        for clock.ahead in jumps:
            run = book.claim(claim(4)).run
            book.commit(book.reserve(run, 0, 4).seq, "digest", 2)
        book.close()
        again = open_ledger(tmp_path / name, WHO, custody=custody(tmp_path / name))
        totals.append((spent(again), [head.number for head in again.heads()]))
        check_ledger(again.path, custody(tmp_path / name).witness)
        again.close()
    assert totals[0] == totals[1]
    assert totals[0][0][0] == pytest.approx(5 * claim(4).epsilon)


def test_a_clock_that_goes_back_beyond_its_key_stops_a_training_and_all_stays_charged(tmp_path, clock):
    """Nobody can tell when such a row was signed: it is refused until the clock is right again."""
    prepare(tmp_path)

    def back(number, _score):
        if number == 1:
            clock.ahead = timedelta(days=-400)

    with refused("check the clock"):
        train(tmp_path, back)
    with refused("check the clock"):
        meter_at(tmp_path)
    clock.ahead = timedelta(days=400)
    meter = meter_at(tmp_path)
    for ledger in meter.ledgers:
        assert [(row["first"], row["last"]) for row in ledger.state().reservations.values()] == [(0, 2)]
    meter.close()
    train(tmp_path)
    meter = meter_at(tmp_path)
    for ledger in meter.ledgers:
        state = ledger.state()
        assert [(row["first"], row["last"]) for row in state.reservations.values()] == [(0, 2), (2, 4)]
        assert state.committed == set(state.reservations)
        check_ledger(ledger.path)
    meter.close()


def test_a_clock_that_goes_ahead_of_a_key_that_expires_stops_a_ledger_until_it_is_right(tmp_path, clock):
    new_key(tmp_path / "own.key", valid_days=30)
    witnessed = Custody(tmp_path / "own.key", custody(tmp_path).witness)
    book = open_ledger(tmp_path, WHO, (1e6, 0.5), custody=witnessed)
    run = book.claim(claim(4)).run
    clock.ahead = timedelta(days=31)
    with refused("expired on"):
        book.reserve(run, 0, 4)
    assert not book.state().reservations
    clock.ahead = timedelta()
    book.reserve(run, 0, 4)
    assert spent(book)[0] == claim(4).epsilon
    book.close()


def test_a_ledger_made_by_a_clock_that_was_ahead_has_a_way_out(tmp_path, clock):
    clock.ahead = timedelta(days=3650)
    book = open_ledger(tmp_path, WHO, (1e6, 0.5), custody=custody(tmp_path))
    book.reserve(book.claim(claim(4)).run, 0, 4)
    book.close()
    clock.ahead = timedelta()
    with refused("check the clock; if it was wrong then, make a new key and give it to its ledger"):
        open_ledger(tmp_path, WHO, custody=custody(tmp_path))
    new_key(tmp_path / "new.key")
    rekey_ledgers(book.path, "the clock was wrong", tmp_path / "new.key", witness=tmp_path / "witness")
    again = open_ledger(tmp_path, WHO, custody=Custody(tmp_path / "new.key", custody(tmp_path).witness))
    assert spent(again)[0] == claim(4).epsilon
    again.reserve(again.claim(claim(4)).run, 0, 4)
    check_ledger(again.path, custody(tmp_path).witness)
    again.close()


def test_ledgers_are_made_whole_by_a_clock_that_stands_still(tmp_path, monkeypatch):
    """Several threads make the same one at what is the same time: each builds its own, and one is taken."""
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    kept, together = custody(tmp_path), threading.Barrier(4)

    def make(_number):
        together.wait()
        opened = {"filter": "basic", "order": 2}
        make_ledger(tmp_path / f"{WHO.fingerprint}.sqlite", WHO, opened, {"example": (5.0, 1e-3)}, kept)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    book = read_ledger(tmp_path / f"{WHO.fingerprint}.sqlite", custody=kept)
    assert [entry.kind for entry in book.entries()] == ["open", "budget"]
    book.close()
    assert not list(tmp_path.glob(".*"))
