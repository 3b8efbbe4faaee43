"""Noised counts of a deployment: one release that is charged, and the measures that follow from it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from coterie.cli.coordinate import measure_lines, scores_line
from coterie.deploy.approval import approval_lines
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import GuardFolder
from coterie.deploy.histograms import read_counts
from coterie.deploy.scores import shared_scores
from coterie.errors import Problem
from coterie.measures.histogram import EDGES
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from tests.federations import Small, config_of
from tests.helpers import refused
from tests.parities import federation
from tests.test_measures_in_results import hospitals, load
from tests.test_score_door import Spy, at_home, claim, finish

TRAIN = {"batch": 32, "rounds": 2}


def two_classes():
    return load(hospitals(rare=0.3, silos=3), positive="sick")


def made(folder, data=None, **scores) -> Small:
    asked = {"epsilon": 2.0, "release": "histogram", **scores}
    return Small(
        folder, config_of({"name": "fedavg"}, {}, TRAIN, scores=asked), data or two_classes(), scores=True
    )


class Recorded(Spy):
    """Streams that note the counts that get noise, and give them back with a half more in each."""

    def dice(self, run, silo, round_, call):
        found = super().dice(run, silo, round_, call)
        if round_ < 2:
            return found
        spy = self

        class Dice:
            def noisy(self, sums, deviation, material=None):
                spy.seen.append((np.array(sums), deviation, claim(spy.guard[0])[1]))
                return sums + 0.5

        return Dice()


def recorded(small: Small, silo: str = "h0"):
    """Finish a training at a guard whose dice are watched; return what was seen, and the answer."""
    guard, seen = [], []
    guard.append(
        Guard(
            GuardFolder(small.folder / silo),
            lambda experiment, name, row, number: Recorded(experiment.keys, guard, seen, None),
        )
    )
    reply = finish(small, guard[0])
    return guard[0], seen, reply


def test_the_counts_leave_with_the_noise_that_is_charged(tmp_path):
    """Less noise than charged, none, a smaller charge, or another release beside it, and this fails."""
    small = made(tmp_path)
    guard, seen, reply = recorded(small)
    ((counts, deviation, reserved),) = seen
    asked, _ = claim(guard)
    (event,) = asked.stages[-1][1]
    assert event == Event("gaussian", deviation)
    assert 1.9 < epsilon_of((event,), asked.delta) <= 2.0
    assert (2, 3) in reserved  # charged before any noise is drawn
    tests = small.plan.tests[0]
    assert counts.shape == (2 * (len(EDGES) + 1),)
    assert counts.sum() == tests
    assert (counts == counts.round()).all()
    assert reply.facts["score"] == list(counts + 0.5)  # what leaves is what the dice gave
    assert epsilon_of((*asked.events(0, 2), event), asked.delta) == pytest.approx(asked.epsilon, rel=1e-6)
    home = at_home(guard, small.plan.training)
    middle = EDGES.index(0.5) + 1
    table = counts.reshape(2, -1)
    assert home["accuracy"] * tests == pytest.approx(table[0, :middle].sum() + table[1, middle:].sum())
    assert home["measures"]["accuracy"]["value"] == pytest.approx(home["accuracy"])


@pytest.mark.parametrize("value", [None, 0.0, 1e30, float("nan"), float("inf")])
def test_one_test_example_moves_one_count_by_one(tmp_path, value):
    """Whatever the example is: only its own cell knows it, also if the model gives no number for it."""
    data, tables = two_classes(), []
    for k, changed in enumerate((False, True)):
        silo = data.silos[0]
        test_x, test_y = silo.test_x.clone(), silo.test_y.clone()
        if changed:
            test_x[3] = test_x[3] if value is None else value
            test_y[3] = 1 - test_y[3]
        other = replace(data, silos=(replace(silo, test_x=test_x, test_y=test_y), *data.silos[1:]))
        tables.append(recorded(made(tmp_path / str(k), other))[1][0][0])
    moved = tables[1] - tables[0]
    assert sorted(moved[moved != 0]) == [-1, 1]  # it left one cell and entered another


def test_the_coordinator_gets_measures_with_intervals(tmp_path):
    small = made(tmp_path, epsilon=15.0)
    guards = small.guards()
    outcome = small.coordinator(guards=guards).run()
    scores = outcome.scores
    assert scores == json.loads((tmp_path / "coordinator" / "outcome.json").read_text())["scores"]
    assert scores["edges"] == list(EDGES)
    for silo, guard in guards.items():
        told, home = scores["silos"][silo], at_home(guard, small.plan.training)
        assert told["value"] == pytest.approx(home["accuracy"], abs=4 * told["deviation"])
        for name, truth in home["measures"].items():
            if name in told["measures"] and truth["value"] is not None:
                assert told["measures"][name]["low"] - 0.02 <= truth["value"]
                assert truth["value"] <= told["measures"][name]["high"] + 0.02
        cells = told["calibration"]
        assert [cell["above"] for cell in cells] == [0.0, *EDGES]
        assert sum(cell["count"] for cell in cells) == pytest.approx(told["tests"], abs=6)
    every = scores["all"]
    assert set(every["measures"]) >= {"auc", "accuracy", "sensitivity", "specificity@0.1"}
    assert every["tests"] == sum(small.plan.tests)
    lines = measure_lines(scores)
    assert "told a noised accuracy" in scores_line(scores)
    auc = every["measures"]["auc"]
    assert f"noised auc: {auc['value']:.3f} ({auc['low']:.3f} to {auc['high']:.3f}, noise included)" in lines
    assert len(lines) == 3
    path = guards["h0"].folder.path / "results" / small.plan.training / "statement.json"
    door = next(door for door in json.loads(path.read_text())["doors"] if door["door"] == "score")
    assert door["calls"] == 1
    page = path.with_suffix(".html").read_text()
    assert (
        "1 noisy sums (or tables of counts) over all 24 test examples, in which one example adds at most 1"
        in page
    )


def test_several_classes_tell_their_confusions(tmp_path):
    small = made(tmp_path, federation(), epsilon=15.0)
    outcome = small.coordinator(guards=small.guards()).run()
    assert outcome.scores["edges"] is None
    measures = outcome.scores["all"]["measures"]
    assert set(measures) == {"accuracy", *(f"sensitivity of {c}" for c in range(3))}
    assert "calibration" not in outcome.scores["all"]


def test_what_is_no_table_is_not_used(tmp_path):
    small = made(tmp_path)
    plan = small.guards()["h0"].prepare(small.plan).plan
    good = [1.0] * 28
    said = {"h0": {"score": 3.0}, "h1": {"score": [*good[:-1], float("inf")]}, "h2": {"score": good}}
    found = shared_scores(small.plan, plan, said)
    assert set(found["silos"]) == {"h2"}
    assert shared_scores(small.plan, plan, {})["all"] is None
    assert measure_lines(shared_scores(small.plan, plan, {})) == []
    assert read_counts(good[:-1], (2, 14)) is None
    assert read_counts([*good[:-1], "1"], (2, 14)) is None
    assert read_counts("x", (2, 14)) is None


def test_the_owner_reads_what_is_told(tmp_path):
    small = made(tmp_path)
    guard = small.guards()["h0"]
    text = "\n".join(approval_lines(guard, guard.prepare(small.plan)))
    assert (
        "on its 24 test examples: how many there are by class and prediction, with noise of deviation" in text
    )


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"edges": [0.2]}, "scores.edges: 0.5 must be among them"),
        ({"release": "score", "edges": [0.5]}, "scores.edges: allowed only with release = 'histogram'"),
    ],
)
def test_edges_that_do_not_fit_are_refused(tmp_path, scores, words):
    with refused(words):
        made(tmp_path, **scores)


def test_a_histogram_that_a_task_does_not_have_is_refused(tmp_path):
    with refused("scores.edges: several classes have a table of confusions, without scores: leave it out"):
        made(tmp_path / "several", federation(), edges=[0.5])
    table = hospitals(rare=0.5)
    table["state"] = table.dose * 0.2 + 0.4
    data = load(table, kind="regression", target_range=(-2, 3))
    with refused("scores.release: a histogram of scores needs classes, but the target is a number"):
        made(tmp_path / "number", data)
    with pytest.raises(Problem, match=r"scores\.release: expected 'score' or 'histogram', got 'everything'"):
        made(tmp_path / "other", release="everything")
