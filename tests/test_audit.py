"""Checking a ledger by its rules, and what is refused before anything is charged."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from coterie.cli.ledger import set_budgets
from coterie.errors import Problem
from coterie.privacy import calibration
from coterie.privacy.events import grouped
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.heads import PURPOSE, SignedHead, sign_head
from coterie.privacy.ledger.ledger import read_ledger
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.trials import Trials
from tests.books import DELTA, ledger, plan, spent


def forge(book, *rows):
    """Append rows that no call would write, chained as they should be, and signed: the key's holder can."""
    first, before = book.entries()[0].body, book.signed_head.facts

    def sign(key, identity, number, last, state):
        try:
            return sign_head(key, identity, number, last, state)
        except (LookupError, TypeError, Problem):  # rows that cannot be added up
            pass
        text = json.dumps({**before, "number": number, "rows": last.seq, "hash": last.hash})
        return SignedHead(text, key.sign(PURPOSE, text))

    with patch("coterie.privacy.ledger.book.sign_head", sign), book.change() as changes:
        for kind, body in rows:
            changes.state.sums.clear()
            changes.add(kind, {**first, **body} if kind == "open" else body)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("cancel", {"run": 3})], "has released something"),
        ([("open", {"filter": "rdp", "order": 2})], "must open the ledger"),
        ([("budget", {"unit": "example", "epsilon": 1e9, "delta": 0.1, "raised": False, "reason": ""})], "raised"),
        ([("budget", {"unit": "example", "epsilon": 1e-3, "delta": 1e-6, "raised": True, "reason": "x"})], "marked as raising"),
        ([("budget", {"unit": "example", "epsilon": 1e-3, "delta": 1e-6, "raised": 0, "reason": "x"})], "marked as raising"),
        ([("budget", {"unit": "example", "epsilon": math.inf, "delta": 0.1, "raised": True, "reason": "x"})], "not a valid budget"),
        ([("reserve", {"run": 3, "first": 0, "last": 99})], "but only 10 are allowed"),
        ([("reserve", {"run": 77, "first": 0, "last": 1})], "77"),
        ([("commit", {"reservation": 77, "digest": ""})], "is not a reservation"),
        ([("gift", {})], "unknown kind of row 'gift'"),
        ([("run", {**plan().to_json(), "allowed": 10, "epsilon": math.nan})], "states epsilon nan"),
        ([("run", {**plan().to_json(), "allowed": 10, "epsilon": 0.01})], "its events give"),
        ([("run", {**plan().to_json(), "allowed": 10, "seen": []})], "must see it"),
        ([("run", {**plan().to_json(), "allowed": 10, "unit": "exampl"})], "in the unit 'exampl'"),
        ([("run", {**plan().to_json(), "allowed": 11})], "it allows 11 of 10 planned rounds"),
        ([("run", {**plan().to_json(), "allowed": 10})] * 200, "exceeds the budget"),
        ([("budget", {"unit": "example", "epsilon": 1e9, "delta": 0.1, "raised": True, "reason": None})], "raises the budget without"),
        ([("run", {**plan().to_json(), "allowed": 10.9})], "allowed: expected a whole number, got 10.9"),
        ([("run", {**plan().to_json(), "allowed": "10"})], "allowed: expected a whole number, got '10'"),
        ([("run", {**plan().to_json(), "allowed": 10, "delta": True})], "delta: expected a number, got True"),
        ([("run", {**plan().to_json(), "allowed": 10, "stages": [{"rounds": "1", "events": []}]})], "rounds: expected"),
        ([("budget", {"unit": "foo", "epsilon": 1.0, "delta": 0.1, "raised": False, "reason": ""})], "in the unit 'foo'"),
        ([("run", {**plan().to_json(), "allowed": 10, "epsilon": 0.0, "stages": [{"rounds": 20, "events": []}, {"rounds": -10, "events": []}]})], "every stage"),
        ([("run", {**plan().to_json(), "allowed": 10, "trials": {"distribution": "geometric", "mean": True}})], "mean: expected a number"),
        ([("budget", {"unit": "example", "epsilon": "1", "delta": 1e-6, "raised": False, "reason": ""})], "epsilon: expected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_rows_that_no_rule_allows_are_found(tmp_path, rows, said):
    book = ledger(tmp_path)
    claim = book.claim(plan())
    book.reserve(claim.run, 0, 10)
    forge(book, *rows)
    with pytest.raises(Problem, match=rf"row \d+.*{said}"):
        check_ledger(book.path)


def test_the_renyi_filter_adds_up_at_its_own_order_and_against_whoever_saw_most(tmp_path):
    """After the budget was lowered totals are still those of the first order."""
    book = ledger(tmp_path, epsilon=20.0, filter="rdp")
    one = plan(rounds=1)
    claim = book.claim(one)
    book.reserve(claim.run, 0, 1)
    book.set_budget("example", 19.0, 1e-6)
    order = book.state().order
    spent_now = one.divergence(0, 1, order) + math.log1p(-1 / order) - math.log(1e-6 * order) / (order - 1)
    assert spent(book)[0] == pytest.approx(spent_now)
    book = ledger(tmp_path / "two", epsilon=12.0, filter="rdp")
    for _ in range(40):
        hidden = book.claim(plan(rounds=1, seen=("personal",)), partial=True)
        book.reserve(hidden.run, 0, 1)
        if spent(book, "personal")[0] > 9:
            break
    left = book.state().filter.affordable(book.state(), plan(rounds=400), True)
    alone = book.state().filter.affordable(book.state(), plan(rounds=400, seen=("server",)), True)
    assert 0 < left < alone


def test_basic_room_is_what_is_left_against_whoever_saw_most(tmp_path):
    asked = plan()
    book = ledger(tmp_path, epsilon=1.5 * asked.epsilon)
    book.claim(plan(seen=("personal",)))
    with pytest.raises(Spent):
        book.claim(asked)
    book.claim(plan(seen=("server",)))


def test_repeats_of_a_best_trial_are_charged_by_both_filters(tmp_path):
    best = replace(plan(), trials=Trials("geometric", 3.0))
    best = replace(best, epsilon=best.certified(0, 10))
    for filter in ("basic", "rdp"):
        book = ledger(tmp_path / filter, epsilon=500.0, delta=1e-2, filter=filter)
        claim = book.claim(best)
        book.reserve(claim.run, 0, 5)
        once = spent(book)[0]
        book.reserve(claim.run, 5, 10)
        assert spent(book)[0] == once
        book.reserve(claim.run, 2, 4)
        assert spent(book)[0] > once


def test_odd_folders_and_double_cancelling(tmp_path):
    book = ledger(tmp_path / "a #1? 100%")
    claim = book.claim(plan())
    book.cancel(claim.run)
    with pytest.raises(Problem, match="the ledger has no run"):
        book.cancel(claim.run)


def test_what_a_process_believes_is_not_believed_by_a_check(tmp_path, monkeypatch):
    """A forged certificate gets a run past the claim, not past the audit."""
    asked = replace(plan(), epsilon=0.01)
    key = grouped(asked.events(0, 10)), DELTA
    monkeypatch.setitem(calibration._CERTIFIED, key, 0.01)
    book = ledger(tmp_path)
    book.claim(asked)
    with pytest.raises(Problem, match=r"row 3: it states epsilon 0\.01, but its events give"):
        check_ledger(book.path)


def test_calibrations_kept_on_disk_are_certified_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "_CERTIFIED", {})
    target = calibration.Target(2.0, 1e-5, 0.25, 40)
    calibration.calibrate([target])
    assert len(calibration._CERTIFIED) == 1
    certified = dict(calibration._CERTIFIED)
    calibration._CERTIFIED.clear()
    calibration.calibrate([target])
    assert certified == calibration._CERTIFIED, "what the disk has is certified anew"


def test_a_ledger_can_be_checked_where_nothing_may_be_written(tmp_path, monkeypatch):
    book = ledger(tmp_path)
    book.claim(plan())
    book.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert check_ledger(book.path).runs == 1
    only = read_ledger(book.path, only_read=True)
    with pytest.raises(Problem, match="cannot be written"):
        only.claim(plan())
    Path(f"{book.path}-wal").write_bytes(b"rows")
    with pytest.raises(Problem, match="is in use"):
        check_ledger(book.path)


def test_a_ledger_under_another_name_is_found(tmp_path):
    book = ledger(tmp_path)
    book.close()
    other = tmp_path / f"{'0' * 24}.sqlite"
    other.write_bytes(book.path.read_bytes())
    with pytest.raises(Problem, match="has another ledger's name: it belongs to 'north'"):
        check_ledger(other)


def test_budgets_of_units_that_are_not_trained_are_refused(tmp_path):
    with pytest.raises(Problem, match="unit: expected one of example, person, silo, got 'banana'"):
        ledger(tmp_path).set_budget("banana", 1.0, 1e-5)


def test_raising_does_not_lower_anybody(tmp_path):
    ledger(tmp_path, epsilon=8.0).close()
    with pytest.raises(
        Problem, match=r"the budget of 'north' is \(8, 0\.001\), so \(6, 0\.01\) would lower it"
    ):
        set_budgets(tmp_path, "example", (6.0, 1e-2), "more", True, witness=str(tmp_path / "witness"))
    set_budgets(tmp_path, "example", (9.0, 1e-2), "more", True, witness=str(tmp_path / "witness"))


def test_runs_that_do_not_all_fit_are_refused_and_nothing_is_written(tmp_path):
    asked = plan()
    book = ledger(tmp_path, epsilon=2.5 * asked.epsilon)
    head = book.head
    book.check_all([asked, asked])
    with pytest.raises(Spent):
        book.check_all([asked] * 3)
    assert book.head == head
    assert spent(book) == (0, 0)
