"""Bugs of noise, clip and batches that other systems shipped, planted here: each is found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from coterie.cohort import dp_sgd as descent
from coterie.cohort import sampling
from coterie.cohort.gradients import clipping as gradients
from coterie.cohort.gradients import tape
from coterie.errors import Problem, Refused
from coterie.experiment.config.schema import check
from coterie.guard.meter import make_meter
from coterie.guard.session import Session
from coterie.methods import FedAvg
from coterie.privacy.events import Event
from coterie.tasks.task import Task
from coterie.testing import NotConforming, check_method
from tests.books import custody
from tests.helpers import vectors
from tests.measured import (
    BATCH,
    SIZE,
    alone,
    batch_sizes,
    engines_agree,
    federation_of,
    is_poisson,
    noise_is_as_charged,
    reach,
    silent,
)


def with_noise(change):
    """Draw as the engine does, but change the noise: `change(noise [pairs, P], rows, cohort)`."""
    draw = descent._draw

    def changed(cohort, *rest):
        drawn = draw(cohort, *rest)
        return [(rows, change(torch.from_numpy(noise), rows, cohort).numpy()) for rows, noise in drawn]

    return changed


@pytest.mark.parametrize("metered", [False, True], ids=["simulated", "metered"])
def test_noise_that_is_drawn_and_thrown_away(monkeypatch, tmp_path, metered):
    """Elsewhere local noise was computed for nine months, not used, and reported as added."""
    made = silent(rounds=2, steps=3)

    def trained(name):
        if not metered:
            return vectors(made)[0]
        budgets = [(silo.budget, silo.delta) for silo in made.plan().silos[0]]
        meter = make_meter(tmp_path / name, made.federation, budgets, custody=custody(tmp_path / name))
        try:
            return made.train(session=Session(meter=meter)).vectors[0]
        finally:
            meter.close()

    assert noise_is_as_charged(made, trained("sound"))
    check_method(FedAvg())
    monkeypatch.setattr(descent, "add_noise", lambda sums, deviation, drawn, dice: sums)
    assert not noise_is_as_charged(made, trained("planted"))
    with pytest.raises(NotConforming, match="different vectors"):
        check_method(FedAvg())


@dataclass(frozen=True, kw_only=True)
class ThrowsNoiseAway(FedAvg):
    """Asks for a protected vector and sends another."""

    name: ClassVar[str] = "throws noise away"

    def local(self, sent, own, oracle):
        oracle.descend(sent)
        return oracle.descend(sent, home=True) - sent, None


def test_a_method_that_asks_for_noise_and_sends_what_has_none():
    """The same mistake made by a method: the noisy result is not what is sent."""
    check_method(FedAvg())
    with pytest.raises(Refused, match="an upload is raw"):
        check_method(ThrowsNoiseAway())


@dataclass(frozen=True, kw_only=True)
class NoiseForAnEvenMean(FedAvg):
    """Sends what has no noise; the server adds that of an even mean around a weighted one."""

    name: ClassVar[str] = "noise for an even mean"

    def local(self, sent, own, oracle):
        return oracle.descend(sent, home=True) - sent, None

    def merge(self, shared, uploads, merger):
        mean = merger.mean(uploads)
        return shared + mean + torch.randn_like(mean) / len(merger.roster)


@dataclass(frozen=True, kw_only=True)
class MeanOfItsOwn(FedAvg):
    """Takes another mean than the one whose noise is planned."""

    name: ClassVar[str] = "mean of its own"

    def merge(self, shared, uploads, merger):
        return shared + uploads.mean(1, keepdim=True)


def test_a_server_whose_noise_does_not_belong_to_its_mean():
    """Elsewhere silos of 10000, 1000 and 500 had a weighted mean with the noise of an even one: 0.38 of it."""
    for unit in ("example", "silo"):
        check_method(FedAvg(), unit)
    with pytest.raises(Refused, match="an upload is raw"):
        check_method(NoiseForAnEvenMean())
    with pytest.raises(Refused, match=r"may only ask for merger\.mean"):
        check_method(MeanOfItsOwn(), "silo")
    # that a trained mean is even and its noise that of an even one: see test_silo_unit


def test_noise_made_for_even_batches_added_to_uneven_ones(monkeypatch):
    """The same mistake at home: the noise of the average batch on silos whose batches differ."""
    made = alone(federation_of([torch.zeros(size, 1000) for size in (100, 10, 5)]), batch=100)

    def even(noise, rows, cohort):
        expected = torch.tensor([[work.expected] for work in cohort.work])
        return noise * expected / expected.mean()

    assert noise_is_as_charged(made)
    monkeypatch.setattr(descent, "_draw", with_noise(even))
    assert not noise_is_as_charged(made)


class Scaled(nn.Module):
    """A layer and a parameter without axes."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 1, bias=False), nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.layer(x) * self.scale


def test_a_clip_that_leaves_parameters_without_axes_out(monkeypatch):
    """Elsewhere arrays without axes were not scaled down with the others."""
    clipped, task = gradients.clipped, Task(Scaled, "squared", (3,))

    def leaves_out(recorded, real, clip):
        whole = clipped(recorded, real, torch.full_like(clip, math.inf))
        scaled = clipped(recorded, real, clip)
        return {name: whole[name] if value.dim() == 1 else value for name, value in scaled.items()}

    assert 0.99 < reach(task) < 1.001
    monkeypatch.setattr(gradients, "clipped", leaves_out)
    assert reach(task) > 2


def test_a_clip_that_divides_by_the_norm_of_zero(monkeypatch):
    """Elsewhere an update of zeros was divided by its norm."""

    def divides(recorded, real, clip):
        norms = recorded.squared_norms().sqrt()
        return recorded.weighted_sums((torch.minimum(norms, clip.unsqueeze(-1)) / norms * real).float())

    made = silent(features=5)
    assert engines_agree(made)
    assert not any("diverged" in note for note in made.train().notes)
    monkeypatch.setattr(tape, "_square", lambda value: value.square().sum(-1).double())
    monkeypatch.setattr(gradients, "clipped", divides)
    assert not engines_agree(made)
    assert any("3 of 3 models diverged" in note for note in made.train().notes)


class Numbered(nn.Module):
    """A layer beside a whole number that is not trained."""

    def __init__(self, counts: bool = False):
        super().__init__()
        self.layer, self.counts = nn.Linear(3, 1), counts
        self.register_buffer("seen", torch.tensor(1000))

    def forward(self, x):
        if self.counts:
            self.seen += len(x)
        return self.layer(x)


def test_a_norm_with_whole_numbers_of_buffers_in_it(monkeypatch):
    """Elsewhere counters of a module entered the norm and gradients were scaled to nothing."""
    x = torch.randn(3, SIZE, 3, generator=torch.Generator().manual_seed(1))
    task = Task(Numbered, "squared", (3,))
    made = alone(federation_of(x, x.sum(-1)), task)
    squared_norms, counted = tape.Tape.squared_norms, float(task.module.seen)
    assert task.layout.names == ("layer.weight", "layer.bias")
    assert engines_agree(made)
    monkeypatch.setattr(tape.Tape, "squared_norms", lambda self: squared_norms(self) + counted**2)
    assert not engines_agree(made)
    for build, said in (
        (lambda: Numbered(counts=True), "changes its buffers"),
        (lambda: nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1)), "mixes examples"),
    ):
        with pytest.raises(Problem, match=said):
            _ = Task(build, "squared", (3,)).layout


def test_sums_divided_by_a_batch_that_follows_from_the_private_size(monkeypatch):
    """Elsewhere the divisor was the expected batch, rounded down, of the size that one example changes."""
    whole = descent.descend

    def by_private_size(cohort, start, *rest):
        held = cohort.examples.x.any(-1).sum(1)
        expected = torch.tensor([work.expected for work in cohort.work])
        rates = torch.tensor([work.rate for work in cohort.work])
        return start + (whole(cohort, start, *rest) - start) * (expected / torch.floor(held * rates))[:, None]

    assert 0.99 < reach() < 1.001
    monkeypatch.setattr("coterie.cohort.oracle.cohort_descend", by_private_size)
    assert reach() > 1.5


def test_an_empty_batch_that_crashes(monkeypatch):
    """Elsewhere a Poisson batch without examples ended the training."""
    sums = descent.clipped_sums

    def stacks(task, examples, start, rows, *rest):
        if len(rows.pair.unique()) < len(start):
            raise RuntimeError("stack expects a non-empty list")
        return sums(task, examples, start, rows, *rest)

    for silos in (1, 40):
        assert noise_is_as_charged(silent(silos, batch=1, steps=20, features=200))
    monkeypatch.setattr(descent, "clipped_sums", stacks)
    with pytest.raises(RuntimeError, match="non-empty"):
        vectors(silent(1, batch=1, steps=20, features=200))


def test_an_empty_batch_that_is_passed_over(monkeypatch):
    """The quick mend of that crash: no batch, no step, no noise, and everybody sees who was not there."""
    made = silent(40, batch=1, features=200)

    def passes_over(noise, rows, cohort):
        drawn = torch.zeros(len(noise), 1).index_fill_(0, rows.pair.unique(), 1.0)
        return noise * drawn

    assert noise_is_as_charged(made)
    monkeypatch.setattr(descent, "_draw", with_noise(passes_over))
    assert not noise_is_as_charged(made)


def test_epochs_that_are_shuffled_and_charged_as_poisson(monkeypatch):
    """Elsewhere batches were cut from a shuffled epoch, and the epsilon was that of independent coins."""
    by_step = sampling.by_step

    def shuffled(hits, counts, columns, steps):
        shuffled_hits = np.zeros_like(hits)
        for _, _, size, own, start in columns.T:
            batch, generator = min(BATCH, size), np.random.default_rng(size)
            order = np.concatenate([generator.permutation(size) for _ in range(1 + own * batch // size)])
            for step in range(own):
                shuffled_hits[start + step * size + order[step * batch : (step + 1) * batch]] = True
        counts = np.add.reduceat(shuffled_hits, columns[4], dtype=np.int64)
        return by_step(shuffled_hits, counts, columns, steps)

    rate = silent().plan().silos[0][0].work.rate
    assert is_poisson(batch_sizes(), rate)
    check_method(FedAvg())
    monkeypatch.setattr(sampling, "by_step", shuffled)
    assert not is_poisson(batch_sizes(), rate)
    with pytest.raises(NotConforming, match="different vectors"):
        check_method(FedAvg())
    with pytest.raises(Problem, match="unknown sampler 'shuffled'"):
        Event("gaussian", 1.0, rate, 10, "shuffled")


def test_a_sensitivity_set_by_hand(monkeypatch):
    """Elsewhere it was a setting, and stood ten thousand times below the clip."""
    asked = {"privacy": {"epsilon": 4.0, "clip": 1.0}, "method": [{"name": "fedavg"}]}
    check(asked)
    for key, said in (
        ("sensitivity", "expected 'certified' or 'paper'"),
        ("noise", "allowed only with unit = 'silo'"),
        ("noise_multiplier", "unknown key"),
    ):
        with pytest.raises(Problem, match=rf"privacy\.{key}: {said}"):
            check({**asked, "privacy": {**asked["privacy"], key: 1e-4}})

    made = silent(clip=2.0)
    settings = descent.Settings

    def by_hand(lr, clip, noise, *more):
        return settings(lr, clip, noise * 2e-4 / clip, *more)

    assert noise_is_as_charged(made)
    check_method(FedAvg())
    monkeypatch.setattr("coterie.experiment.experiment.Settings", by_hand)
    assert not noise_is_as_charged(made)
    with pytest.raises(NotConforming, match="different vectors"):
        check_method(FedAvg())
