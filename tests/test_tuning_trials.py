"""The number of trials: its mean, its draws, its tail, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy import stats

from coterie.errors import Problem
from coterie.privacy.trials import Trials, chance_above, draw_trials
from tests.trials import KINDS, named, normed


@pytest.mark.parametrize("trials", KINDS, ids=named)
def test_gamma_gives_the_mean(trials):
    """For shape -0.7 the tail is long: gamma is 0.0011, 20,000 terms hold all but e^-22 of it."""
    found = normed(trials)
    assert found.sum() == pytest.approx(1, abs=1e-8)
    assert found @ np.arange(len(found)) == pytest.approx(trials.mean, rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 1e-7, 0.5, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("mean", [1.001, 2.0, 30.0, 1e4])
def test_gamma_agrees_with_the_library(shape, mean):
    theirs = rdp._gamma_truncated_negative_binomial(shape, mean)
    assert Trials("negative-binomial", mean, shape).gamma == pytest.approx(theirs, rel=1e-8)


def alarm(drawn: np.ndarray, expected: np.ndarray) -> float:
    """Chi-square: the chance of draws this far from expected; rare numbers are taken together."""
    counts = np.bincount(np.minimum(drawn, len(expected) - 1), minlength=len(expected)).astype(float)
    wanted = expected * len(drawn)
    wanted[-1] += max(len(drawn) - wanted.sum(), 0.0)
    cells = np.minimum(np.cumsum(np.concatenate([[0.0], wanted[:-1]])) // 25, (len(drawn) - 25) // 25)
    groups = np.unique(cells, return_inverse=True)[1]
    seen, wished = np.bincount(groups, counts), np.bincount(groups, wanted)
    return float(stats.chi2.sf(((seen - wished) ** 2 / np.maximum(wished, 1e-300)).sum(), len(seen) - 1))


def draws(trials: Trials, many: int = 20_000) -> np.ndarray:
    generator = np.random.default_rng(7)
    return np.array([draw_trials(trials, generator) for _ in range(many)])


@pytest.mark.parametrize("trials", KINDS, ids=named)
def test_draws_follow_the_distribution(trials):
    """One wrong alarm in a million, were the seed not fixed."""
    drawn = draws(trials)
    assert drawn.min() == (0 if trials.distribution == "poisson" else 1)
    assert alarm(drawn, normed(trials)) > 1e-6


@pytest.mark.parametrize(
    ("trials", "other"),
    [
        (KINDS[0], Trials("poisson", 4.2)),
        (KINDS[2], Trials("negative-binomial", 4.0, -0.6)),
        (KINDS[4], Trials("negative-binomial", 4.0, 0.1)),
        (KINDS[6], Trials("negative-binomial", 4.0, 4.0)),
    ],
    ids=named,
)
def test_the_test_of_draws_rejects_other_distributions(trials, other):
    assert alarm(draws(trials), normed(other)) < 1e-6


def test_one_trial_with_certainty():
    for shape in (-0.9, 0.0, 0.5, 1.0, 7.0):
        trials = Trials("negative-binomial", 1.0, shape)
        assert trials.gamma == 1
        assert set(draws(trials, 100)) == {1}


def test_chance_of_more_trials():
    for trials in KINDS:
        whole = normed(trials)
        for count in (0, 1, 2, 9, 40):
            assert chance_above(trials, count) == pytest.approx(1 - whole[: count + 1].sum(), abs=1e-8)
    assert chance_above(Trials("poisson", 900.0), 1000) == pytest.approx(stats.poisson.sf(1000, 900))
    assert chance_above(Trials("geometric", 1.0), 1) < 1e-12
    assert 0 < chance_above(Trials("geometric", 2.0), 2000) < 1e-10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("geometrical", 3.0), "unknown distribution 'geometrical'; did you mean 'geometric'?"),
        (("geometric", 0.5), "mean must be a finite number of trials >= 1, got 0.5"),
        (("poisson", math.inf), "mean must be a finite number"),
        (("poisson", math.nan), "mean must be a finite number"),
        (("poisson", 3.0, 1.0), r"shape: a poisson distribution has no shape, got 1\.0"),
        (("geometric", 3.0, 1.0), "shape: a geometric distribution has no shape"),
        (("negative-binomial", 3.0), "shape must be a finite number > -1, got None"),
        (("negative-binomial", 3.0, -1.0), r"shape must be a finite number > -1, got -1\.0"),
        (("negative-binomial", 3.0, math.nan), "shape must be a finite number > -1"),
        (("negative-binomial", 10.0, -0.999), r"shape -0\.999 is too close to -1 for a mean of 10 trials"),
    ],
)
def test_trials_refuse(arguments, said):
    with pytest.raises(Problem, match=said):
        Trials(*arguments)
