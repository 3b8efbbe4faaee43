"""Privacy losses on a grid, against dp-accounting, brute force and closed forms."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from coterie.privacy import gaussian
from coterie.privacy.accountant import interval
from coterie.privacy.events import Event
from coterie.privacy.pld.grid import Losses, composed, connected
from coterie.privacy.pld.mechanisms import Distribution, distribution


def by_library(events, step, adjacency, upper):
    """Compose the same events with dp-accounting, point by point."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation as Relation

    whole = pld.identity(step, upper)
    for event in events:
        if event.mechanism == "laplace":
            one = pld.from_laplace_mechanism(
                event.noise, 2.0 if adjacency == "replace-one" else 1.0, upper, step, use_connect_dots=upper
            )
        else:
            one = pld.from_gaussian_mechanism(
                event.noise,
                pessimistic_estimate=upper,
                value_discretization_interval=step,
                sampling_prob=event.rate,
                use_connect_dots=upper,
                neighboring_relation=Relation.REPLACE_ONE
                if adjacency == "replace-one"
                else Relation.ADD_OR_REMOVE_ONE,
            )
        whole = whole.compose(one.self_compose(event.count))
    return whole


releases = st.one_of(
    st.builds(
        Event,
        st.just("gaussian"),
        st.floats(0.5, 30),
        st.one_of(st.just(1.0), st.floats(1e-4, 0.99)),
        st.integers(1, 400),
    ),
    st.builds(Event, st.just("laplace"), st.floats(0.5, 30), st.just(1.0), st.integers(1, 20)),
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(releases, min_size=1, max_size=2),
    st.sampled_from(["zero-out", "replace-one"]),
    st.sampled_from([1e-7, 1e-5, 1e-3]),
)
def test_it_is_that_of_dp_accounting(events, adjacency, delta):
    step = max(interval(events, delta, adjacency, 500), 1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = by_library(events, step, adjacency, upper=True)
        ours = distribution(events, step, adjacency)
        for at in (delta, 10 * delta):
            assert ours.epsilon_at(at) == pytest.approx(theirs.get_epsilon_for_delta(at), rel=1e-5, abs=1e-6)
        epsilons = np.linspace(0, 5, 7)
        assert ours.delta_at(epsilons) == pytest.approx(
            theirs.get_delta_for_epsilon(epsilons), rel=1e-6, abs=1e-11
        )


@settings(deadline=None, max_examples=30)
@given(st.floats(0.3, 20), st.floats(1e-4, 0.999), st.sampled_from(["zero-out", "replace-one"]))
def test_one_release_lies_above_its_true_curve(noise, rate, adjacency):
    """By numerical integration of P - e^a Q, at epsilons between the dots."""
    x = np.linspace(-14 * noise - 1, 14 * noise + 1, 400_001)
    width = x[1] - x[0]

    def density(at):
        return np.exp(-(((x - at) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))

    plain, there = density(0.0), density(1.0)
    opposite = (1 - rate) * plain + rate * density(-1.0) if adjacency == "replace-one" else plain
    mixed = (1 - rate) * plain + rate * there
    pairs = [(mixed, opposite)] if adjacency == "replace-one" else [(mixed, plain), (plain, mixed)]
    events = [Event("gaussian", noise, rate)]
    for a in (0.0, 0.0123, 0.3, 1.7):
        upper = distribution(events, 0.01, adjacency).directions
        assert len(upper) == len(pairs)
        for (p, q), above in zip(pairs, upper, strict=True):
            true = np.maximum(p - math.exp(a) * q, 0).sum() * width
            assert true - 1e-7 <= above.delta_at(np.array([a]))[0] <= true + 0.01


def test_plain_gaussians_compose_to_one():
    for noise, count in ((3.0, 10), (20.0, 1000)):
        exact = gaussian.epsilon_of(math.sqrt(count) / noise, 1e-5)
        events = [Event("gaussian", noise, 1.0, count)]
        assert exact <= distribution(events, 1e-4).epsilon_at(1e-5) < exact + 0.001


masses = st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda m: sum(m) > 0.01)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(masses, st.integers(-5, 5), st.integers(1, 6)), min_size=1, max_size=3))
def test_composition_is_convolution(given_parts):
    parts, direct, lowest = [], np.ones(1), 0
    for values, low, count in given_parts:
        own = np.array(values) / sum(values)
        parts.append((Losses(0.1, low, own, 0.0), count))
        for _ in range(count):
            direct, lowest = np.convolve(direct, own), lowest + low
    made = composed(parts, upper=False)
    whole = np.zeros(len(direct) + len(made.masses))
    start = made.lowest - lowest
    assert start >= 0
    whole[start : start + len(made.masses)] = made.masses
    assert whole[: len(direct)] == pytest.approx(direct, abs=1e-12)
    assert np.abs(whole[len(direct) :]).sum() < 1e-12


def test_what_is_left_out_counts_as_lost():
    """The window of a long composition holds all but a mass that upper bounds count as infinite."""
    one = distribution([Event("gaussian", 1.0, 0.01)], 1e-3).directions[0]
    many = composed([(one, 5000)], upper=True)
    assert len(many.masses) < 0.1 * len(one.masses) * 5000
    assert many.masses.sum() == pytest.approx(1.0, abs=1e-10)
    assert many.infinite >= 5000 * one.infinite + 0.99e-15
    assert composed([(one, 5000)], upper=False).infinite == 0.0


def test_infinite_losses_add_up():
    one = Losses(0.1, 0, np.array([0.9]), 0.1)
    assert composed([(one, 3)], upper=True).infinite == pytest.approx(1 - 0.9**3)
    assert composed([(one, 3)], upper=True).epsilon_at(0.27) == math.inf
    assert composed([(one, 3)], upper=True).epsilon_at(0.272) == 0.0


@settings(deadline=None, max_examples=100)
@given(masses, st.integers(-20, 20), st.floats(0, 0.5), st.floats(1e-6, 0.9))
def test_epsilon_and_delta_are_each_others_inverse(values, lowest, infinite, delta):
    own = Losses(0.1, lowest, np.array(values) / sum(values) * (1 - infinite), infinite)
    found = own.epsilon_at(delta)
    if infinite > delta:
        assert found == math.inf
        return
    losses = (lowest + np.arange(len(own.masses))) * 0.1

    def direct(epsilon):
        return infinite + sum(
            m * max(0.0, 1 - math.exp(epsilon - v)) for m, v in zip(own.masses, losses, strict=True)
        )

    assert direct(found) <= delta + 1e-9
    assert found == 0 or direct(max(found - 1e-6, 0)) >= delta - 1e-9
    at = np.array([0.0, 0.05, found, 3.0])
    assert own.delta_at(at) == pytest.approx([direct(float(a)) for a in at], abs=1e-9)


def test_losses_far_away_neither_overflow_nor_vanish():
    far = Losses(1.0, 3000, np.array([0.5, 0.5]), 0.0)
    assert far.epsilon_at(1e-5) == pytest.approx(3001, abs=0.1)
    assert far.delta_at(np.array([0.0, 2999.0, 3000.5, 4000.0])) == pytest.approx(
        [1.0, 1 - 0.5 * math.exp(-1) - 0.5 * math.exp(-2), 0.5 * (1 - math.exp(-0.5)), 0.0]
    )
    near = Losses(1.0, -3000, np.array([1.0]), 0.0)
    assert near.epsilon_at(1e-5) == 0.0


def test_the_worse_direction_counts():
    one, two = Losses(0.1, 0, np.array([0.0, 1.0]), 0.0), Losses(0.1, 0, np.array([0.5, 0.0, 0.0, 0.5]), 0.0)
    for both in ((one, two), (two, one)):
        made = Distribution(both)
        assert made.epsilon_at(0.01) == max(one.epsilon_at(0.01), two.epsilon_at(0.01))
        at = np.array([0.0, 0.05, 0.2])
        assert np.array_equal(made.delta_at(at), np.maximum(one.delta_at(at), two.delta_at(at)))


def test_what_lies_above_the_last_dot_is_lost():
    made = connected(0.1, 0, np.array([0.5, 0.3, 0.1]))
    assert made.infinite == 0.1
    assert made.epsilon_at(0.05) == math.inf
    assert made.delta_at(np.array([50.0]))[0] == 0.1


def test_coarse_grids_are_as_quick_as_fine_ones():
    """A million points, each far from the next: blocks of one point would take a quarter of a minute."""
    for step in (0.7, 30.0, 300.0):
        many = Losses(step, -500_000, np.full(1_000_001, 1e-6 / 1.000001), 0.0)
        at = many.epsilon_at(1e-3)
        assert many.delta_at(np.array([at]))[0] == pytest.approx(1e-3, rel=1e-6)


def test_dots_lie_above_a_curve():
    """Of N(0, 1) against N(1, 1), between the dots."""

    def curve(a):
        return ndtr(0.5 - a) - np.exp(a) * ndtr(-0.5 - a)

    grid = np.arange(-100, 101) * 0.1
    high = connected(0.1, -100, curve(grid))
    at = np.linspace(0, 6, 173)
    assert np.all(high.delta_at(at) >= curve(at) - 1e-12)
    assert high.masses.sum() + high.infinite == pytest.approx(1.0)
    assert high.masses @ np.exp(-grid) == pytest.approx(1.0, abs=1e-4)  # the other data set's chances


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_refused_and_not_read_as_no_loss(wrong):
    with pytest.raises(ValueError, match="are not finite"):
        Losses(0.1, 0, np.array([0.5, wrong]), 0.0)
    with pytest.raises(ValueError, match="are not finite"):
        Losses(0.1, 0, np.array([0.5]), wrong)
