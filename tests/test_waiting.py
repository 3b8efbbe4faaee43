"""All methods of a study are claimed before anything is trained: all of them fit, or none begins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.errors import Problem
from coterie.experiment import run as running
from coterie.guard.meter import make_meter
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.place import read_ledgers

METHODS = ["fedavg", "ditto"]
BUDGET = ct.Privacy(epsilon=2, delta=1e-5)


@pytest.fixture
def clinics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x, silo = generator.normal(size=(60, 2)), np.repeat(["north", "south"], 30)
    return ct.load({"x": x, "y": (x[:, 0] > 0).astype(int), "silo": silo}, name="clinics")


def train(federation, methods=METHODS, **how):
    return ct.run(federation, methods, BUDGET, rounds=2, epochs=1, ledger="kept", **how)


def runs() -> list[int]:
    return [report.runs for report in read_ledgers("kept")]


def crash_after(first: str):
    """Return a listener that ends the study in the first round of a method."""

    def hear(method, number, _score):
        if (method, number) == (first, 1):
            raise RuntimeError("crash")

    return hear


def test_nobody_can_spend_what_a_study_needs_while_it_trains(clinics):
    """Between a check and a claim, another process could."""
    ct.open_ledgers("kept", clinics, 4.0, 2e-5)
    heard, others = [], []

    def intrude(method, *_):
        heard.append(method)
        with pytest.raises(Spent, match="does not fit"):
            train(clinics, "local")
        others.append(runs())

    assert len(train(clinics, on_round=intrude).runs) == 2
    assert set(heard) == set(METHODS)
    assert others[0] == runs() == [2, 2]


def test_what_never_began_is_not_charged(clinics):
    ct.open_ledgers("kept", clinics, 4.0, 2e-5)
    with pytest.raises(Problem, match="on_round failed after round 1"):
        train(clinics, on_round=crash_after("fedavg"))
    assert runs() == [1, 1]
    assert {report.totals["example"]["server"][0] <= 2.0 for report in read_ledgers("kept")} == {True}


@pytest.mark.parametrize("how", [{"methods": METHODS}, {"methods": "fedavg", "seeds": 3}])
def test_with_the_renyi_filter_too_nothing_begins_unless_all_fits(clinics, how):
    ct.open_ledgers("kept", clinics, 3.0, 1e-5, filter="rdp")
    heard = []
    methods = how.pop("methods")
    with pytest.raises(Spent, match="nothing is trained unless all of them fit"):
        train(clinics, methods, on_round=lambda *about: heard.append(about), **how)
    assert heard == []
    assert runs() == [0, 0]


def test_a_silo_that_cannot_pay_takes_back_the_claims_of_the_others(clinics):
    ct.open_ledgers("kept", clinics, {"north": 4.0, "south": 3.0}, 2e-5)
    with pytest.raises(Spent, match="silo 'south': the budget of this data set"):
        train(clinics, out="study")
    assert runs() == [0, 0]
    assert not Path("study").exists()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_killed_study_takes_up_the_claims_it_had(clinics, monkeypatch, damaged):
    """A killed process cancels nothing; claiming again would charge twice."""
    ct.open_ledgers("kept", clinics, 4.0 if not damaged else 6.0, 3e-5)
    with monkeypatch.context() as killed:
        killed.setattr(running, "cancel_waiting", lambda *_: None)
        with pytest.raises(Problem, match="on_round failed after round 1"):
            train(clinics, out="study", checkpoint=1, on_round=crash_after("fedavg"))
    assert runs() == [2, 2]
    if damaged:
        (Path("study") / running.WAITING).write_text("{")
    assert len(train(clinics, out="study", checkpoint=1).runs) == 2
    assert runs() == ([3, 3] if damaged else [2, 2])
    assert not (Path("study") / running.WAITING).exists()


def test_claims_that_began_are_not_taken_up(clinics, monkeypatch):
    """Without a checkpoint nobody knows what they released."""
    ct.open_ledgers("kept", clinics, 9.0, 9e-5)
    with monkeypatch.context() as killed:
        killed.setattr(running, "cancel_waiting", lambda *_: None)
        with pytest.raises(Problem, match="on_round failed after round 1"):
            train(clinics, out="study", on_round=crash_after("ditto"))
    for path in Path("study").glob(".checkpoint-*"):
        path.unlink()
    assert len(train(clinics, out="study").runs) == 2
    assert runs() == [3, 3]


def test_a_run_that_was_killed_while_it_made_its_ledgers_makes_the_rest(clinics):
    ct.open_ledgers("kept", clinics.pick(["south"]), 2.0, 1e-5)
    make_meter(Path("kept"), clinics, [(2.0, 1e-5)] * 2).close()
    assert runs() == [0, 0]
