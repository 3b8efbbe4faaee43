"""Lower bounds on epsilon: never above the truth, and at most a percent below the upper bound."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from coterie.privacy import gaussian
from coterie.privacy.accountant import bounds, epsilon_of, quick_lower
from coterie.privacy.events import Event
from coterie.privacy.pld import lower as module
from coterie.privacy.pld.lower import WRONG, lower_epsilon
from coterie.privacy.recheck import _epsilon


def sampled(noise, rate, count, sampler="poisson"):
    return (Event("gaussian", noise, rate, count, sampler),)


POISSON = [
    (1.0, 0.01, 10_000, 1e-5),
    (0.6, 0.01, 500, 1e-5),
    (5.0, 0.3, 603, 1e-3),
    (2.0, 0.1, 100, 1e-5),
    (1.0, 0.01, 10**6, 1e-5),
    (2.0, 0.001, 10**6, 1e-5),
    (0.3, 1e-5, 10**6, 1e-5),
    (0.05, 0.5, 10**6, 1e-5),
    (5.0, 0.05, 10**6, 1e-5),
    (50.0, 0.999999, 10**6, 1e-5),
    (1000.0, 0.001, 10**6, 1e-3),
    (1e5, 1e-5, 1, 1e-9),
    (30.0, 0.001, 10, 1e-5),
    (0.9, 0.2, 5, 1e-2),
    (1.0, 0.5, 1, 1e-5),
    (2.0, 0.01, 10**5, 1e-8),
]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("noise", "rate", "steps", "delta"), POISSON)
def test_poisson_samples_are_known_to_a_percent(noise, rate, steps, delta, adjacency):
    found = bounds(sampled(noise, rate, steps), delta, adjacency, tight=True)
    assert 0.99 * found.upper <= found.lower <= found.upper
    assert found.lower >= quick_lower(sampled(noise, rate, steps), delta, adjacency) * (1 - 1e-4)


@pytest.mark.parametrize(
    ("events", "adjacency", "least"),
    [
        (sampled(4.0, 0.1, 200, "fixed"), "replace-one", 0.90),
        (sampled(2.0, 0.5, 3, "fixed"), "replace-one", 0.99),
        (sampled(40.0, 0.01, 10**5, "fixed"), "replace-one", 0.96),
        (sampled(4.0, 0.1, 200, "fixed"), "zero-out", 0.45),
        (sampled(2.0, 0.9, 1, "fixed"), "zero-out", 0.45),
        ((Event("selection", 1.0),), "zero-out", 0.99),
        ((Event("selection", 4.0, count=20),), "zero-out", 0.89),
        ((Event("selection", 20.0, count=500),), "replace-one", 0.91),
        ((Event("laplace", 3.0, count=10),), "zero-out", 0.99),
        ((Event("laplace", 50.0, count=10_000),), "replace-one", 0.99),
        ((*sampled(5.0, 0.3, 603), Event("selection", 4.0, count=20)), "zero-out", 0.97),
    ],
)
def test_how_far_theory_allows_elsewhere(events, adjacency, least):
    """The upper bounds of fixed-size samples and selections are not those of one pair of data sets."""
    found = bounds(events, 1e-5, adjacency, tight=True)
    assert least * found.upper <= found.lower <= found.upper


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (3.0, 10), (20.0, 1000), (1000.0, 10**6)])
@pytest.mark.parametrize("share", [1.0, 0.2, 0.02])
def test_gaussians_without_sampling_against_the_closed_form(noise, count, delta, share):
    """The accountant joins them into one; composed step by step, the bound is below the exact epsilon."""
    exact = gaussian.epsilon_of(math.sqrt(count) / noise, delta)
    found = lower_epsilon([Event("gaussian", noise, 1.0, count)], delta, share / noise, "zero-out")
    assert found <= exact
    if share == 0.02 and 1e-14 * count < delta / 100:
        assert found >= 0.99 * exact


def true_delta(noise, rate, epsilon, reverse, step=0.004):
    """Delta of two Poisson-sampled sums by summing P x P - e^epsilon Q x Q over the plane."""
    x = np.arange(-9 * noise, 9 * noise + 1, step * noise)
    plain, there = (np.exp(-(((x - at) / noise) ** 2) / 2) for at in (0.0, 1.0))
    one, two = (1 - rate) * plain + rate * there, plain
    one, two = (two, one) if reverse else (one, two)
    scale = (step / math.sqrt(2 * math.pi)) ** 2
    return float(np.maximum(np.outer(one, one) - math.exp(epsilon) * np.outer(two, two), 0).sum() * scale)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.3), (0.7, 0.05), (2.0, 0.9)])
@pytest.mark.parametrize("delta", [0.05, 1e-3, 1e-5])
def test_two_sampled_sums_against_a_slow_oracle(noise, rate, delta):
    found = bounds(sampled(noise, rate, 2), delta, tight=True)
    below = max(true_delta(noise, rate, found.lower * (1 - 1e-6) - 1e-9, way) for way in (False, True))
    above = max(true_delta(noise, rate, found.upper, way) for way in (False, True))
    assert below >= delta * (1 - 1e-4) or found.upper == 0
    assert above <= delta * (1 + 1e-4)


def test_a_sample_of_fixed_size_against_enumeration():
    """Two of four numbers are drawn; all others are -1: one sum, by integration over the mixtures."""
    noise, grid = 1.0, np.linspace(-14, 14, 100_001)

    def density(data):
        sums = [sum(part) for part in itertools.combinations(data, 2)]
        return np.mean([np.exp(-((grid - s) ** 2) / 2) for s in sums], 0) / math.sqrt(2 * math.pi)

    used, zeroed, replaced = (density((first, -1.0, -1.0, -1.0)) for first in (1.0, 0.0, -1.0))
    for delta in (0.1, 1e-2, 1e-4):
        for other, adjacency in ((zeroed, "zero-out"), (replaced, "replace-one")):
            found = bounds(sampled(noise, 0.5, 1, "fixed"), delta, adjacency, tight=True).lower
            reached = [
                float(np.maximum(0, one - math.exp(found * (1 - 1e-6)) * two).sum() * (grid[1] - grid[0]))
                for one, two in ((used, other), (other, used))
            ]
            assert max(reached) >= delta * (1 - 1e-5)


def test_coarse_grids_are_valid_because_remainders_are_paid_for(monkeypatch):
    """Without them, losses rounded to the nearest point of a coarse grid would pass for a bound."""
    setting = ([Event("gaussian", 20.0, 1.0, 1000)], 1e-5)
    exact = gaussian.epsilon_of(math.sqrt(1000) / 20, 1e-5)
    steps = [share / 20 for share in (0.3, 0.5, 1.0, 1.3, 1.7, 2.2, 2.9)]
    assert all(lower_epsilon(*setting, step, "zero-out") <= exact for step in steps)
    monkeypatch.setattr(module, "_least_sum", lambda parts, chance: 0.0)
    assert any(lower_epsilon(*setting, step, "zero-out") > exact for step in steps)


def test_remainders_against_simulation():
    """The sum of remainders is below the bound no more often than its probability says."""
    generator = np.random.default_rng(0)
    masses, rest, count = np.array([0.2, 0.5, 0.3]), np.array([-0.1, 0.02, 0.05]), 50
    sums = generator.choice(rest, p=masses, size=(100_000, count)).sum(1)
    for chance in (0.5, 0.1, 0.01):
        assert (sums < module._least_sum([(masses, rest, count)], chance)).mean() <= chance
    sure = module._least_sum([(masses, rest, count)], 1e-300)
    assert sure >= count * rest.min() - 1e-12
    assert module._least_sum([(masses, rest, count)], 0.01) > sure


def test_tails_are_as_exact_as_assumed():
    """Cell probabilities of both tails, and of cells far out, against 400 digits."""
    edges = np.linspace(-36, 36, 2_002)
    found, wrong = module._between(edges)
    with mpmath.workdps(400):
        for place in range(0, 2_001, 37):
            low, high = mpmath.mpf(edges[place]), mpmath.mpf(edges[place + 1])
            true = (mpmath.erfc(low / mpmath.sqrt(2)) - mpmath.erfc(high / mpmath.sqrt(2))) / 2
            assert abs(found[place] - true) <= wrong[place] / 3
            assert wrong[place] <= 200 * WRONG * ndtr(-min(abs(edges[place]), abs(edges[place + 1])))


def test_cells_are_a_post_processing():
    """They cover both distributions, and no cell's loss lies outside the losses of its places."""
    mixed, plain = {0.0: 0.9, 0.5: 0.1}, {0.0: 1.0}
    for one, two in ((mixed, plain), (plain, mixed), ({**mixed, 1.0: 0.2, 0.0: 0.7}, mixed)):
        cells = module._normal(one, two, 0.01)
        assert cells.masses.sum() == pytest.approx(1.0, abs=1e-12)
        assert (cells.masses * np.exp(-cells.losses)).sum() == pytest.approx(1.0, abs=1e-12)
        losses, rest = cells.on_grid(0.01)
        assert losses.masses.sum() == pytest.approx(cells.masses.sum(), abs=1e-12)
        # a loss may be cut off its point by an outermost cell, or where it turns, but hardly by any other
        assert (np.abs(rest) * cells.masses).sum() < 0.002


drawn = st.lists(
    st.one_of(
        st.builds(
            Event,
            st.just("gaussian"),
            st.floats(0.4, 30),
            st.sampled_from([0.003, 0.2, 1.0]),
            st.integers(1, 3000),
            st.sampled_from(["poisson", "fixed"]),
        ),
        st.builds(Event, st.just("laplace"), st.floats(0.5, 50), st.just(1.0), st.integers(1, 50)),
        st.builds(Event, st.just("selection"), st.floats(0.5, 50), st.just(1.0), st.integers(1, 50)),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=20)
@given(
    events=drawn,
    delta=st.sampled_from([1e-2, 1e-5, 1e-8]),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
)
def test_it_is_never_above_what_dp_accounting_bounds(events, delta, adjacency):
    found = quick_lower(tuple(events), delta, adjacency)
    assert found <= epsilon_of(tuple(events), delta, adjacency) * (1 + 1e-9)
    assert found <= _epsilon(events, delta, adjacency, max(found, 0.01) / 300) * (1 + 1e-6) + 1e-9
