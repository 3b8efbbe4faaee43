"""The cost of the chosen model: how it grows, and the same formulas by the library and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy import optimize, stats

from coterie.privacy import tuning
from coterie.privacy.accountant import ORDERS, epsilon_of, renyi_curve, renyi_epsilon
from coterie.privacy.events import Event
from coterie.privacy.trials import Trials
from coterie.privacy.tuning import chosen_epsilon, selected_curve
from tests.trials import KINDS, PLAIN, SCHOOL, named


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
