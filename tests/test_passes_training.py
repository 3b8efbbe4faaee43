"""Training by passes: engines agree, plans cost what the accountant says, and what cannot be refuses."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import pytest
import torch

import coterie as ct
from coterie.cohort import dp_sgd
from coterie.errors import Problem
from coterie.experiment.config.schema import read
from coterie.experiment.from_config import make_experiments
from coterie.methods import MRMTL, Dual, FedAvg, Local
from coterie.noise.dice import KeyedDice
from coterie.planning.schedule import Dropping
from coterie.planning.training import Training
from coterie.privacy import gaussian
from coterie.privacy.accountant import epsilon, epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from coterie.protocol.doors import ALLOCATION
from tests.helpers import (
    UNSOUND_FOR_SILOS,
    call,
    every_method,
    experiment,
    reference_vectors,
    refused,
    title,
    vectors,
)
from tests.measured import noise_is_as_charged, reference_of, silent

METHODS = [method for method in every_method() if not method.linear]
BUDGETS = {"each": [1.0, 2.0]}


@dataclass(frozen=True)
class KeyedStreams:
    """Streams of keyed dice that both engines can draw from, each anew."""

    run: int = 0

    def dice(self, run, silo, round_, call):
        text = f"{self.run + run}\0{silo}\0{round_}\0{call}"
        return KeyedDice(hashlib.blake2b(text.encode(), digest_size=32).digest())

    def merging(self, run, silo, round_):
        return self.dice(run, f"merge\0{silo}", round_, 0)

    def for_run(self, run):
        return KeyedStreams(run)


def passes(federation, method, **more):
    return experiment(federation, method, sampling="passes", **{"epsilon": BUDGETS, **more})


# Both engines


@pytest.mark.parametrize("method", METHODS, ids=title)
def test_engines_agree(federation, method):
    made = passes(federation, method, seeds=(0, 7), epochs=2.0)
    fast = vectors(made)
    assert not torch.equal(fast, vectors(experiment(federation, method, epsilon=BUDGETS, seeds=(0, 7))))
    for run in range(2):
        torch.testing.assert_close(fast[run], reference_vectors(made, run), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS, ids=title)
def test_engines_agree_on_keyed_streams(federation, method):
    made = passes(federation, method, rounds=2)
    fast = vectors(made, KeyedStreams())
    torch.testing.assert_close(fast[0], reference_vectors(made, 0, KeyedStreams()), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS, ids=title)
@pytest.mark.parametrize("streams", [None, KeyedStreams()], ids=["seeded", "keyed"])
def test_whole_silos_train_by_passes_too(federation, method, streams):
    """What a silo draws at home is not accounted for, so it makes no difference to the price."""
    made = passes(federation, method, epsilon=4.0)
    made = replace(made, privacy=replace(made.privacy, unit="silo"))
    if method.name in UNSOUND_FOR_SILOS:
        with pytest.raises(Problem, match=UNSOUND_FOR_SILOS[method.name]):
            made.plan()
        return
    other = replace(made, training=replace(made.training, sampling="poisson"))
    assert made.plan().silos[0][0].epsilon == other.plan().silos[0][0].epsilon
    reference = reference_of(made, 0, streams)
    torch.testing.assert_close(vectors(made, streams)[0], reference, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("epsilon", [4.0, math.inf])
@pytest.mark.parametrize("streams", [None, KeyedStreams()], ids=["seeded", "keyed"])
def test_blocks_of_steps_change_no_bit(federation, epsilon, streams, monkeypatch):
    made = passes(federation, FedAvg(), epsilon=epsilon, epochs=3.0, batch=5)
    assert len({work.per_pass for work in made.work}) == 3  # no cut is between passes of all silos
    whole = vectors(made, streams)
    longest = max(work.steps for work in made.work)
    cuts = [(first, min(first + 2, longest)) for first in range(0, longest, 2)]
    monkeypatch.setattr(dp_sgd, "_blocks", lambda *_: cuts)
    assert torch.equal(vectors(made, streams), whole)


def test_sums_are_divided_by_the_expected_batch(federation):
    """Without noise and clips, one pass with a tiny step moves by the gradients of all examples."""
    made = passes(federation, Local(), epsilon=math.inf, rounds=1, batch=10, lr=1e-4)
    assert [work.per_pass for work in made.work] == [2, 1, 3]
    whole = experiment(federation, Local(), epsilon=math.inf, rounds=1, batch=1000, lr=1e-4)
    start = vectors(replace(whole, training=replace(whole.training, lr=1e-30)))[0]
    moved, mean = vectors(made)[0] - start, vectors(whole)[0] - start
    for k, work in enumerate(made.work):
        torch.testing.assert_close(moved[k], mean[k] * work.per_pass, atol=1e-6, rtol=2e-3)


@pytest.mark.parametrize("epochs", [1.0, 3.0])
def test_noise_is_as_charged(epochs):
    assert noise_is_as_charged(silent(sampling="passes", steps=None, epochs=epochs, epsilon=1.0))


# What it costs


def test_a_plan_spends_what_the_accountant_says(federation):
    made = passes(federation, MRMTL(lam=0.5), rounds=20, epochs=2.0)
    plan = made.plan()
    for silo in plan.silos[0]:
        event = Event("gaussian", silo.noise, silo.work.rate, 40, "allocation")
        assert silo.sums(silo.noise) == event
        assert silo.steps == event.releases == 40 * silo.work.per_pass
        assert silo.epsilon == epsilon_of((event,), silo.delta)
        assert 0.99 * silo.budget < silo.epsilon <= silo.budget
        assert silo.epsilon < epsilon(silo.noise, silo.work.rate, silo.steps, silo.delta)
        assert silo.epsilon >= gaussian.epsilon_of(math.sqrt(40 * silo.work.rate) / silo.noise, silo.delta)
        assert silo.epsilon < epsilon(silo.noise, 1.0, 40, silo.delta)
    poisson = experiment(federation, MRMTL(lam=0.5), rounds=20, epochs=2.0, epsilon=BUDGETS).plan()
    assert poisson.silos[0][0].sampler == "poisson" != plan.silos[0][0].sampler == ALLOCATION


def test_a_call_with_a_pull_and_one_without_are_two_passes_each(federation):
    silo = passes(federation, ct.methods.Ditto(), rounds=3).plan().silos[0][0]
    assert silo.sums(1.0).count == 6


@pytest.mark.parametrize("budgets", ["uniform", "closed-form", "minimum"])
def test_other_ways_to_spend(federation, budgets):
    made = replace(passes(federation, FedAvg(), rounds=6), budgets=budgets)
    plan = made.plan()
    for silo in plan.silos[0]:
        assert silo.sums(1.0).count == silo.rounds
        assert silo.epsilon == epsilon_of((silo.sums(silo.noise),), silo.delta) <= silo.budget
    if budgets == "uniform":
        short = plan.silos[0][0]
        assert short.rounds < 6
        more = short.work.releases(short.noise, short.work.steps * (short.rounds + 1))
        assert epsilon_of((more,), short.delta) > short.budget
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_silos_that_drop_out_are_charged_for_the_passes_they_made(federation):
    made = passes(federation, FedAvg(), rounds=8, dropping=Dropping(drop=0.4))
    plan = made.plan()
    for k, silo in enumerate(plan.silos[0]):
        came = int(plan.present[:, 0, k].sum())
        assert silo.sums(1.0).count == came
        assert silo.epsilon == epsilon_of((silo.sums(silo.noise),), silo.delta)
    assert any(silo.rounds < 8 for silo in plan.silos[0])
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


# How to ask for it


def test_python_and_files_ask_alike(config):
    silos, privacy = ct.load("digits", silos=3), ct.Privacy(epsilon={"each": [0.5, 1]}, delta=1e-3)
    methods = ["fedavg", MRMTL(lam=[0.1, 1.0])]
    asked = ct.plan(silos, methods, privacy, rounds=2, lr=0.5, seeds=2, sampling="passes")
    written = ct.plan(config, changes=["train.sampling=passes", "privacy.epsilon.each=[0.5, 1]"])
    assert [plan.silos for plan in asked.plans] == [plan.silos for plan in written.plans]
    assert all(silo.sampler == ALLOCATION for silo in asked.plans[0].silos[0])
    assert 'sampling = "passes"' in asked.study.text
    assert ct.run(asked).summary[0]["mean"] == ct.run(written).summary[0]["mean"]


def test_the_command_line_tells(config, monkeypatch, capsys):
    how = ("--set", "train.sampling=passes", "--set", "privacy.epsilon=1")
    code, out, _ = call(monkeypatch, capsys, "plan", config, *how, "--published")
    assert code == 0
    told = " ".join(out.split())
    assert "In each pass, every example is in exactly one of 1 / rate steps, drawn at random." in told
    assert "fedavg: no formula of a paper covers passes." in out
    pair = ("--rate", "0.1", "--steps", "20", "--delta", "1e-5", "--sampler", "allocation")
    _, out, _ = call(monkeypatch, capsys, "epsilon", "--noise", "2", *pair, "--tight")
    assert "published: no formula of a paper covers passes" in out
    assert "Wu, Chen" not in out
    _, out, _ = call(monkeypatch, capsys, "noise", "--epsilon", "3", *pair, "--json")
    assert '"sampler": "allocation"' in out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["train.sampling=shuffle"], "train.sampling: expected 'poisson' or 'passes', got 'shuffle'"),
        (["train.sampling=passes", "train.epochs=1.5"], "train.epochs: expected a whole number with"),
        (["train.sampling=passes", "train.uneven=0.5"], "train.uneven: with train.sampling = 'passes' silos"),
        (
            ["train.sampling=passes", "train.steps=7"],
            r"7 steps are not whole passes for 3 silo\(s\), such as 'silo-0', which takes 15 steps per pass; set"
            r" train.epochs instead, or train.steps to a multiple of 15",
        ),
    ],
)
def test_refusals_of_settings(config, changes, said):
    with pytest.raises(Problem, match=said):
        make_experiments(read(config, changes))


def test_refusals_in_python(federation):
    with refused("train.sampling: unknown sampling 'pass'; did you mean 'passes'?"):
        Training(sampling="pass")
    with refused("train.epochs: expected a whole number with train.sampling = 'passes', got 0.5"):
        Training(sampling="passes", epochs=0.5)
    with refused("'solve_dual' is proven for Poisson samples only: use train.sampling = 'poisson'"):
        passes(federation, Dual()).plan()
    with refused("such as 'silo-0', which takes 2 steps per pass"):
        passes(federation, FedAvg(), steps=5)
    assert passes(federation, FedAvg(), steps=12).plan().silos[0][0].steps == 36


def test_a_sweep_tunes_the_noise_of_passes(federation):
    options = {"rounds": 4, "batch": 8, "lr": [0.1, 0.2], "sampling": "passes", "mean": 2.0}
    result = ct.sweep(federation, "fedavg", ct.Privacy(epsilon=3.0, delta=1e-3), **options)
    statement = result.statement("silo-0")
    trial = [event for event in statement["tuning"]["trial"] if event["rate"] < 1]
    assert {event["sampler"] for event in trial} == {"allocation"}
    assert sum(event["count"] for event in trial) == 4
    assert 0.99 * 3.0 < statement["tuning"]["epsilon"] <= 3.0
    assert verify(text_of(statement)) == statement
