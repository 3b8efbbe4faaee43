"""Passes of few sums with little noise: the grid with growing steps against integration and equal steps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from coterie.privacy.accountant import epsilon, epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.pld import allocation, few_sums
from coterie.privacy.pld.allocation import allocated


def event(noise, steps, passes=1):
    return Event("gaussian", noise, 1 / steps, passes, "allocation")


def true_delta(mu, a, added):
    """Return delta(a) of a pass of two sums: given one weight, the other is a call option of Black and Scholes."""
    x = np.linspace(-12, 12 + mu, 200_001)
    weight = np.exp(mu * x - mu * mu / 2)
    probability = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    strike = math.exp(-a if added else a)
    rest = 2 * strike - weight
    logs = np.log(np.maximum(rest, 1e-300)) / mu
    option = np.where(rest > 0, ndtr(mu / 2 - logs) - rest * ndtr(-mu / 2 - logs), 1 - rest)
    above = float(probability @ option) / 2
    return (above - 1 + strike) / strike if added else above


@pytest.mark.parametrize("noise", [0.6, 0.3])
def test_two_sums_against_integration(noise):
    for delta in (0.1, 1e-3, 1e-6):
        found = epsilon_of((event(noise, 2),), delta)
        reached = [max(true_delta(1 / noise, at, way) for way in (0, 1)) for at in (found, 0.999 * found)]
        assert reached[0] <= delta * (1 + 1e-9)
        assert reached[1] >= delta  # a thousandth less does not hold


@pytest.mark.parametrize("way", [0, 1])
def test_the_curve_is_above_the_true_one_and_close(way):
    made = allocated(event(0.5, 2), 0.002)[way]
    for a in (-1.0, 0.0, 0.7, 2.0, 5.0):
        true = true_delta(2.0, a, way)
        assert true * (1 - 1e-9) <= made.delta_at(np.array([a]))[0] <= true + 2e-4


@pytest.mark.parametrize("sums", [2, 3, 7, 20])
def test_it_agrees_with_a_grid_of_equal_steps(sums):
    """Where both are good, they differ by little, in both directions."""
    mu, at = 1.0, np.linspace(-2, 4, 25)
    few, many = allocation._few(mu, sums), allocation._many(mu, sums)
    for curve in (allocation._removed, allocation._added):
        assert curve(few)(at) == pytest.approx(curve(many)(at), rel=0.01, abs=1e-4)


def test_a_coarser_grid_only_makes_the_bound_larger(monkeypatch):
    found = []
    for points in (4096, 1024, 256, 64):
        monkeypatch.setattr(few_sums, "POINTS", points)
        allocation._sums.cache_clear()
        found.append([half.delta_at(np.array([0.5, 2.0, 6.0])) for half in allocated(event(0.5, 5), 0.01)])
    allocation._sums.cache_clear()
    for fine, coarse in itertools.pairwise(found):
        assert (np.array(coarse) >= np.array(fine)).all()


@pytest.mark.parametrize(("mu", "sums"), [(1.7, 1), (1.7, 6), (3.0, 2), (3.0, 128), (12.0, 5)])
def test_the_mean_of_a_sum_stays_and_its_variance_is_no_smaller(mu, sums):
    values, masses, lost, rounding = few_sums.few_sums(mu, sums)
    assert masses.sum() == pytest.approx(1, abs=rounding)
    assert (masses >= 0).all()
    assert values @ masses == pytest.approx(sums, rel=rounding + 2 * lost)
    assert lost == pytest.approx(ndtr(-few_sums.REACH), rel=1e-9)
    assert lost < 1e-16
    assert rounding < 1e-8
    least = sums * (np.exp(mu * mu / 2) ** 2 * ndtr(few_sums.REACH - mu) - 1)  # below the grid's end
    assert (values - sums) ** 2 @ masses >= least


def test_rounding_and_what_lies_above_the_end_are_paid_for(monkeypatch):
    at, made = np.array([0.5, 3.0]), allocation._few(2.0, 4)
    for curve in (allocation._removed, allocation._added):
        worse = allocation.Sums(**{**vars(made), "rounding": 0.1})
        assert (curve(worse)(at) > curve(made)(at)).all()
    monkeypatch.setattr(few_sums, "REACH", 1.5)
    short = allocation._few(2.0, 2)
    assert short.lost > 0.05
    at = np.array([1.0, 2.0, 4.0])
    true = [true_delta(2.0, a, 0) for a in at]
    assert (allocation._removed(short)(at) >= true).all()
    assert (allocation._removed(allocation.Sums(**{**vars(short), "lost": 0.0}))(at) < true).any()


def test_it_is_tighter_than_no_sampling_where_equal_steps_were_too_coarse():
    """Four sums per pass, ten passes, noise 0.6; equal steps gave 29.6."""
    found = epsilon_of((event(0.6, 4, 10),), 1e-5)
    assert 23.5 < found < 23.9
    assert epsilon_of((event(0.3, 8, 1),), 1e-5) < 0.95 * epsilon(0.3, 1.0, 1, 1e-5)
