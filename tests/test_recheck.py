"""Prover and verifier share no arithmetic: dp-accounting confirms what is true and refutes what is not."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import Problem
from coterie.privacy import accountant, calibration
from coterie.privacy.accountant import epsilon_of, renyi_epsilon
from coterie.privacy.events import Event
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.recheck import TOLERANCE, recheck
from coterie.privacy.statement.build import _certified, checksum, text_of
from coterie.privacy.statement.recheck import recheck_lines, recheck_statement
from coterie.privacy.statement.verify import verify
from tests.books import ledger, plan
from tests.helpers import call
from tests.test_statement import make

FIXED, CHOICE = ("sample of fixed size",), ("private choice",)


def gaussian(noise, rate, count, sampler="poisson"):
    return (Event("gaussian", noise, rate, count, sampler),)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(
    ("events", "curves"),
    [
        (gaussian(5.0, 0.3, 603), ()),
        (gaussian(2.0, 0.1, 100), ()),
        (gaussian(0.6, 0.01, 500), ()),
        (gaussian(1.0, 0.01, 10_000), ()),
        (gaussian(1.0, 0.5, 1), ()),
        (gaussian(2.0, 0.001, 10**6), ()),
        (gaussian(376.0, 0.0668, 15 * 10**6), ()),
        (gaussian(30.0, 0.001, 10), ()),
        (gaussian(4.0, 0.1, 200, "fixed"), FIXED),
        ((*gaussian(5.0, 0.3, 603), Event("selection", 4.0, count=20)), CHOICE),
        ((*gaussian(5.0, 0.3, 60), Event("laplace", 10.0, count=20)), ()),
        ((*gaussian(5.0, 0.3, 60), *gaussian(3.0, 1.0, 2)), ()),
    ],
    ids=str,
)
def test_what_our_accountant_finds_is_confirmed_and_much_less_is_refuted(events, curves, adjacency):
    ours = epsilon_of(events, 1e-5, adjacency)
    found = recheck(events, 1e-5, ours, adjacency)
    assert (found.verdict, found.by) == ("confirmed", "privacy-loss distributions")
    assert found.epsilon * (1 - TOLERANCE) <= ours + 1e-9
    assert found.curves == curves
    less = recheck(events, 1e-5, ours * 0.8, adjacency)
    assert less.verdict == "refuted" or curves == CHOICE or ours < 1e-3
    assert less.epsilon > ours * 0.8


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_gaussian_without_sampling_is_checked_by_its_closed_form(adjacency):
    events = (Event("gaussian", 3.0, count=4), Event("gaussian", 2.0))
    ours = epsilon_of(events, 1e-5, adjacency)
    assert recheck(events, 1e-5, ours, adjacency).verdict == "confirmed"
    assert recheck(events, 1e-5, ours, adjacency).epsilon == pytest.approx(ours, rel=1e-7)
    assert recheck(events, 1e-5, ours * (1 - 2 * TOLERANCE), adjacency).verdict == "refuted"


def test_renyi_privacy_confirms_what_renyi_privacy_stated():
    events = gaussian(5.0, 0.05, 10**6)
    stated = renyi_epsilon(events, 1e-12)
    found = recheck(events, 1e-12, stated)
    assert found.verdict == "confirmed"


def test_nothing_and_endless_noise_cost_nothing_and_no_noise_everything():
    assert recheck((), 1e-5, 0.0).verdict == "confirmed"
    assert recheck(gaussian(math.inf, 0.5, 3), 1e-5, 0.0).verdict == "confirmed"
    assert recheck(gaussian(1e-9, 0.5, 3), 1e-5, 1e6).verdict == "refuted"
    assert recheck(gaussian(1e-9, 0.5, 3), 1e-5, math.inf).verdict == "confirmed"


@pytest.mark.parametrize("stated", [0.0, 1e-12, 0.1])
@pytest.mark.parametrize("count", [1, 10**6, 10**12])
def test_a_forger_cannot_keep_the_verifier_busy(count, stated):
    """It ends within seconds, whatever the events say, and does not confirm."""
    for noise in (0.01, 1.0, 100.0):
        assert recheck(gaussian(noise, 0.3, count), 1e-6, stated).verdict != "confirmed" or stated == 0.1


drawn = st.lists(
    st.one_of(
        st.builds(
            Event,
            st.just("gaussian"),
            st.floats(0.4, 30),
            st.sampled_from([0.003, 0.2, 1.0]),
            st.integers(1, 3000),
            st.sampled_from(["poisson", "fixed"]),
        ),
        st.builds(Event, st.just("laplace"), st.floats(1, 50), st.just(1.0), st.integers(1, 5)),
        st.builds(Event, st.just("selection"), st.floats(1, 50), st.just(1.0), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=12)
@given(events=drawn, delta=st.sampled_from([1e-2, 1e-5, 1e-8]))
def test_two_accountants_agree(events, delta):
    for adjacency in ("zero-out", "replace-one"):
        ours = epsilon_of(tuple(events), delta, adjacency)
        assert recheck(tuple(events), delta, ours, adjacency).verdict != "refuted"
        smooth = all(event.mechanism == "gaussian" for event in events)
        more = ours * (1.01 if smooth else 1.2) + 1e-4
        assert recheck(tuple(events), delta, more, adjacency).verdict == "confirmed"


@pytest.fixture
def broken(monkeypatch):
    """Our own accountant finds 0.97 of what is true."""
    real = accountant._upper

    def less(*given, **more):
        found, by = real(*given, **more)
        return found * 0.97, by

    caches = (accountant.upper_of, accountant.least_of, accountant.bounds, _certified)
    for cached in caches:
        cached.cache_clear()
    monkeypatch.setattr(accountant, "_upper", less)
    monkeypatch.setattr(calibration, "_CERTIFIED", {})
    yield
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()


def test_a_statement_from_a_broken_accountant_is_found(broken):
    with pytest.raises(Problem, match=r"guarantee\.epsilon: states .* events give 5\.80.* \(dp-accounting\)"):
        verify(text_of(make()))


def test_a_ledger_of_a_broken_accountant_is_found(broken, tmp_path):
    book = ledger(tmp_path)
    book.claim(plan())
    check_ledger(book.path)  # what computes the same way finds the same
    with pytest.raises(Problem, match=r"row 3: it charges epsilon .* for rounds 0 to 10, but dp-accounting"):
        check_ledger(book.path, independently=True)


def test_a_ledger_counts_what_is_confirmed_also_of_repeated_rounds(tmp_path):
    book = ledger(tmp_path)
    claim = book.claim(plan())
    assert check_ledger(book.path, independently=True).rechecked == {"confirmed": 1}
    for first, last in ((0, 5), (2, 5), (5, 7)):
        book.reserve(claim.run, first, last)
    assert check_ledger(book.path, independently=True).rechecked == {"confirmed": 2}
    assert check_ledger(book.path).rechecked == {}


def test_repeated_rounds_of_a_broken_accountant_are_found(tmp_path, broken, monkeypatch):
    book = ledger(tmp_path)
    asked = plan()
    claim = book.claim(replace(asked, epsilon=asked.epsilon * 1.1))
    for first, last in ((0, 5), (2, 5)):
        book.reserve(claim.run, first, last)
    with pytest.raises(Problem, match=r"row 5: it charges epsilon .* for rounds 2 to 5, but dp-accounting"):
        check_ledger(book.path, independently=True)


@pytest.mark.parametrize("share", [0.5, 0.99, 0.999])
def test_falsified_numbers_of_a_statement_fail(share):
    content = make()
    content["guarantee"]["epsilon"] *= share
    for entry in content["adversaries"].values():
        entry["epsilon"] *= share
    content["checksum"] = checksum(content)
    with pytest.raises(Problem, match=r"guarantee\.epsilon: states"):
        verify(text_of(content))


def test_verifying_says_who_confirms(monkeypatch, capsys, tmp_path):
    file = tmp_path / "north.json"
    file.write_text(text_of(make()))
    code, out, _ = call(monkeypatch, capsys, "statement", "verify", str(file))
    assert code == 0
    said = "guarantee.epsilon: dp-accounting confirms it (at most 5.801 by privacy-loss distributions)"
    assert said in " ".join(out.split())
    (facts,) = json.loads(call(monkeypatch, capsys, "statement", "verify", str(file), "--json")[1])
    assert [(row["field"], row["verdict"]) for row in facts["recomputed"]] == [
        ("guarantee.epsilon", "confirmed"),
        ("guarantee.replace_one", "confirmed"),
    ]
    assert facts["recomputed"][0]["epsilon"] <= 5.801


def test_what_dp_accounting_does_not_know_is_named():
    choices = make(events=(Event("gaussian", 0.6, 0.01, 500), Event("selection", 4.0, count=2)), budget=9.0)
    assert "given the curve of a private choice" in recheck_lines(choices)[0]
    assert recheck_statement(make(events=(Event("gaussian", 0.0),), budget=math.inf)) == {}


def test_a_verifier_needs_no_torch(tmp_path):
    file = tmp_path / "north.json"
    file.write_text(text_of(make()))
    code = (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "from coterie.cli.main import main\n"
        f"sys.argv = ['coterie', 'statement', 'verify', {str(file)!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "dp-accounting confirms it" in done.stdout
