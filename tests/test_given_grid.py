"""Noise on a grid that is given, the same for several silos: what is allowed, and that it is exact."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie._grid import COARSEST, GRID, check_grid, grid_exponent
from coterie.errors import Problem
from coterie.noise import quantile
from coterie.noise.dice import KeyedDice
from coterie.noise.keystream import Keystream
from coterie.noise.rounded import add_noise
from tests.measured import CHANCE

KEY = bytes(range(32))
COARSER = range(GRID - COARSEST + 1)


@pytest.mark.parametrize("coarser", COARSER)
def test_every_value_lies_on_the_given_grid(coarser):
    exponent = grid_exponent(0.3) + coarser
    sums = np.random.default_rng(0).normal(size=2000)
    released = KeyedDice(KEY).noisy(sums, 0.3, exponent=exponent)
    cells = released / 2.0**exponent
    assert np.array_equal(cells, np.rint(cells))
    finest = KeyedDice(KEY).noisy(sums, 0.3)
    assert np.abs(released - finest).max() <= (2.0**exponent + 2.0 ** grid_exponent(0.3)) / 2
    assert (released == finest).all() == (coarser == 0)


@given(st.floats(-1e3, 1e3), st.floats(1e-2, 1e2), st.sampled_from(COARSER))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_released_is_the_nearest_point_of_the_given_grid(value, deviation, coarser):
    word = int(KeyedDice(KEY)._noise.word())
    exponent = grid_exponent(deviation) + coarser
    released = float(KeyedDice(KEY).noisy(np.array([value]), deviation, exponent=exponent)[0])
    with mpmath.workprec(300):
        x = sum(quantile.deviate(mpmath.ldexp(2 * (word >> 1) + 1, -64), 150)) / 2
        ideal = mpmath.mpf(value) + (-1 if word & 1 else 1) * mpmath.mpf(deviation) * x
        assert abs(ideal - released) <= mpmath.ldexp(0.5 + 2.0**-20, exponent)


def test_rows_of_different_deviations_share_a_grid():
    """The grid of the largest deviation, down to a thousandth of it: sums of such rows stay on the grid."""
    deviations = np.array([1.0, 0.25, 2.0**-10])
    exponent = grid_exponent(1.0)
    sums = np.zeros((3, 50_000))
    add_noise(sums, deviations, Keystream(KEY).words(3, 50_000), [KeyedDice(KEY)] * 3, exponent)
    assert np.array_equal(np.rint(sums / 2.0**exponent), sums / 2.0**exponent)
    for row, deviation in zip(sums, deviations, strict=True):
        # the coarsest grid is a thousandth of the deviation: too fine for this many numbers to show
        assert stats.kstest(row / deviation, "norm").pvalue > CHANCE
    variance = np.square(deviations).sum()
    assert stats.kstest(sums.sum(0) / np.sqrt(variance), "norm").pvalue > CHANCE


@pytest.mark.parametrize("off", [-5, -1, GRID - COARSEST + 1, 40])
def test_grids_that_are_too_fine_or_too_coarse_are_refused(off):
    exponent = grid_exponent(0.3) + off
    with pytest.raises(Problem, match=rf"on a grid of 2\^{exponent}: expected an exponent from -22 to -12"):
        KeyedDice(KEY).noisy(np.zeros(5), 0.3, exponent=exponent)
    with pytest.raises(Problem, match="expected an exponent from"):
        check_grid(0.3, exponent)


def test_a_row_without_noise_stays_on_any_grid():
    sums = np.array([[0.1, 0.2, 0.3, 0.4]])
    add_noise(sums, np.zeros(1), np.zeros((1, 4), dtype=np.uint64), [KeyedDice(KEY)], 3)
    assert sums.tolist() == [[0.1, 0.2, 0.3, 0.4]]
