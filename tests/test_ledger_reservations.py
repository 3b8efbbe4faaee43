"""Rounds in a ledger: reserved before they happen, for one run or several, repeated ones charged again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coterie.errors import Problem
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.filters import Spent, repeated
from coterie.privacy.ledger.verify import check_ledger
from tests.books import DELTA, ledger, plan, spent


@pytest.mark.parametrize("filter", ["basic", "rdp", "gdp"])
def test_rounds_of_several_runs_in_one_row_are_those_of_one_row_each(tmp_path, filter):
    """Also where they are repeated, and where the repetitions fit one by one but not together."""
    books = [ledger(tmp_path / name, filter=filter) for name in "ab"]
    for book in books:
        book.claim_all([plan(), plan(noise=6.0)])
    for first, last in ((0, 4), (4, 6), (2, 10)):
        books[0].reserve_all([3, 4], first, last)
        for run in (3, 4):
            books[1].reserve(run, first, last)
    assert spent(books[0]) == pytest.approx(spent(books[1]), rel=1e-12)
    assert [books[0].state().reserved(run) for run in (3, 4)] == [((0, 4), (4, 6), (2, 10))] * 2
    check_ledger(books[0].path)
    once = ledger(tmp_path / "c", filter=filter)
    once.claim_all([plan(), plan()])
    once.reserve_all([3, 4], 0, 10)
    before = spent(once)[0]
    once.reserve(3, 0, 10)
    again = spent(once)[0] - before
    once.set_budget("example", before + 2.5 * again, 1e-3)
    with pytest.raises(Spent, match="rounds 0 to 10"):
        once.reserve_all([3, 4], 0, 10)
    once.reserve(4, 0, 10)
    check_ledger(once.path)


@pytest.mark.parametrize("runs", [[], [3, 3]])
def test_rounds_of_no_run_or_of_one_run_twice_are_not_reserved(tmp_path, runs):
    """Twice in one row would be charged as a repetition that nobody checked."""
    book = ledger(tmp_path, epsilon=1.5 * plan().epsilon)
    book.claim(plan())
    with pytest.raises(Problem, match="expected one or more different runs"):
        book.reserve_all(runs, 0, 10)
    with book.change() as rows:
        rows.add("reserve", {"runs": runs, "first": 0, "last": 1})
    with pytest.raises(Problem, match="row 4: a reservation must name one or more different runs"):
        check_ledger(book.path)


def test_a_plan_that_states_a_trifle_less_is_charged_what_it_costs(tmp_path):
    """Within what machines may differ by; it must fit as it is charged, or it could never begin."""
    asked = plan()
    less = replace(asked, epsilon=asked.epsilon * (1 - 9e-7))
    with pytest.raises(Spent):
        ledger(tmp_path / "a", epsilon=less.epsilon).claim(less)
    book = ledger(tmp_path / "b", epsilon=asked.epsilon)
    book.reserve(book.claim(less).run, 0, 10)
    assert spent(book)[0] == asked.epsilon
    with pytest.raises(Problem, match="its events give"):
        ledger(tmp_path / "c").claim(replace(asked, epsilon=asked.epsilon * (1 - 1e-5)))


def test_a_ledger_of_another_accountant_s_rounding_verifies(tmp_path):
    """Twenty thousand Fourier powers at delta 1e-9: found by dp-accounting, ours is 2e-5 above it."""
    events = (Event("gaussian", 5.2448, 0.05, 20_000),)
    book = ledger(tmp_path)
    true = epsilon_of(events, 1e-9)
    older = Claim("fedavg", "example", 1e-9, true, ((1, events),))
    for factor, good in ((1 - 2e-5, True), (1 - 1e-3, False)):
        with book.change() as rows:
            rows.add("run", {**older.to_json(), "epsilon": true * factor, "allowed": 1})
        if good:
            check_ledger(book.path)
        else:
            with pytest.raises(Problem, match="its events give"):
                check_ledger(book.path)


def test_reservations_of_older_ledgers_are_read(tmp_path):
    """They have a row for each run."""
    book = ledger(tmp_path)
    asked = plan()
    book.claim(asked)
    with book.change() as rows:
        rows.add("reserve", {"run": 3, "first": 0, "last": 4})
    book.reserve(3, 2, 10)
    assert book.state().reserved(3) == ((0, 4), (2, 10))
    assert check_ledger(book.path).uncommitted == 2
    with book.change() as rows:
        rows.add("reserve", {"runs": [], "first": 0, "last": 1})
    with pytest.raises(Problem, match="row 6: a reservation must name one or more different runs"):
        check_ledger(book.path)


@pytest.mark.parametrize("filter", ["basic", "rdp", "gdp"])
def test_runs_are_checked_together_without_a_trace(tmp_path, filter):
    asked = plan()
    book = ledger(tmp_path, epsilon=2.5 * asked.epsilon, filter=filter)
    head = book.head
    book.check_all([asked, asked])
    if filter == "basic":
        with pytest.raises(Spent, match="does not fit"):
            book.check_all([asked, asked, asked])
        with pytest.raises(Spent, match="does not fit"):
            ledger(tmp_path / "thin", delta=1.5 * DELTA).check_all([asked, asked])
        book.claim(asked)
        with pytest.raises(Spent, match="does not fit"):
            book.check_all([asked, asked])
        book.check_all([asked])
    else:
        said = r"so 20 run\(s\) more do not fit" if filter == "rdp" else "does not fit"
        with pytest.raises(Spent, match=said):
            book.check_all([asked] * 20)
        assert book.head == head
        assert not book.state().runs


def test_the_renyi_filter_begins_runs_only_if_all_of_them_can_end(tmp_path):
    """What was granted and not yet reserved counts, and what a stopped run gave back does not."""
    asked = plan()
    book = ledger(tmp_path, epsilon=1.2 * asked.epsilon, delta=DELTA, filter="rdp")
    head = book.head
    for check in (book.check_all, book.claim_all):
        with pytest.raises(Spent, match="what unfinished runs may still spend"):
            check([asked, asked])
    assert book.head == head
    first = book.claim_all([asked])[0].run
    with pytest.raises(Spent, match="so 1 run"):
        book.claim_all([asked])
    block = book.reserve(first, 0, 2)
    short = plan(rounds=6)
    with pytest.raises(Spent, match="so 1 run"):
        book.claim_all([short])
    assert book.state().unreserved() == {first: (2, 10)}
    book.commit(block.seq, "", 1)
    assert book.state().unreserved() == {}
    second = book.claim_all([short])[0].run
    book.cancel(second)
    book.reserve(first, 1, 10)
    check_ledger(book.path)


def test_a_forged_cancellation_of_a_run_that_reserved_is_found(tmp_path):
    book = ledger(tmp_path)
    run = book.claim(plan()).run
    book.reserve(run, 0, 2)
    with book.change() as rows:
        rows.add("cancel", {"run": run})
    with pytest.raises(
        Problem, match=f"it cancels run {run}, which does not exist or has released something"
    ):
        check_ledger(book.path)


def test_a_run_that_may_be_short_does_not_wait_for_unfinished_ones(tmp_path):
    asked = plan()
    book = ledger(tmp_path, epsilon=1.5 * asked.epsilon, filter="rdp")
    book.claim_all([asked])
    assert book.claim_all([asked], partial=True)[0].rounds == 10


def test_repeated_rounds_are_charged_as_a_release_of_their_own(tmp_path):
    """After a crash rounds are drawn anew, and whether to go on may depend on what came out."""
    asked = plan()
    book = ledger(tmp_path)
    claim = book.claim(asked)
    book.reserve(claim.run, 0, 5)
    book.reserve(claim.run, 2, 10)
    again = epsilon_of(asked.events(2, 5), DELTA)
    assert spent(book) == (pytest.approx(asked.epsilon + again, rel=1e-12), 2 * DELTA)
    together = (*asked.events(0, 5), *asked.events(2, 10))
    assert spent(book)[0] >= epsilon_of(together, 2 * DELTA)
    book.reserve(claim.run, 2, 5)
    assert spent(book) == (pytest.approx(asked.epsilon + 2 * again, rel=1e-12), pytest.approx(3 * DELTA))


def test_what_is_repeated():
    assert repeated([]) == repeated([(0, 3), (3, 7)]) == []
    assert repeated([(0, 5), (0, 5), (4, 9)]) == [(0, 5), (4, 5)]


@pytest.mark.parametrize(("times", "delta"), [(1.01, 2 * DELTA), (2.5, 1.5 * DELTA)])
def test_repeated_rounds_must_fit(tmp_path, times, delta):
    asked = plan()
    book = ledger(tmp_path, epsilon=asked.epsilon * times, delta=delta)
    claim = book.claim(asked)
    book.reserve(claim.run, 0, 5)
    with pytest.raises(Spent, match="would be repeated, which is charged again, but the budget"):
        book.reserve(claim.run, 0, 10)
    book.reserve(claim.run, 5, 10)


def test_runs_held_whole_are_charged_and_reserved_in_one_change_or_not_at_all(tmp_path, monkeypatch):
    book = ledger(tmp_path)
    heads = len(book.heads())

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("coterie.privacy.ledger.book.reserve", killed)
        with pytest.raises(KeyboardInterrupt):
            book.claim_all([plan()], whole=True)
    assert not book.state().runs
    assert len(book.heads()) == heads
    run = book.claim_all([plan()], whole=True)[0].run
    assert book.state().reserved(run) == ((0, 10),)
    assert len(book.heads()) == heads + 1
    with pytest.raises(Problem, match="so it stays charged"):
        book.cancel(run)
