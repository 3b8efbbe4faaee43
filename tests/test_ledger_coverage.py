"""Whether ledgers cover a training, by reading them: the same decision as a claim, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import coterie as ct
from coterie.errors import Problem
from coterie.guard.coverage import Coverage, early_leavers, refusal_of
from tests.helpers import call

CONFIG = """
[data]
silos = 3
[train]
rounds = 4
[privacy]
epsilon = 2
delta = 1e-4
[[method]]
name = "fedavg"
"""
TWO = '\n[[method]]\nname = "local"\n'


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A configuration in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(CONFIG)
    return ct.load("digits", silos=3)


def contents(*folders):
    return {path: path.read_bytes() for folder in folders for path in sorted(folder.rglob("*"))}


def planned(monkeypatch, capsys, *more):
    code, out, err = call(monkeypatch, capsys, "plan", "c.toml", "--ledger", "kept", *more)
    return code, out, err


def test_a_covered_training_is_shown_and_nothing_is_written(study, witness, monkeypatch, capsys):
    ct.open_ledgers("kept", study, 5.0, 1e-2)
    before = contents(Path("kept"), witness)
    code, out, err = planned(monkeypatch, capsys, "--json")
    assert (code, contents(Path("kept"), witness)) == (0, before), err
    facts = json.loads(out)
    assert facts["refusal"] is None
    for silo in facts["ledgers"]:
        assert silo["budget"] == {"epsilon": 5.0, "delta": 1e-2}
        assert silo["spent"] == {"epsilon": 0.0, "delta": 0.0}
        assert silo["left"] == {"epsilon": 5.0, "delta": 1e-2}
        assert 1.9 < silo["asked"]["epsilon"] <= 2
        assert (silo["covers"], silo["rounds"], silo["covered"], silo["why"]) == (4, 4, True, None)
    code, out, _ = planned(monkeypatch, capsys)
    assert (code, out.count("4 of 4"), contents(Path("kept"), witness)) == (0, 3, before)


def test_what_is_asked_is_what_a_run_charges(study, monkeypatch, capsys):
    ct.open_ledgers("kept", study, 5.0, 1e-2)
    plan = ct.plan("c.toml", ledger="kept")
    ct.run("c.toml", ledger="kept")
    after = ct.plan("c.toml", ledger="kept")
    for first, second in zip(plan.coverage, after.coverage, strict=True):
        assert second.spent == pytest.approx(first.asked)
        assert second.left == pytest.approx((5 - first.asked[0], 1e-2 - 1e-4))


def test_all_short_silos_are_named_at_once_as_a_run_would_refuse_them(study, monkeypatch, capsys):
    """Two runs need 4; two silos have less, and the third has more."""
    Path("c.toml").write_text(CONFIG + TWO)
    ct.open_ledgers("kept", study, {"silo-1": 9.0, "default": 3.0}, 1e-2)
    code, out, err = planned(monkeypatch, capsys, "--json")
    facts = json.loads(out)
    assert [each["covered"] for each in facts["ledgers"]] == [False, True, False]
    assert (code, facts["refusal"].count("\n")) == (2, 2)
    assert "the ledgers of 2 of 3 silos do not cover this training" in err
    assert "'silo-0': the budget of this data set is (epsilon 3" in err
    assert "'silo-2': the budget of this data set is (epsilon 3" in err
    assert "'silo-1'" not in err
    assert "ct." not in err
    with pytest.raises(Problem, match="does not fit"):
        ct.run("c.toml", ledger="kept")
    code, out, err = planned(monkeypatch, capsys)
    short = [line.split()[0] for line in out.splitlines() if line.rstrip().endswith(" no")]
    assert (code, short, "Nothing was trained" in out) == (2, ["silo-0", "silo-2"], True)
    assert "2 of 3 silos" not in out


def test_a_single_run_begins_without_all_rounds_of_each_silo(study, monkeypatch, capsys):
    ct.open_ledgers("kept", study, {"silo-1": 1.5, "default": 3.0}, 1e-2)
    plan = ct.plan("c.toml", ledger="kept")
    rounds = [each.covers for each in plan.coverage]
    assert rounds[0] == rounds[2] == 4
    assert 0 < rounds[1] < 4
    assert plan.refusal is None
    assert f"these silos would leave early, as their budgets are used up: 'silo-1' ({rounds[1]} of 4" in str(
        plan.notes
    )
    code, _, err = planned(monkeypatch, capsys)
    assert code == 0, err
    result = ct.run("c.toml", ledger="kept")
    assert any(f"its budget covers {rounds[1]} of 4 rounds" in note for note in result.notes)


@pytest.mark.parametrize("filter", ["basic", "rdp", "gdp"])
def test_the_decision_is_that_of_a_claim(study, filter):
    """Runs are made until a plan says that the next one is refused, and then it is."""
    ct.open_ledgers("kept", study, 4.5, 1e-3, filter=filter)
    Path("c.toml").write_text(CONFIG + TWO)
    for _ in range(9):
        if ct.plan("c.toml", ledger="kept").refusal is not None:
            break
        ct.run("c.toml", ledger="kept")
    else:
        pytest.fail("nine times two runs of 2 fit into 4.5")
    with pytest.raises(Problem, match=r"do(es)? not fit"):
        ct.run("c.toml", ledger="kept")


def test_missing_ledgers_are_made_by_a_single_run_only(study, monkeypatch, capsys):
    plan = ct.plan("c.toml", ledger="kept")
    assert all(each.is_new and each.is_covered for each in plan.coverage)
    assert [each.budget for each in plan.coverage] == [(2.0, 1e-4)] * 3
    assert not Path("kept").exists()
    Path("c.toml").write_text(CONFIG + TWO)
    code, _, err = planned(monkeypatch, capsys)
    assert (code, err.count("there is no ledger in '")) == (2, 3)
    assert not Path("kept").exists()


def test_old_copies_and_lost_ledgers_are_named_together(study, witness, monkeypatch, capsys):
    ct.open_ledgers("kept", study, 9.0, 1e-2)
    paths = sorted(Path("kept").glob("*.sqlite"))
    old = paths[0].read_bytes()
    ct.run("c.toml", ledger="kept")
    paths[0].write_bytes(old)
    paths[1].unlink()
    code, _, err = planned(monkeypatch, capsys)
    assert code == 2
    assert "the ledgers of 2 of 3 silos" in err
    assert "it is an old copy" in err
    assert "has seen one with" in err


def test_a_sweep_is_not_judged(study):
    Path("c.toml").write_text(
        CONFIG.replace("rounds = 4", "rounds = 4\nlr = [0.1, 0.2]") + "[tuning]\nmost = 9"
    )
    plan = ct.plan("c.toml", ledger="kept")
    assert (plan.coverage, plan.refusal) == ((), None)
    assert "[tuning]: whether the ledgers cover a sweep is checked when it begins" in plan.notes


def test_without_a_ledger_nothing_is_said(study, monkeypatch, capsys):
    assert ct.plan("c.toml").coverage == ()
    code, out, _ = call(monkeypatch, capsys, "plan", "c.toml", "--json")
    assert (code, set(json.loads(out))) == (0, {"plans", "notes"})


def test_who_begins_and_who_leaves():
    whole = Coverage("a", "example", (2.0, 1e-4), (0.0, 0.0), (1.0, 1e-5), 4, 4)
    part = Coverage("b", "example", (2.0, 1e-4), (1.5, 0.0), (1.0, 1e-5), 2, 4, "its budget covers 2 of 4")
    none = Coverage("c", "example", (2.0, 1e-4), (3.0, 0.0), (1.0, 1e-5), 0, 4, "it is spent")
    assert none.left == (0.0, 1e-4)
    assert refusal_of([whole, whole], alone=False) is None
    assert refusal_of([whole, part], alone=True) is None
    assert early_leavers([whole]) is None
    assert "'b' (2 of 4 rounds)" in early_leavers([whole, part])
    for given, alone in (([whole, part], False), ([part, part], True), ([whole, none], True)):
        assert "do not cover this training" in refusal_of(given, alone)
