"""Bounds on epsilon for compositions: against closed forms, Monte Carlo, brute force and other libraries."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import Problem
from coterie.privacy.accountant import (
    ADJACENCY,
    ELSEWHERE,
    MACHINE_TOLERANCE,
    ORDERS,
    _read,
    bounds,
    epsilon,
    epsilon_of,
    interval,
    least_of,
    quick_lower,
    renyi_curve,
    renyi_epsilon,
    rounding,
)
from coterie.privacy.events import Event, joined


def sampled(noise, rate, count, sampler="poisson"):
    return (Event("gaussian", noise, rate, count, sampler),)


def test_tight_bounds_of_the_example_where_the_central_limit_fails():
    """Rate .01, sigma .6, 500 steps, delta 1e-5: dp-accounting at 1e-4 gives 5.775 to 5.800."""
    found = bounds(sampled(0.6, 0.01, 500), 1e-5, tight=True)
    assert 5.77 <= found.lower <= found.upper <= 5.81
    assert found.by == "pld"
    assert found.rdp > found.upper


@pytest.mark.parametrize("noise", [0.3, 1.0, 40.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-10])
def test_a_gaussian_is_exact(noise, delta):
    """The closed form by an independent integration of the privacy loss, which is normal."""
    found = bounds((Event("gaussian", noise),), delta, tight=True)
    assert found.by == "exact"
    assert found.upper - found.lower <= 1e-8 * found.upper + 1e-11
    mean = 0.5 / noise**2
    losses = mean + np.linspace(-12, 12, 400_001) / noise
    density = np.exp(-0.5 * ((losses - mean) * noise) ** 2) * noise / math.sqrt(2 * math.pi)
    gained = np.maximum(0, -np.expm1(found.upper - losses)) * density
    # at epsilon 0 delta may be smaller
    by_integral = float(np.sum(gained) * (losses[1] - losses[0]))
    assert by_integral <= delta * (1 + 1e-4)
    if found.upper > 1e-6:
        assert by_integral == pytest.approx(delta, rel=1e-3)


def test_replace_one():
    """methods: z 2, rate .1, 100 steps: the pair of replace-one gives 4.37; halving z is valid, loose: 7.05."""
    delta = 1e-5
    replaced = bounds(sampled(2.0, 0.1, 100), delta, "replace-one", tight=True)
    assert replaced.upper == pytest.approx(4.37, abs=0.005)
    assert replaced.lower == pytest.approx(4.36, abs=0.01)
    assert epsilon(1.0, 0.1, 100, delta) == pytest.approx(7.05, abs=0.005)
    assert epsilon(2.0, 0.1, 100, delta) < replaced.lower


def test_replace_one_of_a_plain_gaussian_is_twice_the_sensitivity():
    assert epsilon(2.0, 1.0, 4, 1e-5, "replace-one") == pytest.approx(epsilon(1.0, 1.0, 4, 1e-5), rel=1e-9)


def test_fixed_size_samples_cost_more_than_poisson():
    """The unit that left is another's place, so sums move by twice the clip."""
    for rate, count in ((0.1, 100), (0.5, 3), (0.9, 1)):
        fixed = bounds(sampled(2.0, rate, count, "fixed"), 1e-5, tight=True)
        assert fixed.upper >= epsilon(1.0, rate, count, 1e-5) * (1 - 1e-6)
        assert fixed.upper <= epsilon(1.0, 1.0, count, 1e-5)
        assert epsilon(2.0, rate, count, 1e-5) * 0.99 <= fixed.lower <= fixed.upper
    assert epsilon_of(sampled(2.0, 1.0, 3, "fixed"), 1e-5) == epsilon_of(sampled(2.0, 1.0, 3), 1e-5)


def test_fixed_size_bound_holds_for_a_worst_case_by_enumeration():
    """Two of four numbers, one of them changed: the mixture's hockey-stick divergence by integration."""
    noise, chosen = 1.0, 2
    before, after = (1.0, -1.0, -1.0, 1.0), (-1.0, -1.0, -1.0, 1.0)
    grid = np.linspace(-14, 14, 200_001)

    def density(data):
        sums = [sum(part) for part in itertools.combinations(data, chosen)]
        each = [np.exp(-0.5 * ((grid - s) / noise) ** 2) for s in sums]
        return np.mean(each, 0) / (noise * math.sqrt(2 * math.pi))

    p, q = density(before), density(after)
    for delta in (0.3, 0.1, 0.01, 1e-4):
        bound = epsilon_of(sampled(noise, chosen / 4, 1, "fixed"), delta)
        for one, other in ((p, q), (q, p)):
            reached = float(np.maximum(0, one - math.exp(bound) * other).sum() * (grid[1] - grid[0]))
            assert reached <= delta * (1 + 1e-6)


def true_selection_delta(scores, other, parameter, threshold):
    """Exact hockey-stick divergence of the exponential mechanism on two score vectors."""

    def chances(values):
        weights = np.exp(parameter / 2 * (values - values.max()))
        return weights / weights.sum()

    return float(np.maximum(0, chances(scores) - math.exp(threshold) * chances(other)).sum())


@pytest.mark.parametrize("parameter", [0.2, 1.0, 4.0])
def test_selection_bounds_the_exponential_mechanism(parameter):
    """Scores of sensitivity 1: every pair of neighbours, brute force; zero-out moves scores one way only."""
    event = (Event("selection", 2 / parameter),)
    grid = [np.array(s, dtype=float) for s in itertools.product((0.0, 0.4, 1.0), repeat=3)]
    base = [np.array(s, dtype=float) for s in ((0, 0, 0), (0.5, 0, 3), (2, 2, 0))]
    for delta in (0.2, 0.05, 0.001):
        zeroed = epsilon_of(event, delta)
        replaced = epsilon_of(event, delta, "replace-one")
        assert zeroed <= parameter / 2 + 1e-3
        assert replaced <= parameter + 1e-3
        worst = 0.0
        for start, change in itertools.product(base, grid):
            for one, other in ((start, start + change), (start + change, start)):
                assert true_selection_delta(one, other, parameter, zeroed) <= delta + 1e-9
            for other in (start + change - g for g in grid[::5]):
                assert true_selection_delta(start, other, parameter, replaced) <= delta + 1e-9
                worst = max(worst, true_selection_delta(start, other, parameter, 0.7 * replaced))
        if replaced > 0:
            assert worst > delta  # seven tenths of the bound would not hold


def test_selections_compose_beside_training():
    events = (*sampled(5.0, 0.3, 603), Event("selection", 4.0, count=20))
    found = bounds(events, 1e-3, tight=True)
    alone = epsilon(5.0, 0.3, 603, 1e-3)
    assert alone < found.lower <= found.upper < found.rdp
    assert found.upper < alone + 20 * 0.25  # less than basic composition of pure epsilon 1/4


@pytest.mark.parametrize(("noise", "count"), [(3.0, 10), (0.5, 1)])
def test_laplace_agrees_with_its_closed_form(noise, count):
    """One release: delta(a) = 1 - e^((a - 1/b) / 2); more: below basic composition, above one."""
    found = bounds((Event("laplace", noise, count=count),), 1e-5, tight=True)
    if count == 1:
        assert found.upper == pytest.approx(1 / noise + 2 * math.log1p(-1e-5), abs=1e-3)
    assert found.lower <= found.upper <= count / noise + 1e-3
    assert found.upper - found.lower < 0.01 * found.upper


def test_bounds_bracket_a_simulation():
    """Five sampled steps: delta at the upper bound is at most delta, at the lower bound at least delta."""
    noise, rate, steps, delta = 0.9, 0.2, 5, 1e-2
    found = bounds(sampled(noise, rate, steps), delta, tight=True)
    generator = np.random.default_rng(0)
    draws = noise * generator.normal(size=(400_000, steps)) + (generator.random((400_000, steps)) < rate)
    loss = np.log1p(rate * np.expm1((2 * draws - 1) / (2 * noise**2))).sum(1)

    def reached(at):
        gains = np.maximum(0, -np.expm1(at - loss))
        return gains.mean(), gains.std() / math.sqrt(len(gains))

    mean, error = reached(found.upper)
    assert mean <= delta + 6 * error
    mean, error = reached(found.lower * 0.98)
    assert mean >= delta - 6 * error


def test_rdp_agrees_with_opacus():
    from opacus.accountants.analysis import rdp

    for noise, rate, steps in ((1.0, 0.01, 1000), (5.0, 0.3, 603)):
        whole = [order for order in ORDERS if order < 64 and order == int(order)]
        theirs = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=whole)
        ours = dict(zip(ORDERS, renyi_curve(sampled(noise, rate, steps)), strict=True))
        assert np.allclose([ours[order] for order in whole], theirs, rtol=1e-6)


def test_rdp_of_the_plan():
    """methods: z 5, rate .3, 603 steps, delta 1e-3: RDP 5.84, PLD 5.19."""
    assert renyi_epsilon(sampled(5.0, 0.3, 603), 1e-3) == pytest.approx(5.84, abs=0.02)
    assert math.isinf(renyi_epsilon(sampled(5.0, 0.3, 603), 1e-3, "replace-one"))
    assert renyi_epsilon(sampled(5.0, 0.3, 603, "fixed"), 1e-3) > 5.84


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (0.3, 1e-5, 10**6, 1e-5),
        (0.05, 0.5, 10**6, 1e-5),
        (5.0, 0.05, 10**6, 1e-9),
        (1000.0, 0.001, 10**6, 1e-3),
        (1e5, 1e-5, 1, 1e-9),
        (0.01, 1.0, 1, 1e-3),
        (50.0, 0.999999, 10**6, 1e-5),
    ],
)
def test_stable_at_the_ends(noise, rate, steps, delta):
    """No overflow, no hang: a finite bound, by RDP where no distribution can be had."""
    found = bounds(sampled(noise, rate, steps), delta)
    assert math.isfinite(found.upper)
    assert 0 <= found.lower <= found.upper <= found.rdp
    assert found.by in ("pld", "rdp", "exact")


def test_where_rounding_could_reach_delta_renyi_takes_over():
    """A million Fourier powers round at 1e-8: a delta of 1e-9 is out of a distribution's reach."""
    assert bounds(sampled(5.0, 0.05, 10**6), 1e-9).by == "rdp"
    assert bounds(sampled(5.0, 0.05, 10**6), 1e-5).by == "pld"


def test_no_noise_has_no_bound_and_endless_noise_costs_nothing():
    assert bounds(sampled(0.0, 0.5, 3), 1e-5).upper == math.inf
    assert bounds(sampled(0.0, 0.5, 3), 1e-5).by == "nothing"
    assert bounds(sampled(math.inf, 0.5, 3), 1e-5, tight=True).upper == 0
    assert epsilon_of((), 1e-5) == 0


events = st.lists(
    st.one_of(
        st.builds(
            Event,
            st.just("gaussian"),
            st.floats(0.5, 20),
            st.sampled_from([0.01, 0.2, 1.0]),
            st.integers(1, 200),
            st.sampled_from(["poisson", "fixed"]),
        ),
        st.builds(Event, st.just("laplace"), st.floats(1, 50), st.just(1.0), st.integers(1, 5)),
        st.builds(Event, st.just("selection"), st.floats(1, 50), st.just(1.0), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=8)
@given(first=events, more=events, adjacency=st.sampled_from(["zero-out", "replace-one"]))
def test_composition_is_monotone_and_lower_is_below_upper(first, more, adjacency):
    part = bounds(tuple(first), 1e-5, adjacency)
    whole = bounds((*first, *more), 1e-5, adjacency, tight=True)
    assert whole.lower <= whole.upper
    assert whole.upper >= part.upper * (1 - 0.01) - 1e-6
    assert bounds((*more, *first), 1e-5, adjacency).upper == pytest.approx(whole.upper, rel=0.01, abs=1e-4)


def test_joined_counts_every_release():
    a, b = Event("gaussian", 2.0, 0.1, 3), Event("laplace", 1.0)
    found = joined([a, b, a, b, b])
    assert {(event.mechanism, event.count) for event in found} == {("gaussian", 6), ("laplace", 3)}
    (plain,) = joined([Event("gaussian", 3.0), Event("gaussian", 4.0)])
    assert plain.noise == pytest.approx(1 / math.sqrt(1 / 9 + 1 / 16))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Event("gauss", 1.0), "unknown mechanism 'gauss'; did you mean 'gaussian'"),
        (lambda: Event("gaussian", 1.0, sampler="fixd"), "unknown sampler 'fixd'"),
        (lambda: Event("gaussian", -1.0), "noise must be a number >= 0, got -1.0"),
        (lambda: Event("gaussian", 1e160), "noise must be at most 1e"),
        (lambda: Event("gaussian", 1.0, 1e-300), "rate must be at least 1e-15"),
        (lambda: quick_lower((Event("gaussian", 1.0),), 2.0), "delta must be a number"),
        (lambda: quick_lower((Event("gaussian", 1.0),), 0.1, "none"), "unknown adjacency 'none'"),
        (lambda: Event("gaussian", 1.0, 0.0), r"rate must be a number in \(0, 1\], got 0.0"),
        (lambda: Event("gaussian", 1.0, 0.5, 0), "steps must be a whole number >= 1, got 0"),
        (lambda: Event("laplace", 1.0, 0.5), "mechanism 'laplace' has no certified bound for rate < 1"),
        (lambda: bounds(sampled(1, 1, 1), 0.0), r"delta must be a number in \(0, 1\), got 0.0"),
        (lambda: bounds(sampled(1, 1, 1), 1e-5, "swap"), "unknown adjacency 'swap'"),
    ],
)
def test_bad_input(make, said):
    with pytest.raises(Problem, match=said):
        make()


def test_selections_by_renyi_are_those_of_their_range():
    """A choice with scores of range 1 / noise is (1 / noise)^2 / 8 concentrated; twice that under replace-one."""
    for noise in (0.5, 2.0):
        one = (Event("selection", noise),)
        for adjacency, reach in (("zero-out", 1 / noise), ("replace-one", 2 / noise)):
            curve = renyi_curve(one, adjacency)
            assert curve[:3] == pytest.approx([order * reach**2 / 8 for order in ORDERS[:3]])


def test_warnings_of_others_are_heard_after_many_threads_asked():
    """What the library says is silenced for the whole process: one thread at a time."""
    from concurrent.futures import ThreadPoolExecutor

    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: bounds((Event("gaussian", 1.0 + k / 100, 0.2, 10),), 1e-4), range(40)))
    assert warnings.filters == before


def test_what_rounding_may_add_is_set_aside_and_most_of_it_in_what_others_state():
    events, delta = (Event("gaussian", 2.0, 0.01, 100_000),), 1e-8
    step = interval(events, delta, ADJACENCY)
    aside = rounding(events, step)
    assert aside > delta / 20
    with_all, with_most, with_none = (
        _read(events, step, ADJACENCY, delta - share * aside) for share in (1.0, ELSEWHERE, 0.0)
    )
    assert with_all > with_most * (1 + 1e-5) > with_none * (1 + 2e-5)
    assert epsilon_of(events, delta) == with_all
    assert least_of(events, delta) == pytest.approx(with_most, rel=2 * MACHINE_TOLERANCE)
