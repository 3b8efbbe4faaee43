"""The measures by which a sweep may choose: what silos tell of them, and which cannot be charged."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, roc_auc_score

import coterie as ct
from coterie.cohort.examples import stack
from coterie.cohort.score import FINENESS
from coterie.experiment.config.schema import Tuning
from coterie.experiment.sweep import Sweep, check_sweep, noised_scores, score_events, trials_of
from coterie.experiment.trial_scores import trial_scores, tuned_metric
from coterie.guard.secret_streams import EntropyStreams
from coterie.measures.catalogue import METRICS
from coterie.measures.histogram import EDGES
from coterie.tasks.task import make_task
from tests.helpers import refused
from tests.test_measures_in_results import PRIVACY, hospitals, load

TWO = make_task("linear", shape=(2,), classes=2)
HINGE = make_task("linear", shape=(2,), classes=2, loss="hinge")
TEN = make_task("linear", shape=(2,), classes=10)
NUMBER = make_task("linear", shape=(2,), classes=0)


@pytest.fixture(scope="module")
def data() -> ct.Federation:
    return load(hospitals(rare=0.3, rows=80), positive="sick")


def trials(data, task=TWO, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(count, len(data), task.layout.size, generator=generator)


def test_what_is_told_is_what_one_example_may_move_by_one(data):
    test, vectors = stack(data, "test"), trials(data)
    outputs = [
        [
            TWO.to_module(vectors[r, k])(silo.test_x).softmax(-1)[:, 1].detach().double().numpy()
            for k, silo in enumerate(data.silos)
        ]
        for r in range(3)
    ]
    brier = trial_scores(METRICS["brier"], TWO, test, vectors, 2**30)
    for r in range(3):
        for k, silo in enumerate(data.silos):
            slow = ((outputs[r][k] - silo.test_y.numpy()) ** 2 * FINENESS).round().sum() / FINENESS
            assert brier.told[r, k] == pytest.approx(slow, abs=1e-5)
    rows = [s.test_y.numpy() for s in data.silos]
    every = [np.concatenate(outputs[r]) for r in range(3)]
    expected = [brier_score_loss(np.concatenate(rows), said) for said in every]
    none = np.zeros(4)
    assert brier.combined(none, np.ones(4, bool)) == pytest.approx(expected, abs=1e-5)
    auc = trial_scores(METRICS["auc"], TWO, test, vectors, 2**30)
    assert auc.told.shape == (3, 4, 2 * (len(EDGES) + 1))
    assert (auc.told.sum(2) == [len(y) for y in rows]).all()
    # the last hospital has one class, so no pairs; each pair of examples of one silo counts once
    for r, found in enumerate(auc.combined(none, np.ones(4, bool))):
        known = [
            (roc_auc_score(y, np.searchsorted(EDGES, s)), y.sum() * (1 - y).sum())
            for y, s in zip(rows[:3], outputs[r][:3], strict=True)
        ]
        assert found == pytest.approx(np.average([a for a, _ in known], weights=[w for _, w in known]))


@pytest.mark.parametrize("strange", [float("nan"), 1e30, float("inf")])
@pytest.mark.parametrize("name", ["auc", "brier", "accuracy"])
def test_one_example_moves_what_is_told_by_a_vector_of_length_one(data, name, strange):
    """The other examples count as before, also if the model gives no number for one."""
    told = []
    for change in (False, True):
        silo = data.silos[1]
        x, y = silo.test_x.clone(), silo.test_y.clone()
        if change:
            x[2] = strange
        other = replace(data, silos=(data.silos[0], replace(silo, test_x=x, test_y=y), *data.silos[2:]))
        told.append(trial_scores(METRICS[name], TWO, stack(other, "test"), trials(data), 2**30).told)
    moved = told[1] - told[0]
    assert np.abs(moved).max() <= 1 + 1e-12
    assert (np.abs(moved[:, [0, 2, 3]]) == 0).all()
    assert (np.abs(moved[:, 1]).sum(1) <= 2).all()  # out of one cell, into another
    assert (moved[:, 1].clip(min=0).sum(1) <= 1).all()


def planned(data, metric=None, epsilon=8.0, **tuning):
    study = ct.plan(
        data, "local", ct.Privacy(epsilon=epsilon, delta=1e-3), rounds=2, lr=[0.1, 0.5], seeds=[1]
    ).study
    experiment = study.experiments[0]
    asked = Tuning(metric=metric, **tuning)
    check_sweep(experiment, asked, False)
    sweep = Sweep(trials_of(asked, 2), (0, 1, 0), score_events(experiment, asked), asked.score == "public")
    return replace(experiment, picked=((1, 0), (2, 1), (3, 0))), sweep


def test_every_number_gets_the_noise_that_is_charged(data):
    """Without the noise, or with less of it, this fails."""
    experiment, sweep = planned(data, "auc")
    seen = []
    told = trial_scores(METRICS["auc"], TWO, stack(data, "test"), trials(data), 2**30).told

    def streams():
        class Dice:
            def noisy(self, sums, deviation):
                seen.append((np.array(sums), deviation))
                return sums * 0 + 3.0

        class Streams:
            def dice(self, *where):
                return Dice()

        return Streams()

    object.__setattr__(experiment, "streams", streams)
    found = noised_scores(experiment, sweep, trials(data), None, METRICS["auc"])
    assert found == pytest.approx([0.5] * 3)  # of equal counts everywhere: what is used is what the dice gave
    assert len(seen) == 3 * 4
    for place, (sums, deviation) in enumerate(seen):
        k, trial = divmod(place, 3)
        assert deviation == sweep.scores[k].noise > 0
        assert (sums == told[trial, k]).all()


def test_silos_without_privacy_may_tell_it_without_noise(data):
    epsilon = {"h0": math.inf, "default": 4.0}
    experiment, sweep = planned(data, "auc", epsilon, score="public")
    found = noised_scores(experiment, sweep, trials(data), None, METRICS["auc"])
    test = stack(data, "test")
    first = trial_scores(METRICS["auc"], TWO, test, trials(data), 2**30)
    assert found == first.combined(np.zeros(4), np.array([True, False, False, False]))


@pytest.mark.parametrize(("metric", "better"), [("auc", max), ("brier", min), (None, max)])
def test_a_sweep_chooses_by_its_metric(data, tmp_path, metric, better):
    found = ct.sweep(
        data,
        "local",
        ct.Privacy(epsilon=100, delta=1e-3),
        rounds=3,
        lr=[1e-6, 0.5],
        mean=8,
        seeds=[3],
        metric=metric,
        metrics="auc",
        out=tmp_path / "out",
    )
    tuning = found.tuning
    assert tuning["metric"] == (metric or "accuracy")
    assert tuning["scores"][tuning["chosen"]] == better(tuning["scores"])
    assert found.study.config.tuning.metric == metric
    assert found.runs[tuning["chosen"]].measures["auc"].value > 0.6


@pytest.mark.parametrize(
    ("task", "name", "words"),
    [
        (TWO, "balanced-accuracy", "'balanced-accuracy' of two classes cannot be released with noise that is charged; choose by accuracy or auc or brier"),
        (TWO, "log-loss", "'log-loss' of two classes cannot be released"),
        (TWO, "f1@0.3", "'f1@0.3' of two classes cannot be released"),
        (TEN, "auc", "'auc' of several classes cannot be released with noise that is charged; choose by accuracy"),
        (TEN, "brier", "'brier' of several classes cannot be released"),
        (NUMBER, "r2", "'r2' of a number cannot be released with noise that is charged; choose by mse or mae"),
        (NUMBER, "auc", "'auc' needs two classes or several classes, but the target is a number"),
        (HINGE, "brier", "'brier' needs probabilities, but the loss 'hinge' gives scores only"),
        (TWO, "own:metric", "unknown metric 'own:metric'"),
    ],
)  # fmt: skip
def test_what_cannot_be_charged_is_refused(task, name, words):
    with refused(f"tuning.metric: {words}"):
        tuned_metric(name, task)


def test_what_can_be_charged():
    assert tuned_metric(None, NUMBER).name == "mse"
    assert tuned_metric(None, TEN).name == "accuracy"
    assert tuned_metric("auc", HINGE).name == "auc"
    assert not tuned_metric("mae", NUMBER).higher_is_better
    data = load(hospitals(), positive="sick")
    with refused("tuning.metric: 'f1' of two classes cannot be released"):
        ct.sweep(data, "local", PRIVACY, lr=[0.1, 0.2], metric="f1", rounds=1)


def test_a_metered_sweep_by_auc_is_charged_stated_and_repeats_its_noise(data, tmp_path):
    ledgers = tmp_path / "ledgers"
    ct.open_ledgers(ledgers, data, epsilon=2000, delta=0.5)
    found = ct.sweep(
        data,
        "local",
        ct.Privacy(epsilon=20, delta=1e-3),
        rounds=2,
        lr=[0.1, 0.5],
        mean=2,
        most=60,
        metric="auc",
        ledger=ledgers,
        out=tmp_path / "out",
    )
    tuning = found.tuning
    assert tuning["metric"] == "auc"
    assert 0 <= min(tuning["scores"]) <= max(tuning["scores"]) <= 1
    content = found.statement("h0")
    door = next(door for door in content["doors"] if door["door"] == "score")
    assert door["calls"] == tuning["ran"]  # one release for each trial, of 28 counts
    trained = found.trained[0]
    made = replace(trained.experiment, federation=data)
    events = score_events(made, Tuning(metric="auc"))
    assert door["noise"] == events[0].noise
    sweep, vectors = Sweep(trials_of(Tuning(), 2), (0, 0, 0), events), trials(data)

    class Meter:  # the parts of a meter that keep the noise of an answer
        streams = EntropyStreams(dict.fromkeys(data.names, b"k" * 32))
        claims = tuple([7] for _ in data.names)

        def present(self, number):
            return set(range(len(data)))

    first, again = (noised_scores(made, sweep, vectors, Meter(), METRICS["auc"]) for _ in range(2))
    assert first == again
    other = noised_scores(made, sweep, vectors + 1e-3, Meter(), METRICS["auc"])
    assert all(a != b for a, b in zip(first, other, strict=True))
