"""The cost of tuning: the number of trials, the chosen model, and whoever saw all trials."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy import integrate, optimize, stats
from scipy.special import logsumexp

from coterie.errors import Problem
from coterie.privacy import tuning
from coterie.privacy.accountant import ORDERS, epsilon, epsilon_of, renyi_curve, renyi_epsilon
from coterie.privacy.calibration import Target, noise_for
from coterie.privacy.events import Event
from coterie.privacy.tuning import (
    Trials,
    chance_above,
    chosen_epsilon,
    draw_trials,
    noise_for_server,
    noise_for_tuning,
    profile_excess,
    selected_curve,
    server_epsilon,
    spent_by_tuning,
)

SCHOOL = (Event("gaussian", 5.0, 0.3, 603),)
PLAIN = (Event("gaussian", 4.0),)
KINDS = [
    Trials("poisson", 4.0),
    Trials("geometric", 4.0),
    Trials("negative-binomial", 4.0, -0.7),
    Trials("negative-binomial", 4.0, -0.2),
    Trials("negative-binomial", 4.0, 0.0),
    Trials("negative-binomial", 4.0, 0.4),
    Trials("negative-binomial", 4.0, 6.0),
    Trials("negative-binomial", 1.2, 2.0),
]


def named(trials: Trials) -> str:
    return f"{trials.distribution} {trials.mean:g} {trials.shape}"


def chances(trials: Trials, most: int) -> np.ndarray:
    """Papernot and Steinke, definition 1, as products: chances of 0 to `most` trials, not yet normed."""
    if trials.distribution == "poisson":
        return stats.poisson.pmf(np.arange(most + 1), trials.mean)
    shape = 1.0 if trials.shape is None else trials.shape
    found, product = [0.0], 1.0
    for k in range(1, most + 1):
        product *= (1 - trials.gamma) * ((k - 1 + shape) if k > 1 else 1.0) / k
        found.append(product)
    return np.array(found)


def normed(trials: Trials, most: int = 20_000) -> np.ndarray:
    found = chances(trials, most)
    if trials.distribution == "poisson":
        return found
    shape, gamma = 1.0 if trials.shape is None else trials.shape, trials.gamma
    return found * (1 / math.log(1 / gamma) if shape == 0 else shape / (gamma**-shape - 1))


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


@pytest.mark.parametrize("trials", KINDS, ids=named)
@pytest.mark.parametrize("events", [SCHOOL, PLAIN, (Event("laplace", 2.0), Event("selection", 3.0))])
def test_tuning_costs_more_than_one_trial(events, trials):
    assert chosen_epsilon(events, trials, 1e-5) > epsilon_of(events, 1e-5)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 3.0])
def test_a_mean_of_one_is_one_trial(shape):
    certain, nearly = (Trials("negative-binomial", mean, shape) for mean in (1.0, 1 + 1e-5))
    single = epsilon_of(SCHOOL, 1e-3)
    assert chosen_epsilon(SCHOOL, certain, 1e-3) == pytest.approx(single, rel=1e-12)
    assert single <= chosen_epsilon(SCHOOL, nearly, 1e-3) <= single * 1.001
    curve = renyi_curve(SCHOOL)
    assert selected_curve(curve, certain) == pytest.approx(curve)
    assert selected_curve(curve, nearly)[10] == pytest.approx(curve[10], rel=1e-3)
    assert chosen_epsilon(SCHOOL, Trials("geometric", 1.0), 1e-3) == pytest.approx(single, rel=1e-12)


@pytest.mark.parametrize("events", [SCHOOL, PLAIN])
@pytest.mark.parametrize(
    "kind", [("poisson", None), ("geometric", None), ("negative-binomial", -0.6), ("negative-binomial", 2.0)]
)
def test_more_trials_cost_more(events, kind):
    found = [
        chosen_epsilon(events, Trials(kind[0], mean, kind[1]), 1e-4) for mean in (1.0, 1.5, 3.0, 10.0, 80.0)
    ]
    assert all(later > 1.001 * earlier for earlier, later in zip(found, found[1:], strict=False))


def test_a_smaller_shape_costs_less_and_less_noise_costs_more():
    found = [chosen_epsilon(SCHOOL, Trials("negative-binomial", 10.0, s), 1e-3) for s in (-0.7, 0, 1, 4)]
    assert found == sorted(found)
    assert found[2] == chosen_epsilon(SCHOOL, Trials("geometric", 10.0), 1e-3)
    quiet, loud = (chosen_epsilon((Event("gaussian", z),), KINDS[1], 1e-5) for z in (3.0, 4.0))
    assert quiet > loud


LIBRARY = [
    (
        SCHOOL,
        dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.3, dp_event.GaussianDpEvent(5.0)), 603),
    ),
    (PLAIN, dp_event.GaussianDpEvent(4.0)),
    ((Event("laplace", 3.0, count=4),), dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(3.0), 4)),
    (
        (Event("selection", 2.0, count=5), Event("gaussian", 6.0)),
        dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(6.0), dp_event.ZCDpEvent(5 * 0.5**2 / 8)]),
    ),
]


@pytest.mark.parametrize(("events", "theirs"), LIBRARY)
@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, math.inf])
@pytest.mark.parametrize("mean", [1.1, 10.0])
def test_agrees_with_the_library(events, theirs, shape, mean):
    """The published bound is dp-accounting's where its second order is not 1; the one given is not above."""
    trials = Trials("poisson", mean) if math.isinf(shape) else Trials("negative-binomial", mean, shape)
    counted = rdp.RdpAccountant(ORDERS).compose(dp_event.RepeatAndSelectDpEvent(theirs, mean, shape))
    for delta in (1e-3, 1e-6):
        library = counted.get_epsilon(delta)
        published = tuning._converted(selected_curve(renyi_curve(events), trials), delta)
        assert published <= library * 1.002
        if mean == 10:
            assert published == pytest.approx(library, rel=1e-6)
        assert chosen_epsilon(events, trials, delta) <= library * 1.002


def test_the_formulas_derived_again():
    """Theorem 2 for a Gaussian, rho = 1 / (2 z^2): all orders at once, minimised by hand in a fine grid."""
    z, mean, shape, delta = 4.0, 10.0, 1.0, 1e-6
    orders = np.linspace(1.001, 400, 400_000)
    rho, gamma = 1 / (2 * z**2), 1 / mean
    second = min((1 - 1 / orders) * rho * orders + math.log(1 / gamma) / orders)
    assert second == pytest.approx(2 * math.sqrt(rho * math.log(1 / gamma)) - rho, rel=1e-6)
    whole = rho * orders + (1 + shape) * second + math.log(mean) / (orders - 1)
    exact = min(whole + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))
    curve = renyi_curve((Event("gaussian", z),))
    found = tuning._converted(selected_curve(curve, Trials("geometric", mean)), delta)
    assert exact * (1 - 1e-6) <= found <= exact * 1.001


def test_the_bound_by_profile_derived_again():
    """One Gaussian sum, geometric: its curve delta(a) in closed form, met by (e^a - 1) gamma / (1 - gamma)."""
    noise, mean, delta = 4.0, 10.0, 1e-5

    def curve(a: float) -> float:
        left, right = 0.5 / noise - a * noise, -0.5 / noise - a * noise
        return float(stats.norm.cdf(left) - math.exp(a + stats.norm.logcdf(right)))

    single = optimize.brentq(lambda a: curve(a) - delta / mean, 0, 10)
    met = optimize.brentq(lambda a: curve(a) - math.expm1(a) / (mean - 1), 0, 10)
    found = chosen_epsilon((Event("gaussian", noise),), Trials("geometric", mean), delta)
    assert single + 2 * met <= found * (1 + 1e-9)
    assert found == pytest.approx(single + 2 * met, rel=2e-3)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 2.0])
def test_pure_privacy_costs_two_plus_shape_times(shape):
    """Papernot and Steinke, corollary 3; and for many trials at small delta nearly as much."""
    response = (Event("laplace", 2.0),)
    few, many = (chosen_epsilon(response, Trials("negative-binomial", m, shape), 1e-6) for m in (5.0, 1e3))
    assert 0.5 < few < many <= (2 + shape) * 0.5 + 1e-3
    assert many > 0.95 * (2 + shape) * 0.5


def test_the_profile_beats_the_published_bound_on_school():
    """Both derived above; the gain at the paper's E[h] = 10 is what lets a trial keep more of its budget."""
    trials = Trials("geometric", 10.0)
    published = tuning._converted(selected_curve(renyi_curve(SCHOOL), trials), 1e-3)
    assert chosen_epsilon(SCHOOL, trials, 1e-3) < 0.8 * published
    assert published > renyi_epsilon(SCHOOL, 1e-3)


def test_extremes():
    trials = Trials("geometric", 10.0)
    assert chosen_epsilon((Event("gaussian", 1e-9),), trials, 1e-5) == math.inf
    assert chosen_epsilon((Event("gaussian", math.inf),), trials, 1e-5) == pytest.approx(0, abs=1e-9)
    assert chosen_epsilon((), Trials("poisson", 10.0), 1e-5) == 0
    replaced = chosen_epsilon((Event("gaussian", 2.0, 0.2, 50),), trials, 1e-5, "replace-one")
    assert chosen_epsilon((Event("gaussian", 2.0, 0.2, 50),), trials, 1e-5) < replaced < math.inf
    assert math.isfinite(chosen_epsilon((Event("gaussian", 2.0, 0.2, 50, "fixed"),), trials, 1e-5))


def test_a_divergence_that_could_not_be_computed_counts_as_infinite():
    curve = [math.nan, *renyi_curve(PLAIN)[1:]]
    assert math.isinf(selected_curve(curve, KINDS[1])[0])
    assert selected_curve(curve, KINDS[1])[20] == pytest.approx(
        selected_curve(renyi_curve(PLAIN), KINDS[1])[20]
    )


def test_against_the_server_all_trials_add_up():
    assert server_epsilon(SCHOOL, 1, 1e-3) == epsilon_of(SCHOOL, 1e-3)
    assert server_epsilon(SCHOOL, 7, 1e-3) == epsilon(5.0, 0.3, 7 * 603, 1e-3)
    assert server_epsilon((Event("gaussian", 4.0),), 16, 1e-5) == pytest.approx(epsilon(1.0, 1.0, 1, 1e-5))
    assert server_epsilon(SCHOOL, 0, 1e-3) == 0
    assert server_epsilon(SCHOOL, 20, 1e-3) > chosen_epsilon(SCHOOL, Trials("geometric", 10.0), 1e-3)


@pytest.mark.parametrize(
    ("target", "delta", "rate", "steps", "trials"),
    [
        (6.0, 1e-3, 0.3, 603, Trials("geometric", 10.0)),
        (0.5, 1e-5, 1.0, 1, Trials("negative-binomial", 30.0, -0.7)),
        (2.0, 1e-5, 0.1, 30, Trials("poisson", 10.0)),
        (300.0, 1e-5, 0.1, 10, Trials("negative-binomial", 3.0, 4.0)),
    ],
)
def test_noise_for_tuning_never_overshoots_and_leaves_at_most_one_per_cent(
    target, delta, rate, steps, trials
):
    found = noise_for_tuning(target, delta, rate, steps, trials)
    assert target * 0.99 < found.epsilon <= target
    assert found.epsilon == chosen_epsilon((Event("gaussian", found.noise, rate, steps),), trials, delta)
    assert found.noise > noise_for(Target(target, delta, rate, steps)).noise


def test_noise_without_a_budget_and_for_one_trial():
    assert noise_for_tuning(math.inf, 1e-5, 0.1, 10, KINDS[1]).noise == 0
    single = noise_for(Target(2.0, 1e-5, 0.1, 10))
    assert noise_for_tuning(2.0, 1e-5, 0.1, 10, Trials("geometric", 1.0)).noise == single.noise


def test_a_bound_that_jumps_is_never_overshot(monkeypatch):
    """Just above the budget up to noise 7, nothing beyond: the noise is the first that is within it."""
    monkeypatch.setattr(tuning, "chosen_epsilon", lambda events, *_: 2.01 if events[0].noise < 7 else 0.0)
    found = noise_for_tuning(2.0, 1e-5, 0.1, 10, KINDS[1])
    assert found.epsilon == 0
    assert 7 <= found.noise < 7.001


def test_noise_for_the_server():
    found = noise_for_server(6.0, 1e-3, 0.3, 603, 10)
    assert 5.94 < found.epsilon <= 6.0
    assert found.epsilon == server_epsilon((Event("gaussian", found.noise, 0.3, 603),), 10, 1e-3)
    assert found.noise > noise_for_tuning(6.0, 1e-3, 0.3, 603, Trials("geometric", 10.0)).noise


def test_what_tuning_spent():
    trials = Trials("poisson", 3.0)
    spent = spent_by_tuning(SCHOOL, trials, 17, 1e-3)
    assert (spent.one, spent.delta) == (epsilon_of(SCHOOL, 1e-3), 1e-3)
    assert spent.chosen == chosen_epsilon(SCHOOL, trials, 1e-3)
    assert spent.server == server_epsilon(SCHOOL, 17, 1e-3)
    score = "the score by which the best trial was chosen must be public or noised and part of the trial"
    assert score in spent.notes
    assert any("with chance 0.05 there is no trial" in note for note in spent.notes)
    assert any("not how many there were" in note for note in spent.notes)
    assert not any("17" in note for note in spent.notes)
    assert spent_by_tuning(SCHOOL, trials, 0, 1e-3).server == 0
    assert not any("no trial" in note for note in spent_by_tuning(SCHOOL, KINDS[1], 2, 1e-3).notes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("geometrical", 3.0), "unknown distribution 'geometrical'; did you mean 'geometric'?"),
        (("geometric", 0.5), "mean must be a finite number of trials >= 1, got 0.5"),
        (("poisson", math.inf), "mean must be a finite number"),
        (("poisson", math.nan), "mean must be a finite number"),
        (("poisson", 3.0, 1.0), r"shape: a poisson number of trials has none, got 1\.0"),
        (("geometric", 3.0, 1.0), "shape: a geometric number of trials has none"),
        (("negative-binomial", 3.0), "shape must be a finite number > -1, got None"),
        (("negative-binomial", 3.0, -1.0), r"shape must be a finite number > -1, got -1\.0"),
        (("negative-binomial", 3.0, math.nan), "shape must be a finite number > -1"),
        (("negative-binomial", 10.0, -0.999), r"shape -0\.999 is too near -1 for a mean of 10 trials"),
    ],
)
def test_trials_refuse(arguments, said):
    with pytest.raises(Problem, match=said):
        Trials(*arguments)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Trials("poisson", 3.0).gamma, "gamma: a poisson number of trials has none"),
        (lambda: chosen_epsilon(PLAIN, KINDS[1], 0.0), r"delta must be a number in \(0, 1\), got 0"),
        (
            lambda: chosen_epsilon(PLAIN, KINDS[1], 1e-5, "zero"),
            "unknown adjacency 'zero'; did you mean 'zero-out'",
        ),
        (lambda: server_epsilon(PLAIN, -1, 1e-5), "the number of trials must be a whole number >= 0, got -1"),
        (lambda: server_epsilon(PLAIN, 2.5, 1e-5), "must be a whole number >= 0, got 2.5"),
        (lambda: server_epsilon(PLAIN, True, 1e-5), "must be a whole number >= 0, got True"),
        (lambda: chance_above(KINDS[1], -1), "must be a whole number >= 0, got -1"),
        (lambda: noise_for_server(1.0, 1e-5, 0.1, 10, 0), "the number of trials must be a whole number >= 1"),
        (lambda: noise_for_server(1.0, 1e-5, 0.1, 0, 2), "steps must be a whole number >= 1, got 0"),
        (
            lambda: spent_by_tuning(PLAIN, KINDS[1], 0, 1e-5),
            "a geometric number of trials is at least 1, got 0",
        ),
        (lambda: noise_for_tuning(0.0, 1e-5, 0.1, 10, KINDS[1]), "epsilon must be a number > 0, got 0"),
        (lambda: noise_for_tuning(1.0, 1e-2, 1e-3, 1, KINDS[1]), "delta 0.01 is not below 0.001"),
        (
            lambda: noise_for_tuning(0.01, 1e-5, 1.0, 1, Trials("poisson", 1e6)),
            r"cannot be reached for 1e\+06 trials on average with noise up to 1e\+06",
        ),
    ],
)
def test_bad_input_is_refused(call, said):
    with pytest.raises(Problem, match=said):
        call()


def test_examples():
    assert doctest.testmod(tuning).failed == 0
