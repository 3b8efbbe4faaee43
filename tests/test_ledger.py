"""The ledger: append-only, chained, never below what was released, never overspent, refused when in doubt."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import Problem
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.ledger.filters import Spent, best_order
from coterie.privacy.ledger.ledger import Identity, open_ledger, read_ledger
from coterie.privacy.ledger.verify import check_ledger
from tests.books import DELTA, WHO, ledger, plan, spent


def test_a_run_is_charged_when_it_begins_and_stays_charged(tmp_path):
    """A run that stopped may have stopped because of what came out: it costs what was planned."""
    book = ledger(tmp_path)
    asked = plan()
    claim = book.claim(asked)
    assert claim.rounds == 10
    assert spent(book) == (asked.epsilon, DELTA)
    row = book.reserve(claim.run, 0, 3)
    assert spent(book) == (asked.epsilon, DELTA)
    book.commit(row.seq, "abc")
    assert spent(read_ledger(book.path)) == (asked.epsilon, DELTA)


def test_runs_add_up_over_openings_and_projects(tmp_path):
    """Nothing is reset at a start: a new process and another method compose with what was there."""
    asked = plan()
    for count in range(1, 4):
        book = ledger(tmp_path)
        book.claim(asked)
        assert spent(book)[0] == pytest.approx(count * asked.epsilon, rel=1e-12)
        assert spent(book)[1] == pytest.approx(count * DELTA, rel=1e-12)
        book.close()


def test_a_run_that_does_not_fit_is_refused_and_leaves_no_row(tmp_path):
    asked = plan()
    book = ledger(tmp_path, epsilon=1.5 * asked.epsilon)
    book.claim(asked)
    before = book.head
    with pytest.raises(Spent, match=r"the budget of this data set is \(epsilon .* does not fit"):
        book.claim(asked)
    assert book.head == before


def test_a_plan_that_states_less_than_its_events_is_refused(tmp_path):
    asked = plan()
    book = ledger(tmp_path)
    with pytest.raises(Problem, match=r"the plan states epsilon .*, but its events give"):
        book.claim(replace(asked, epsilon=0.99 * asked.epsilon))
    assert book.state().runs == {}


def test_deltas_add_up_too(tmp_path):
    book = ledger(tmp_path, epsilon=1000, delta=1.5 * DELTA)
    book.claim(plan())
    with pytest.raises(Spent, match="does not fit"):
        book.claim(plan())


def test_a_run_exactly_as_large_as_the_budget_fits(tmp_path):
    asked = plan()
    book = ledger(tmp_path, epsilon=asked.epsilon, delta=DELTA)
    assert book.claim(asked).rounds == 10


def test_as_many_rounds_as_fit(tmp_path):
    """A silo that cannot pay for all rounds leaves at a round that is fixed at the start."""
    asked = plan(rounds=40)
    book = ledger(tmp_path, epsilon=asked.epsilon / 2)
    claim = book.claim(asked, partial=True)
    assert 0 < claim.rounds < 40
    certified = epsilon_of(asked.events(0, claim.rounds), DELTA)
    assert spent(book)[0] == certified <= asked.epsilon / 2
    assert epsilon_of(asked.events(0, claim.rounds + 1), DELTA) > asked.epsilon / 2
    book.reserve(claim.run, 0, claim.rounds)
    with pytest.raises(Spent, match=r"may train \d+ rounds"):
        book.reserve(claim.run, claim.rounds, claim.rounds + 1)


def test_a_budget_lowered_during_a_run_ends_it(tmp_path):
    """What is charged stays charged, the rest of the run is refused, and the ledger is still sound."""
    asked = plan()
    book = ledger(tmp_path)
    claim = book.claim(asked)
    book.reserve(claim.run, 0, 5)
    book.set_budget("example", asked.epsilon / 2, 1e-3)
    with pytest.raises(Spent, match=r"rounds 5 to 10 remain, but the budget \(epsilon"):
        book.reserve(claim.run, 5, 10)
    assert check_ledger(book.path).totals["example"]["server"][0] == asked.epsilon


def test_the_order_of_the_renyi_filter_is_fixed_when_the_ledger_is_made(tmp_path):
    """An order chosen later, with what was spent in view, would not be valid for chosen runs."""
    book = ledger(tmp_path, epsilon=6.0, filter="rdp")
    first = book.state().order
    assert first == book.entries()[0].body["order"] == best_order(6.0, 1e-3)
    book.set_budget("example", 0.1, 1e-9)
    assert book.state().order == first != best_order(0.1, 1e-9)


def test_a_run_that_released_nothing_can_be_taken_back(tmp_path):
    book = ledger(tmp_path)
    claim = book.claim(plan())
    book.cancel(claim.run)
    assert spent(book) == (0, 0)
    claim = book.claim(plan())
    book.reserve(claim.run, 0, 1)
    with pytest.raises(Problem, match="stays charged"):
        book.cancel(claim.run)


def test_totals_differ_by_adversary(tmp_path):
    book = ledger(tmp_path)
    book.claim(plan(seen=("personal",)))
    assert spent(book, "server") == (0, 0)
    assert spent(book, "personal")[0] > 0


def test_the_renyi_filter_charges_what_was_reserved(tmp_path):
    asked = plan()
    book = ledger(tmp_path, epsilon=20.0, filter="rdp")
    claim = book.claim(asked)
    assert spent(book) == (0, 0)
    book.reserve(claim.run, 0, 1)
    one = spent(book)[0]
    book.reserve(claim.run, 1, 10)
    assert one < spent(book)[0] <= 20.0
    assert (
        spent(book)[0] >= asked.epsilon
    )  # a bound that holds for chosen runs is above one for a planned run


def test_the_renyi_filter_never_overspends(tmp_path):
    book = ledger(tmp_path, epsilon=6.0, delta=1e-3, filter="rdp")
    done = 0

    def until_refused():
        nonlocal done
        for _ in range(1000):
            claim = book.claim(plan(rounds=1))
            book.reserve(claim.run, 0, 1)
            done += 1

    with pytest.raises(Spent, match="does not"):
        until_refused()
    events = plan(rounds=1).events(0, 1)
    together = tuple(Event(e.mechanism, e.noise, e.rate, e.count * done, e.sampler) for e in events)
    assert done > 5
    assert epsilon_of(together, 1e-3) <= 6.0


@settings(max_examples=15)
@given(wishes=st.lists(st.tuples(st.integers(1, 30), st.sampled_from([2.0, 4.0, 9.0])), max_size=6))
def test_no_order_of_runs_overspends(tmp_path_factory, wishes):
    book = ledger(tmp_path_factory.mktemp("ledger"), epsilon=12.0, delta=4.5 * DELTA)
    for rounds, noise in wishes:
        try:
            claim = book.claim(plan(rounds, noise), partial=True)
            book.reserve(claim.run, 0, claim.rounds)
        except Spent:
            pass
        epsilon, delta = spent(book)
        assert epsilon <= 12.0 * (1 + 1e-8)
        assert delta <= 4.5 * DELTA * (1 + 1e-8)


def test_budgets_fall_freely_and_rise_only_by_a_recorded_act(tmp_path):
    book = ledger(tmp_path, epsilon=10, delta=1e-4)
    book.set_budget("example", 5, 1e-4)
    with pytest.raises(Problem, match=r"raising it requires saying so and a reason"):
        book.set_budget("example", 6, 1e-4)
    with pytest.raises(Problem, match="raising it requires a reason"):
        book.set_budget("example", 6, 1e-4, higher=True)
    book.set_budget("example", 6, 1e-4, reason="ethics board, 12 May", higher=True)
    last = book.entries()[-1].body
    assert (last["raised"], last["reason"]) == (True, "ethics board, 12 May")
    assert book.state().budgets["example"] == (6, 1e-4)


def test_rows_cannot_be_changed_or_deleted_through_sqlite(tmp_path):
    book = ledger(tmp_path)
    for statement in ("delete from entries", "update entries set body = '{}'"):
        with pytest.raises(sqlite3.IntegrityError, match="only ever added to"):
            book.connection.execute(statement)


@pytest.mark.parametrize("column", ["kind", "body", "previous", "hash"])
def test_a_changed_row_is_named(tmp_path, column):
    book = ledger(tmp_path)
    book.claim(plan())
    book.connection.execute("drop trigger no_update")
    book.connection.execute(f"update entries set {column} = {column} || ' ' where seq = 2")
    with pytest.raises(Problem, match=r"row [23] was changed or lost"):
        read_ledger(book.path)


def test_a_lost_row_is_named(tmp_path):
    book = ledger(tmp_path)
    book.claim(plan())
    book.connection.execute("drop trigger no_delete")
    book.connection.execute("delete from entries where seq = 2")
    with pytest.raises(Problem, match="row 3 was changed or lost"):
        read_ledger(book.path)


def test_a_flipped_byte_anywhere_is_found_or_changes_nothing(tmp_path):
    """Every fifth byte of the file: what a reader reads is as before, or the ledger is refused."""
    book = ledger(tmp_path)
    claim = book.claim(plan())
    book.reserve(claim.run, 0, 10)
    rows = book.entries()
    book.connection.execute("pragma wal_checkpoint(truncate)")
    book.close()
    content = book.path.read_bytes()
    texts = content.find(b'"schema"'), content.rfind(b'"stages"')
    refused = 0
    for place in {*range(0, len(content), 5), *texts}:
        changed = bytearray(content)
        changed[place] ^= 0x10
        book.path.write_bytes(changed)
        try:
            again = read_ledger(book.path)
        except (Problem, sqlite3.Error):
            refused += 1
            assert not isinstance(sys.exc_info()[1], sqlite3.Error)
            continue
        assert again.entries() == rows, place
        again.close()
        assert place not in texts
    assert refused > len(content) / 50


CHILD = """
import sys, time
from pathlib import Path
from tests.books import WHO, custody, plan
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.ledger import open_ledger
place = Path(sys.argv[1])
book = open_ledger(place, WHO, (1e9, 1e-1), custody=custody(place))
count = 0
while True:
    try:
        claim = book.claim(plan(rounds=1))
    except Spent:
        break
    book.reserve(claim.run, 0, 1)
    count += 1
print(count)
"""


def test_two_processes_never_overspend_together(tmp_path):
    """Both take rounds until the budget is gone: together they take exactly what it pays for."""
    one = plan(rounds=1)
    ledger(tmp_path, epsilon=20.5 * one.epsilon, delta=1e-2).close()
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    root = Path(__file__).parent.parent
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ})
        for _ in range(2)
    ]
    counts = [int(child.communicate(timeout=120)[0]) for child in children]
    assert sum(counts) == 20
    assert spent(ledger(tmp_path))[0] <= 20.5 * one.epsilon


def test_a_ledger_of_another_data_set_is_refused(tmp_path):
    book = ledger(tmp_path)
    book.close()
    other = Identity("school", "south", 100)
    book.path.rename(tmp_path / f"{other.fingerprint}.sqlite")
    with pytest.raises(Problem, match=r"belongs to another data set \('north' of school, 100"):
        open_ledger(tmp_path, other)


def test_size_and_source_make_another_data_set():
    assert len({Identity(*who).fingerprint for who in
                [("a", "b", 1), ("a", "b", 2), ("a", "c", 1), ("c", "b", 1), ("ab", "", 1)]}) == 5  # fmt: skip


def test_a_corrupt_file_is_refused(tmp_path):
    book = ledger(tmp_path)
    book.close()
    book.path.write_bytes(b"this is no database, and long enough to be looked at as one" * 40)
    with pytest.raises(Problem, match=r"cannot be (read|written)"):
        open_ledger(tmp_path, WHO)


def test_a_ledger_that_cannot_be_written_is_refused(tmp_path):
    """Read-only for us: also root meets it, since the file is opened for reading only."""
    book = ledger(tmp_path)
    book.connection.execute("pragma query_only = on")
    with pytest.raises(Problem, match=r"cannot be written.*nothing is trained without it"):
        book.claim(plan())


def test_a_full_disk_is_refused(tmp_path):
    book = ledger(tmp_path)
    pages = book.connection.execute("pragma page_count").fetchone()[0]
    book.connection.execute(f"pragma max_page_count = {pages}")

    def fill():
        for _ in range(100):
            book.claim(plan())

    with pytest.raises(Problem, match="cannot be written: database or disk is full"):
        fill()
    assert len(read_ledger(book.path).entries()) >= 2


def test_another_schema_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.privacy.ledger.ledger.SCHEMA", "coterie-ledger/0")
    book = ledger(tmp_path)
    monkeypatch.undo()
    with pytest.raises(Problem, match="expected the schema coterie-ledger/2, got coterie-ledger/0"):
        read_ledger(book.path)


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1e-5), (math.inf, 1e-5), (1, 0), (1, 1), (math.nan, 0.1)])
def test_budgets_that_are_none(tmp_path, epsilon, delta):
    with pytest.raises(Problem, match="must be a"):
        open_ledger(tmp_path, WHO, (epsilon, delta))
    assert not list(tmp_path.iterdir())


def test_no_ledger_and_no_budget(tmp_path):
    with pytest.raises(Problem, match="there is no ledger of 'north'"):
        open_ledger(tmp_path, WHO)
