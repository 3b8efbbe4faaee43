"""What runs is what is charged: Poisson batches, the clip, the noise, the denominator.

Statistical tests use fixed seeds, so they give the same answer every time.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.examples import Examples
from coterie.cohort.sampling import coins
from coterie.protocol.doors import Work, epochs_of_work
from coterie.protocol.streams import SeededDice, SeededStreams
from coterie.tasks.task import Task


class Offset(nn.Module):
    """Predicts a constant: with squared loss the gradient is 2 (b - y) in every output."""

    def __init__(self, size: int):
        super().__init__()
        self.b = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return (x * self.b).sum(-1, keepdim=True)


def cohort(
    noise, *, size=64, batch=8, steps=1, clip=1.0, lr=1.0, parameters=50, x=None, y=None, silos=1, runs=1
):
    """Silos whose examples have no gradient, unless x and y say otherwise."""
    task = Task(lambda: Offset(parameters), "squared", (parameters,))
    x = torch.zeros(silos, size, parameters) if x is None else x
    y = torch.zeros(silos, size) if y is None else y
    names = tuple(f"s{k}" for k in range(silos))
    examples = Examples(names, (size,) * silos, x, y, 1.0)
    full = torch.ones(runs, silos)
    settings = Settings(full, clip * full, noise * full)
    return Cohort(task, examples, (Work(size, batch, steps),) * silos, settings)


def moved(made: Cohort, round_=0, call=0, seed=0):
    """How far each silo moved from zero: [runs, silos, P]."""
    start = torch.zeros(made.runs, len(made.work), made.task.layout.size)
    streams = SeededStreams(tuple((seed, r) for r in range(made.runs)))
    return -descend(made, start, streams, round_, call)


def seeded(seed: int) -> SeededDice:
    generator = np.random.default_rng(seed)
    return SeededDice(generator, generator)


def drawn_in(made: Cohort, round_: int) -> int:
    """How many examples the first silo draws in a round of one step."""
    sampler = SeededStreams(((0, 0),)).dice(0, "s0", round_, 0)
    return int(coins(sampler, made.work[0], 1).sum())


@pytest.mark.parametrize(("noise", "clip", "batch"), [(1.0, 1.0, 8), (3.5, 0.2, 16), (0.7, 4.0, 64)])
def test_noise_has_the_stated_deviation(noise, clip, batch):
    """Kolmogorov-Smirnov accepts the stated sigma and rejects 2/3 and 3/2 of it."""
    sample = moved(cohort(noise, clip=clip, batch=batch, parameters=4000)).flatten().double().numpy()
    stated = noise * clip / batch  # on the sum, divided by the expected batch, lr 1
    assert stats.kstest(sample / stated, "norm").pvalue > 1e-3
    assert stats.kstest(sample / (stated * 2 / 3), "norm").pvalue < 1e-9
    assert stats.kstest(sample / (stated * 3 / 2), "norm").pvalue < 1e-9


def test_every_step_adds_noise_of_its_own():
    """Sixteen steps add up to four times the deviation: independent, none skipped."""
    sample = moved(cohort(1.0, steps=16, parameters=4000)).flatten().double().numpy()
    assert stats.kstest(sample / (4 / 8), "norm").pvalue > 1e-3


def test_noise_is_unique_across_silos_runs_rounds_calls_and_seeds():
    made = cohort(1.0, silos=3, runs=2, parameters=300)
    draws = [
        moved(made, round_, call, seed).flatten(0, 1)
        for round_, call, seed in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    every = torch.cat(draws)
    correlations = torch.corrcoef(every).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 6 / math.sqrt(300)


def test_noise_of_coordinates_is_independent():
    draws = torch.stack([moved(cohort(1.0, parameters=40), round_=r)[0, 0] for r in range(400)])
    correlations = torch.corrcoef(draws.T).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 6 / math.sqrt(400)


def test_an_empty_batch_still_adds_noise():
    made = cohort(2.0, size=50, batch=1, parameters=2000)
    empty = next(r for r in range(100) if drawn_in(made, r) == 0)
    sample = moved(made, round_=empty).flatten().double().numpy()
    assert stats.kstest(sample / 2.0, "norm").pvalue > 1e-3


def test_sums_are_divided_by_the_expected_batch_not_the_drawn_one():
    """Every example has the same gradient g, so the step is (drawn / expected) g."""
    size, batch = 40, 10
    x, y = torch.ones(1, size, 1), torch.full((1, size), 0.25)
    made = cohort(0.0, size=size, batch=batch, clip=10.0, parameters=1, x=x, y=y)
    seen = set()
    for round_ in range(20):
        drawn = drawn_in(made, round_)
        seen.add(drawn)
        torch.testing.assert_close(
            float(moved(made, round_)[0, 0, 0]), -0.5 * drawn / batch, atol=1e-5, rtol=0
        )
    assert len(seen) > 3


def test_the_clip_bounds_what_examples_do():
    """Gradients a thousand times the clip move the model by the clip each."""
    size = batch = 16
    x, y = torch.ones(1, size, 1), torch.full((1, size), -1000.0)
    made = cohort(0.0, size=size, batch=batch, clip=0.5, parameters=1, x=x, y=y)
    assert float(moved(made)[0, 0, 0]) == pytest.approx(0.5, rel=1e-4)


def test_coins_are_poisson():
    """The number drawn is binomial, examples are drawn equally and independently."""
    work = Work(200, 30, 4000)
    hits = coins(seeded(5), work, work.steps)
    counts = hits.sum(1)
    expected = stats.binom(200, 0.15)
    edges = [0, 22, 25, 27, 29, 31, 33, 35, 38, 201]
    observed = np.histogram(counts, edges)[0]
    chances = np.diff([expected.cdf(e - 1) for e in edges])
    assert stats.chisquare(observed, chances / chances.sum() * 4000).pvalue > 1e-3
    assert abs(hits.mean(0) - 0.15).max() < 6 * math.sqrt(0.15 * 0.85 / 4000)
    assert counts.var() == pytest.approx(200 * 0.15 * 0.85, rel=0.12)
    pairs = np.corrcoef(hits[:, :20].T)
    np.fill_diagonal(pairs, 0)
    assert abs(pairs).max() < 6 / math.sqrt(4000)


def test_batches_are_never_truncated():
    """The largest of many batches is far above the expected size, and all of it is used."""
    size, batch = 60, 6
    x, y = torch.ones(1, size, 1), torch.full((1, size), 0.25)
    made = cohort(0.0, size=size, batch=batch, clip=10.0, parameters=1, x=x, y=y)
    largest = 0
    for round_ in range(200):
        drawn = drawn_in(made, round_)
        if drawn > largest:
            largest = drawn
            torch.testing.assert_close(
                float(moved(made, round_)[0, 0, 0]), -0.5 * drawn / batch, atol=1e-5, rtol=0
            )
    assert largest >= 12


def test_rate_one_takes_everybody():
    assert coins(seeded(0), Work(7, 7, 3), 3).all()


@pytest.mark.parametrize(
    ("size", "batch", "epochs", "work"),
    [
        (100, 32, 1, Work(100, 32, 3)),
        (20, 32, 1, Work(20, 20, 1)),
        (100, 10, 0.01, Work(100, 10, 1)),
        (64, 32, 2.5, Work(64, 32, 5)),
    ],
)
def test_work_of_an_epoch(size, batch, epochs, work):
    assert epochs_of_work(size, batch, epochs) == work
    assert work.rate == min(1, batch / size)
    assert work.expected == min(batch, size)


def test_work_is_what_the_plan_charges(federation):
    """The sampler's record and the accountant's numbers are the same."""
    from coterie.methods import MRMTL
    from coterie.privacy.accountant import epsilon
    from tests.helpers import experiment

    made = experiment(federation, MRMTL(), rounds=5, epochs=2.0)
    plan = made.plan()
    cohort_work = made.cohort(plan).work
    for silo, work in zip(plan.silos[0], cohort_work, strict=True):
        assert silo.work == work
        assert silo.steps == 5 * work.steps
        assert silo.epsilon == epsilon(silo.noise, work.rate, 5 * work.steps, silo.delta)


def test_the_noise_of_the_plan_is_the_noise_of_the_cohort(federation):
    from coterie.methods import FedAvg
    from tests.helpers import experiment

    made = experiment(federation, FedAvg(), epsilon={"silo-0": 1.0, "default": 3.0}, clip=0.3)
    plan = made.plan()
    settings = made.cohort(plan).settings
    expected = torch.tensor([[silo.noise for silo in run] for run in plan.silos])
    torch.testing.assert_close(settings.noise, expected)
    assert float(settings.noise[0, 0]) > float(settings.noise[0, 1]) > 0
    assert torch.equal(settings.clip, torch.full_like(settings.clip, 0.3))


def test_every_run_and_silo_has_its_own_numbers(federation):
    """Budgets, deltas and clips differ by run and silo, and each gets the noise for its own."""
    from coterie.methods import FedAvg
    from coterie.privacy.accountant import epsilon
    from tests.helpers import experiment

    deltas = {"silo-0": 1e-2, "silo-1": 1e-4, "silo-2": 1e-6}
    made = experiment(
        federation,
        FedAvg(),
        epsilon=[{"silo-0": math.inf, "default": 1.0}, 5.0],
        clip=[0.3, 2.0],
        delta=deltas,
    )
    plan = made.plan()
    settings = made.cohort(plan).settings
    assert len(plan.silos) == 4
    for run, silos in enumerate(plan.silos):
        for k, silo in enumerate(silos):
            assert silo.delta == deltas[silo.name]
            assert float(settings.noise[run, k]) == pytest.approx(silo.noise, rel=1e-6)
            if math.isinf(silo.budget):
                assert (silo.noise, silo.epsilon) == (0.0, math.inf)
                assert math.isinf(settings.clip[run, k])
                continue
            certified = epsilon(float(settings.noise[run, k]), silo.work.rate, silo.steps, deltas[silo.name])
            assert 0.98 * silo.budget < certified <= silo.budget
            assert float(settings.clip[run, k]) == pytest.approx([0.3, 2.0][run % 2])
    assert float(settings.noise[0, 1]) > float(settings.noise[2, 1]) > 0


def test_coins_and_noise_come_from_different_streams():
    sampler, noise = SeededStreams(((0, 0),)).dice(0, "s0", 0, 0)
    first, second = sampler.random(1000), noise.random(1000)
    assert not np.array_equal(first, second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / math.sqrt(1000)


def test_every_call_of_a_door_is_charged(federation):
    """A method that trains twice a round pays twice."""
    from coterie.methods import FedAvg
    from coterie.privacy.accountant import epsilon
    from tests.helpers import experiment

    class Twice(FedAvg):
        def local(self, sent, own, oracle):
            return oracle.descend(oracle.descend(sent)) - sent, None

    once, twice = (experiment(federation, kind()).plan().silos[0] for kind in (FedAvg, Twice))
    for one, two in zip(once, twice, strict=True):
        assert two.steps == 2 * one.steps
        assert two.noise > one.noise
        assert two.epsilon == epsilon(two.noise, two.work.rate, 2 * 3 * two.work.steps, two.delta)


def test_noise_without_a_clip_is_refused():
    with pytest.raises(ValueError, match="finite clip"):
        Settings(torch.ones(1, 1), torch.tensor([[math.inf]]), torch.ones(1, 1))


def test_uneven_steps_stop_in_time():
    """A silo with fewer steps than another takes just its own, and draws just their noise."""
    made = cohort(1.0, silos=2, parameters=30)
    works = (Work(64, 8, 2), Work(64, 8, 9))
    both = moved(dataclasses.replace(made, work=works))
    for k, work in enumerate(works):
        alone = moved(dataclasses.replace(made, work=(work, work)))
        torch.testing.assert_close(both[0, k], alone[0, k])
