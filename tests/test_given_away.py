"""What is shared gives nothing away, and what was given cannot be changed later."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.data.preparation import Preparation
from coterie.errors import Problem
from coterie.experiment.config.schema import read
from coterie.methods import FedAvg
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.place import read_ledgers
from tests.books import ledger, meter_of, plan
from tests.helpers import call, experiment, refused

BUDGET = ct.Privacy(epsilon=2, delta=1e-5)
CONFIG = """
[data]
silos = 2
rows = 200
[train]
rounds = 1
[privacy]
epsilon = 1.0
delta = 1e-3
ledger = "kept"
[[method]]
name = "local"
"""


def clinics(largest=1.0):
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, size=(40, 2))
    x[7, 1] = largest
    return ct.load({"x": x, "y": np.arange(40) % 2, "silo": np.repeat(["n", "s"], 20)}, name="clinics")


def test_a_remark_on_large_features_is_no_statistic():
    """The largest feature is somebody's."""
    notes = [ct.plan(clinics(largest), "local", BUDGET, rounds=1).notes for largest in (225.25, 4071.5)]
    assert notes[0] == notes[1]
    assert any("features exceed 10;" in note for note in notes[0])
    assert not any("features exceed" in note for note in ct.plan(clinics(), "local", BUDGET, rounds=1).notes)


def test_a_plan_is_not_pickled():
    """It would carry every example to wherever it is sent."""
    planned = ct.plan(clinics(), "local", BUDGET, rounds=1)
    for share in (pickle.dumps, copy.deepcopy):
        with refused("a plan cannot be pickled or copied, because it holds the silos' examples"):
            share(planned)
    assert ct.run(planned).runs


def test_numbers_that_the_caller_changes_later_do_not_count():
    epsilon, clip = {"n": 2.0, "s": 2.0}, {"each": [1.0, 2.0]}
    privacy = ct.Privacy(epsilon=epsilon, delta=1e-5, clip=clip)
    planned = ct.plan(clinics(), "local", privacy, rounds=1)
    epsilon["n"], clip["each"][0] = 0.1, 50.0
    assert privacy.epsilon["n"] == 2.0
    assert privacy.clip["each"][0] == 1.0
    assert ct.run(planned).study.config.privacy.clip == {"each": [1.0, 2.0]}


def test_how_a_federation_was_loaded_cannot_be_changed():
    federation = ct.load("digits", silos=3, rows=200)
    with pytest.raises(TypeError):
        federation.recipe["silos"] = 4
    federation.recipe["drop"].append("a")
    assert (federation.recipe["silos"], federation.recipe["drop"]) == (3, [])
    again = pickle.loads(pickle.dumps(federation))
    assert dict(again.recipe) == dict(federation.recipe)
    assert "'silos': 3" in repr(federation.recipe)
    assert ct.plan(again, "local", BUDGET, rounds=1).study.config.data.silos == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": float("nan")}, "scale: expected a finite number > 0, got nan"),
        ({"scale": 0.0}, "scale: expected a finite number > 0, got 0"),
        ({"norm": -3.0}, "norm: expected a finite number > 0"),
        ({"norm": float("inf")}, "norm: expected a finite number > 0"),
    ],
)
def test_a_preparation_of_impossible_numbers_is_refused(change, words):
    content = json.loads(json.dumps(clinics().preparation.to_json()))
    assert Preparation.from_json(content).scale == 1.0
    with pytest.raises(ValueError, match=words):
        Preparation.from_json({**content, **change})


def test_a_configuration_means_the_same_ledgers_wherever_it_is_called_from(tmp_path, monkeypatch, capsys):
    (tmp_path / "sub").mkdir()
    (tmp_path / "c.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert ct.run("c.toml").runs
    monkeypatch.chdir(tmp_path / "sub")
    with pytest.raises(Spent, match="does not fit"):
        ct.run("../c.toml")
    code, _, err = call(monkeypatch, capsys, "run", "../c.toml", "--out", "o")
    assert (code, "does not fit" in err) == (2, True)
    assert not Path("kept").exists()
    other = ("--set", "data.seed=1")  # the witness knows the ledgers of the same rows
    code, _, _ = call(monkeypatch, capsys, "run", "../c.toml", "--ledger", "own", "--out", "o", *other)
    assert code == 0
    assert [report.runs for report in read_ledgers("own")] == [1, 1]
    for saved in (
        read("o/config.toml"),
        ct.run(clinics(), "local", BUDGET, rounds=1, ledger="py").study.config,
    ):
        assert Path(saved.privacy.ledger).is_absolute()
    with pytest.raises(Spent, match="does not fit"):
        ct.run("o/config.toml")


@pytest.mark.parametrize("filter", ["basic", "rdp"])
def test_a_refusal_says_whether_the_run_may_resume(federation, tmp_path, filter):
    """It was read from how its sentence begins, which differs between filters."""
    book = ledger(tmp_path, filter=filter)
    run = book.claim(plan()).run
    book.set_budget("example", 1e-3, 1e-9)
    with pytest.raises(Spent) as refusal:
        book.reserve(run, 0, 5)
    assert refusal.value.resumable
    with pytest.raises(Spent) as refusal:
        book.claim(plan())
    assert not refusal.value.resumable
    meter, _ = meter_of(
        experiment(federation, FedAvg(), rounds=2),
        tmp_path / filter,
        filter=filter,
        budgets=[(50.0, 1e-2)] * 3,
    )
    meter.claim([[plan(rounds=2)]] * 3, partial=True)
    assert not meter.may_resume
    for each in meter.ledgers:
        each.set_budget("example", 1e-3, 1e-9)
    meter.reserve(0, 2)
    assert meter.may_resume
    assert set(meter.left) == set(federation.names)


def test_what_a_result_holds_is_said():
    """Standardized features need each silo's statistics, which no budget covers."""
    assert "mean and deviation of every silo's own examples" in " ".join(ct.Result.__doc__.split())
    generator = np.random.default_rng(0)
    arrays = {"x": generator.normal(size=(40, 2)), "y": np.arange(40) % 2, "silo": np.repeat(["n", "s"], 20)}
    federation = ct.load(arrays, name="clinics", features="standardize")
    assert federation.without_examples().preparation.silos["n"].mean is not None
    with pytest.raises(Problem, match="there is no silo"):
        federation.without_examples().preparation.pick(["x"])
