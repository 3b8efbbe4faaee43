"""Two units in one ledger: whole silos count for their examples, never the other way round."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from scipy import stats

from coterie.errors import Problem
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.entries import NONE
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.ledger import open_ledger
from coterie.privacy.ledger.verify import check_ledger
from tests.books import DELTA, WHO, custody, plan
from tests.test_audit import forge

OTHERS = ("silos", "shared", "personal")


def whole(rounds=6, noise=3.0, rate=1.0, seen=OTHERS, unprotected=("server",)):
    """What a run asks of a whole silo: uploads of each round in a noisy sum of the server's."""
    stages = ((rounds, (Event("gaussian", noise, rate),)),)
    asked = Claim("fedavg", "silo", DELTA, 0.0, stages, seen, None, unprotected)
    return replace(asked, epsilon=epsilon_of(asked.events(0, rounds), DELTA))


def replaced(asked, first=0, last=6):
    return epsilon_of(asked.events(first, last), DELTA, "replace-one")


def book_of(tmp_path, silo=100.0, example=None, filter="basic"):
    book = open_ledger(tmp_path, WHO, (silo, 1e-3), "silo", filter, custody(tmp_path))
    if example is not None:
        book.set_budget("example", example, 1e-3)
    return book


def test_an_example_changes_an_upload_to_any_other_one():
    """In the unit 'example' a Gaussian of a whole silo has half the noise: uploads differ by two clips."""
    asked = whole(rounds=1, noise=3.0)
    mu = 2 / 3.0
    delta = stats.norm.cdf(mu / 2 - replaced(asked, 0, 1) / mu)
    delta -= math.exp(replaced(asked, 0, 1)) * stats.norm.cdf(-mu / 2 - replaced(asked, 0, 1) / mu)
    assert delta == pytest.approx(DELTA, rel=1e-3)
    assert replaced(asked, 0, 1) > 1.9 * asked.epsilon


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_whole_silos_count_for_examples_and_not_the_other_way_round(tmp_path, rate):
    book = book_of(tmp_path, example=100.0)
    asked, single = whole(rate=rate), plan()
    book.claim(asked)
    assert book.state().total("silo", "silos") == (asked.epsilon, DELTA)
    assert book.state().total("example", "silos") == (replaced(asked), DELTA)
    assert replaced(asked) > asked.epsilon
    book.claim(single)
    assert book.state().total("silo", "silos") == (asked.epsilon, DELTA)
    assert book.state().total("example", "silos") == (replaced(asked) + single.epsilon, 2 * DELTA)
    totals = check_ledger(book.path).totals
    assert totals["example"]["shared"] == (replaced(asked) + single.epsilon, 2 * DELTA)


def test_against_who_saw_a_silo_as_it_is_nothing_is_left_in_both_units(tmp_path):
    book = book_of(tmp_path, example=100.0)
    book.claim(plan())
    assert book.state().total("example", "server")[0] > 0
    row = book.claim(whole())
    for unit in ("example", "silo"):
        assert book.state().total(unit, "server") == NONE
        assert book.state().total(unit, "silos")[0] < math.inf
    book.cancel(row.run)
    assert book.state().total("example", "server") != NONE


def test_the_veto_does_not_stop_at_who_saw_all_and_never_ignores_the_others(tmp_path):
    asked, single = whole(), plan()
    book = book_of(tmp_path, silo=2.5 * asked.epsilon, example=replaced(asked) + 1.5 * single.epsilon)
    book.claim(asked)
    book.claim(single)
    with pytest.raises(Spent, match="in the unit 'example'"):
        book.claim(single)
    with pytest.raises(Spent, match="in the unit 'example'"):
        book.claim(asked)
    assert check_ledger(book.path).runs == 2


def test_what_is_protected_is_bounded_also_where_something_else_was_not(tmp_path):
    """A personal model that stayed at home opens no way to spend without end in later ones."""
    single = plan(seen=("personal",))
    book = book_of(tmp_path, example=2.5 * single.epsilon)
    book.claim(whole(noise=50.0, seen=("silos", "shared"), unprotected=("server", "personal")))
    assert book.state().total("example", "personal") == NONE
    book.claim(single)
    book.claim(single)
    with pytest.raises(Spent):
        book.claim(single)


def test_two_runs_add_up_and_the_third_is_refused(tmp_path):
    asked = whole()
    book = book_of(tmp_path, silo=2.5 * asked.epsilon)
    book.claim(asked)
    book.claim(asked)
    assert book.state().total("silo", "shared") == (2 * asked.epsilon, 2 * DELTA)
    with pytest.raises(Spent, match=r"in the unit 'silo', and \(.*\) of it is spent"):
        book.claim(asked)


@pytest.mark.parametrize("unit", ["example", "silo"])
def test_a_run_needs_a_budget_in_its_unit(tmp_path, unit):
    other, asked = ("silo", plan()) if unit == "example" else ("example", whole())
    book = open_ledger(tmp_path, WHO, (100.0, 1e-3), other)
    with pytest.raises(Problem, match=rf"has no budget in the unit '{unit}'; .*--unit {unit} --epsilon E"):
        book.claim(asked)
    book.set_budget(unit, 100.0, 1e-3)
    book.claim(asked)


def test_rounds_that_are_repeated_are_charged_in_both_units(tmp_path):
    asked = whole(rate=0.3)
    book = book_of(tmp_path, example=100.0)
    run = book.claim(asked).run
    book.reserve(run, 0, 4)
    book.reserve(run, 2, 6)
    again = asked.certified(2, 4)
    assert book.state().total("silo", "silos") == (pytest.approx(asked.epsilon + again), 2 * DELTA)
    both = replaced(asked) + replaced(asked, 2, 4)
    assert book.state().total("example", "silos") == (pytest.approx(both), 2 * DELTA)
    check_ledger(book.path)


def test_a_repetition_must_fit_for_examples_too(tmp_path):
    asked = whole()
    book = book_of(tmp_path, example=1.01 * replaced(asked))
    run = book.claim(asked).run
    book.reserve(run, 0, 4)
    with pytest.raises(Spent, match=r"would be repeated.*in the unit 'example' does not cover"):
        book.reserve(run, 0, 6)


def test_as_many_rounds_as_fit_in_both_units(tmp_path):
    asked = whole(rounds=12)
    most = replaced(asked, 0, 5)
    book = book_of(tmp_path, example=most)
    claim = book.claim(asked, partial=True)
    assert claim.rounds == 5
    assert book.state().total("example", "silos")[0] == most
    assert book.state().total("silo", "silos")[0] == asked.certified(0, 5)
    check_ledger(book.path)


def forged_row(**changes):
    asked = whole()
    body = {**asked.to_json(), "allowed": 6, "as_example": replaced(asked)}
    return ("run", {**body, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 0.5}, "states epsilon 0.5, but its events give"),
        ({"as_example": 0.5}, "states epsilon 0.5 in the unit 'example', but its events give"),
        ({"as_example": whole().epsilon}, "in the unit 'example', but its events give"),
        ({"unprotected": []}, "everybody sees merges"),
        ({"seen": ["silos"]}, "everybody sees merges"),
        ({"seen": ["silos", "shared", "personal", "server"]}, "cannot also see protected releases"),
        ({"unprotected": ["server", "nobody"]}, "seen by"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_forged_rows_of_whole_silos_are_found(tmp_path, changes, said):
    book = book_of(tmp_path, example=100.0)
    forge(book, forged_row())
    check_ledger(book.path)
    forge(book, forged_row(**changes))
    with pytest.raises(Problem, match=rf"row 5: .*{said}"):
        check_ledger(book.path)


def test_rows_from_before_there_were_whole_silos_are_read(tmp_path):
    book = open_ledger(tmp_path, WHO, (100.0, 1e-3))
    body = plan().to_json()
    del body["unprotected"], body["as_example"]
    forge(book, ("run", {**body, "allowed": 10}), ("reserve", {"run": 3, "first": 0, "last": 10}))
    report = check_ledger(book.path)
    assert report.totals == {"example": {name: (plan().epsilon, DELTA) for name in ("server", *OTHERS)}}


def test_a_row_without_a_known_bound_for_examples_is_none_for_them(tmp_path):
    """Renyi privacy knows no bound for drawn silos that are replaced."""
    asked = whole(rate=0.3)
    book = book_of(tmp_path, filter="rdp")
    run = book.claim(asked).run
    book.reserve(run, 0, 6)
    report = check_ledger(book.path)
    assert asked.epsilon <= report.totals["silo"]["silos"][0] < math.inf
    assert report.totals["example"]["silos"][0] == math.inf
    limited = book_of(tmp_path / "limited", example=100.0, filter="rdp")
    with pytest.raises(Spent, match="'rdp' has no bound in the unit 'example' for randomly drawn silos"):
        limited.claim(asked)
    limited.reserve(limited.claim(whole()).run, 0, 6)
    assert limited.state().total("example", "silos")[0] >= replaced(whole())


def test_examples_can_go_on_where_the_budget_of_whole_silos_was_lowered(tmp_path):
    book = book_of(tmp_path, example=200.0)
    book.claim(whole())
    book.set_budget("silo", 1e-3, 1e-3)
    book.claim(plan())
    assert check_ledger(book.path).runs == 2
    with pytest.raises(Spent):
        book.claim(whole(noise=50.0))


def test_no_trial_is_chosen_among_whole_silos():
    from coterie.privacy.trials import Trials

    with pytest.raises(Problem, match="needs the unit 'example'"):
        replace(whole(), trials=Trials("geometric", 3.0))


def test_rows_are_plain_data(tmp_path):
    book = book_of(tmp_path)
    book.claim(whole(rate=0.3))
    text = json.dumps(book.entries()[-1].body, allow_nan=False)
    assert Claim.from_json(json.loads(text)).unprotected == ("server",)
