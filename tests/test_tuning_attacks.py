"""The cost of tuning lies above what enumerated mechanisms and a true attack lose."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import logsumexp

from coterie.privacy import tuning
from coterie.privacy.accountant import ORDERS, epsilon_of, renyi_epsilon
from coterie.privacy.events import Event
from coterie.privacy.trials import Trials
from coterie.privacy.tuning import chosen_epsilon, profile_excess, selected_curve
from tests.trials import KINDS, named, normed


def best_of(one: np.ndarray, trials: Trials, most: int = 4000) -> np.ndarray:
    """Chances of each outcome, worst first, to be the best of the trials; then that of no trial at all.

    Summed over the number of trials: the best of k is at most y with chance (at most y in one)^k.
    """
    at_most = np.concatenate([[0.0], np.cumsum(one)])
    at_most[-1] = 1.0
    number = normed(trials, most)
    chosen = sum(number[k] * np.diff(at_most**k) for k in range(1, most + 1))
    return np.append(chosen, 1 - number[1:].sum() if trials.distribution == "poisson" else 0.0)


def delta_between(one: np.ndarray, other: np.ndarray, at: float) -> float:
    """The exact delta at an epsilon, of both directions."""
    sides = [np.maximum(a - math.exp(at) * b, 0).sum() for a, b in ((one, other), (other, one))]
    return float(min(max(sides), 1.0))


def epsilon_between(one: np.ndarray, other: np.ndarray, delta: float) -> float:
    low, high = 0.0, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_between(one, other, middle) <= delta else (middle, high)
    return high


def divergence(one: np.ndarray, other: np.ndarray, order: float) -> float:
    kept = (one > 0) & (other > 0)
    terms = order * np.log(one[kept]) + (1 - order) * np.log(other[kept])
    return float(logsumexp(terms)) / (order - 1)


MECHANISMS = [
    ([0.6, 0.4], [0.4, 0.6]),
    ([0.9, 0.1], [0.75, 0.25]),
    ([0.99, 0.01], [0.95, 0.05]),
    ([0.2, 0.5, 0.3], [0.3, 0.5, 0.2]),
    ([0.1, 0.2, 0.3, 0.4], [0.15, 0.25, 0.25, 0.35]),
    ([0.02, 0.9, 0.08], [0.1, 0.85, 0.05]),
]


@pytest.mark.parametrize("trials", KINDS, ids=named)
def test_both_bounds_lie_above_brute_force(trials):
    """Small mechanisms whose best-of-many is enumerated: true divergences and epsilons are below the bounds."""
    for one, other in MECHANISMS:
        pair = np.array(one), np.array(other)
        sides = (pair, pair[::-1])
        curve = [max(divergence(a, b, order) for a, b in sides) for order in ORDERS]
        chosen = best_of(pair[0], trials), best_of(pair[1], trials)
        bound = selected_curve(curve, trials, lambda at, p=pair: delta_between(*p, at))
        for order, limit in list(zip(ORDERS, bound, strict=True))[:40]:
            assert max(divergence(a, b, order) for a, b in (chosen, chosen[::-1])) <= limit + 1e-7
        excess = profile_excess(trials, lambda at, p=pair: delta_between(*p, at))
        for delta in (1e-6, 1e-3, 0.03):
            limit = epsilon_between(*pair, delta / trials.mean) + excess
            assert epsilon_between(*chosen, delta) <= limit + 1e-7


def test_a_pure_epsilon_can_triple():
    """An outcome likelier by e^0.5, beaten by one rarer by e^0.5: the 3 x 0.5 of Liu and Talwar 2019 is met."""
    trials, more = Trials("geometric", 1000.0), math.exp(0.5)
    pair = np.array([0.0, 0.001 * more, 0.05]), np.array([0.0, 0.001, 0.05 * more])
    for side in pair:
        side[0] = 1 - side.sum()
    assert epsilon_between(*pair, 1e-12) == pytest.approx(0.5, abs=1e-6)
    true = epsilon_between(best_of(pair[0], trials, 30_000), best_of(pair[1], trials, 30_000), 1e-9)
    bound = epsilon_between(*pair, 1e-12) + profile_excess(trials, lambda at: delta_between(*pair, at))
    assert 1.45 < true <= bound <= 1.5 + 1e-6


def test_no_trial_at_all_is_an_outcome():
    """It has chance e^-mean on every data set, and counts in the sum that a divergence is the logarithm of."""
    trials, order = Trials("poisson", 1.0), ORDERS.index(3)
    assert best_of(np.array([0.5, 0.5]), trials)[-1] == pytest.approx(math.exp(-1))
    assert selected_curve([0.0] * len(ORDERS), trials)[order] == pytest.approx(math.log(1 + math.exp(-1)) / 2)


def test_forgetting_the_tuning_lies_below_the_truth():
    """Randomized response, a geometric number of times, and "yes" beats "no".

    It is what remains of a bit with Laplace noise of scale 1 if only told whether it is above 1/2:
    a lie has chance e^-0.5 / 2, and one trial is 1-private.
    """
    lie, trials, delta = math.exp(-0.5) / 2, Trials("geometric", 50.0), 1e-6
    pair = np.array([1 - lie, lie]), np.array([lie, 1 - lie])
    true = epsilon_between(best_of(pair[0], trials), best_of(pair[1], trials), delta)
    released = (Event("laplace", 1.0),)
    claimed = epsilon_of(released, delta)
    assert epsilon_between(*pair, delta) < claimed <= 1.0 + 1e-3
    assert claimed * 1.5 < true <= chosen_epsilon(released, trials, delta)
    exact = [divergence(*pair, order) for order in ORDERS]
    assert (
        renyi_epsilon(released, delta) * 1.5 < true <= tuning._converted(selected_curve(exact, trials), delta)
    )


def gaussian_attack(noise: float, trials: Trials, at: float) -> float:
    """The exact delta at an epsilon if each trial gives one noised sum, and the largest is the best."""
    number = normed(trials, 400)
    size = np.arange(len(number))

    def density(x: float, centre: float) -> float:
        below = stats.norm.cdf(x, centre, noise)
        return stats.norm.pdf(x, centre, noise) * float(np.sum(number[1:] * size[1:] * below ** size[:-1]))

    points = np.linspace(-9 * noise, 1 + 9 * noise, 1001)
    without, one = ([density(x, centre) for x in points] for centre in (0.0, 1.0))
    gain = np.maximum(np.array(one) - math.exp(at) * np.array(without), 0.0)
    return float(integrate.trapezoid(gain, points))


@pytest.mark.parametrize("trials", [Trials("geometric", 10.0), Trials("poisson", 10.0)], ids=named)
def test_bounds_an_attack_on_the_largest_of_gaussian_sums(trials):
    """The score is the release itself: a true attack, above one trial's epsilon, below the bound."""
    delta = 1e-3
    bound = chosen_epsilon((Event("gaussian", 1.0),), trials, delta)
    assert gaussian_attack(1.0, trials, bound) <= delta
    assert gaussian_attack(1.0, trials, epsilon_of((Event("gaussian", 1.0),), delta)) > delta
