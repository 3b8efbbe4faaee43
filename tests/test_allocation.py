"""Passes by random allocation: the certified bound against simulation, closed forms and other samplers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.special import ndtr

from coterie.errors import Problem
from coterie.privacy import gaussian
from coterie.privacy.accountant import bounds, epsilon, epsilon_of, renyi_curve
from coterie.privacy.approximate_gaussian import approximate_mu
from coterie.privacy.calibration import Target, calibrate, noise_for
from coterie.privacy.events import Event
from coterie.privacy.pld import allocation as module
from coterie.privacy.pld.allocation import allocated
from coterie.privacy.recheck import recheck, recheck_mu


def event(noise, steps, passes=1):
    return Event("gaussian", noise, 1 / steps, passes, "allocation")


def simulated(noise, steps, passes, epsilons, draws=60_000):
    """Return delta at each epsilon and its standard error, in both directions, by drawing what comes out."""
    generator, mu = np.random.default_rng(0), 1 / noise
    losses = np.zeros((2, draws))
    for _ in range(passes):
        for row, sign in ((0, 1), (1, -1)):
            out = generator.normal(size=(draws, steps))
            if row == 0:
                out[np.arange(draws), generator.integers(0, steps, draws)] += mu
            losses[row] += sign * np.log(np.exp(mu * out - mu * mu / 2).mean(1))
    gains = np.maximum(0, -np.expm1(np.array(epsilons)[:, None, None] - losses))
    return gains.mean(2), gains.std(2) / math.sqrt(draws)


@pytest.mark.parametrize(
    ("noise", "steps", "passes"), [(1.0, 10, 1), (0.7, 20, 2), (2.0, 50, 3), (1.0, 3, 4)]
)
@pytest.mark.parametrize("delta", [0.1, 0.02])
def test_the_bound_holds_and_is_close_in_a_simulation(noise, steps, passes, delta):
    found = epsilon_of((event(noise, steps, passes),), delta)
    mean, error = simulated(noise, steps, passes, [found, 0.97 * found])
    worst = mean.max(1)
    if found > 0:
        assert worst[0] <= delta + 5.5 * error[0].max()
        assert worst[1] >= delta - 5.5 * error[1].max()  # three percent less would not hold, or hardly


def test_two_steps_against_integration_over_the_plane():
    noise, mu = 0.8, 1 / 0.8
    x = np.arange(-9, 9 + mu, 0.005)
    plain, there = (np.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi) * 0.005 for at in (0.0, mu))
    one = (np.outer(there, plain) + np.outer(plain, there)) / 2
    two = np.outer(plain, plain)
    for delta in (0.1, 1e-2, 1e-4, 1e-6):
        found = epsilon_of((event(noise, 2),), delta)
        reached = [np.maximum(a - math.exp(found) * b, 0).sum() for a, b in ((one, two), (two, one))]
        assert max(reached) <= delta * (1 + 1e-6)
        assert max(reached) >= delta * 0.98 or delta < 1e-4  # far out, two weights on a grid are coarse


@pytest.mark.parametrize("way", [0, 1])
def test_the_curve_of_one_pass_is_above_the_true_one_and_close(way):
    """Two steps; the true curve by integration, at epsilons on both sides of 0."""
    mu = 1.0
    x = np.arange(-9, 10, 0.005)
    plain, there = (np.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi) * 0.005 for at in (0.0, mu))
    pair = ((np.outer(there, plain) + np.outer(plain, there)) / 2, np.outer(plain, plain))
    one, two = pair if way == 0 else pair[::-1]
    made = allocated(event(1.0, 2), 0.01)[way]
    for a in (-1.0, -0.3, 0.0, 0.4, 1.0, 2.5):
        true = np.maximum(one - math.exp(a) * two, 0).sum()
        found = made.delta_at(np.array([a]))[0]
        assert true - 1e-9 <= found <= true + 1e-3


def test_what_lies_above_the_end_of_the_grid_is_paid_for(monkeypatch):
    """With a grid that ends too early, to make it visible: two steps, the true curve by integration."""
    monkeypatch.setattr(module, "REACHES", (1.5,))
    module._sums.cache_clear()
    x = np.arange(-9, 10, 0.005)
    plain, there = (np.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi) * 0.005 for at in (0.0, 1.0))
    pair, two = (np.outer(there, plain) + np.outer(plain, there)) / 2, np.outer(plain, plain)
    found = module._sums(1.0, 2)
    assert found.lost > 0.05
    at = np.array([0.5, 1.0, 1.5])
    true = [np.maximum(pair - math.exp(a) * two, 0).sum() for a in at]
    assert (module._removed(found)(at) >= true).all()
    found = dataclasses.replace(found, lost=0.0)
    assert (module._removed(found)(at) < true).any()
    beyond = dataclasses.replace(found, outside=0.2)
    for curve in (module._removed, module._added):
        assert curve(beyond)(at) - curve(found)(at) == pytest.approx(0.2 - found.outside)
    module._sums.cache_clear()


def test_a_pass_costs_no_more_than_poisson_samples_and_far_less_than_all_units():
    for noise, steps, passes in ((1.0, 100, 10), (2.0, 1000, 100), (0.8, 50, 5), (5.0, 10, 50)):
        found = epsilon_of((event(noise, steps, passes),), 1e-5)
        assert found <= epsilon(noise, 1 / steps, steps * passes, 1e-5) * 1.001
        assert found < 0.5 * epsilon(noise, 1.0, passes, 1e-5)
        assert found >= gaussian.epsilon_of(math.sqrt(passes / steps) / noise, 1e-5)


def test_many_passes_tend_to_the_central_limit():
    noise, steps, passes = 4.0, 100, 2000
    limit = math.sqrt(passes / steps * math.expm1(1 / noise**2))
    found = epsilon_of((event(noise, steps, passes),), 1e-5)
    assert found == pytest.approx(gaussian.epsilon_of(limit, 1e-5), rel=0.01)


def test_one_step_is_no_sampling():
    assert epsilon_of((event(2.0, 1, 3),), 1e-5) == epsilon(2.0, 1.0, 3, 1e-5)


def test_too_little_noise_and_replaced_units_count_as_one_release_of_all():
    for noise, steps in ((0.2, 1000), (0.05, 10)):
        with pytest.raises(MemoryError, match="the weights of an allocation"):
            allocated(event(noise, steps), 0.01)
    assert epsilon_of((event(0.2, 1000, 2),), 1e-5) == pytest.approx(epsilon(0.2, 1.0, 2, 1e-5), rel=0.06)
    replaced = epsilon_of((event(2.0, 10, 2),), 1e-5, "replace-one")
    assert replaced == pytest.approx(epsilon(2.0, 1.0, 2, 1e-5, "replace-one"), rel=2e-3)
    assert renyi_curve((event(2.0, 10, 3),)) == pytest.approx(renyi_curve((Event("gaussian", 2.0, 1.0, 3),)))


def test_the_weights_keep_their_mean_and_are_spread():
    for mu in (0.3, 1.0, 1.6):
        plain, weighted, width = module._weights(mu, 100)
        values = width * np.arange(len(plain))
        assert plain.sum() == pytest.approx(1.0, abs=1e-12)
        assert weighted.sum() == pytest.approx(1.0, abs=2e-10)  # but for what lies above the end
        assert plain @ values**2 >= math.exp(mu * mu) * (1 - 1e-3)
        for at in (0.5, 1.0, 3.0):  # a convex function grows: (W - c)+ of a log-normal is a call option
            true = ndtr(-math.log(at) / mu + mu / 2) - at * ndtr(-math.log(at) / mu - mu / 2)
            found = plain @ np.maximum(values - at, 0)
            assert true - 1e-10 <= found <= true + width


def test_passes_that_are_drawn_again_are_paid_for(monkeypatch):
    """As a loss without limit in both directions; with a larger share, to make it visible."""
    assert module.REDRAWN == 2.0**-50
    before = allocated(event(1.0, 10), 0.01)
    monkeypatch.setattr(module, "REDRAWN", 1e-3)
    after = allocated(event(1.0, 10), 0.01)
    for one, other in zip(before, after, strict=True):
        assert other.infinite - one.infinite == pytest.approx(1e-3, rel=1e-9)
        at = np.array([0.0, 0.5, 1.5])
        assert other.delta_at(at) == pytest.approx(one.delta_at(at) + 1e-3, rel=1e-6)
    assert all(one.infinite >= module.SPARE + 2.0**-50 for one in before)


def test_known_values():
    """100 passes of 100 steps: less than as many Poisson samples, more than one who adds up passes learns."""
    found = epsilon_of((event(1.0, 100, 100),), 1e-5)
    assert 6.03 < found < 6.05
    assert 6.18 < epsilon(1.0, 0.01, 10_000, 1e-5) < 6.20
    assert gaussian.epsilon_of(math.sqrt(100 / 100), 1e-5) < found < epsilon(1.0, 1.0, 100, 1e-5)


def test_bounds_and_other_events_beside_it():
    found = bounds((event(2.0, 100, 50), Event("gaussian", 3.0, 0.1, 20)), 1e-5, tight=True)
    assert 0.9 * found.upper <= found.lower <= found.upper < found.rdp
    alone = bounds((event(4.0, 20, 10),), 1e-5, tight=True)
    assert 0.95 * alone.upper <= alone.lower <= alone.upper


def test_dp_accounting_cannot_tell():
    events = (event(2.0, 100, 50),)
    stated = epsilon_of(events, 1e-5)
    assert recheck(events, 1e-5, stated).verdict == "undecided"
    assert recheck(events, 1e-5, epsilon(2.0, 1.0, 50, 1e-5)).verdict == "confirmed"
    mu = approximate_mu(events, 1e-8)
    whole = math.sqrt(50) / 2
    assert mu < whole / 2
    assert recheck_mu(events, 1e-8, mu) is None
    assert recheck_mu(events, 1e-8, whole) is True


def test_calibration(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    target = Target(2.0, 1e-5, 0.01, 20, sampler="allocation")
    found = noise_for(target)
    assert 1.98 < found.epsilon <= 2.0
    assert found.epsilon == epsilon_of((event(found.noise, 100, 20),), 1e-5)
    assert found.noise < noise_for(Target(2.0, 1e-5, 0.01, 2000)).noise
    assert calibrate([target])[target].epsilon == calibrate([target])[target].epsilon


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Event("gaussian", 1.0, 0.3, 1, "allocation"), "rate must be 1 / \\(a whole number\\)"),
        (lambda: Event("laplace", 1.0, 0.5, 1, "allocation"), "no certified bound for rate < 1"),
    ],
)
def test_bad_input(make, said):
    with pytest.raises(Problem, match=said):
        make()
