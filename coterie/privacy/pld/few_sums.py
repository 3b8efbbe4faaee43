"""The sum of a few log-normal weights, on a grid whose steps grow with the value.

`allocation` needs the distribution of W_1 + ... + W_t, where log W_i is normal. With little noise, W reaches
values millions of times its usual ones, and a grid of equal steps needs millions of points. Here the points
are 0 and u r^j, a few thousand of them.

**Adding.** For two points with j >= i, u r^i + u r^j = u r^j (1 + r^(i - j)). How many points it lies above
u r^j, and how far between its neighbours there, depends only on j - i. So all pairs with one difference are
one operation on arrays. The sum is spread to both neighbours so that its mean stays, as the weights were:
that makes the expectation of every convex function larger, never smaller.

**Rounding.** All terms are positive, so nothing cancels: each probability is right up to a small factor.
`rounding` bounds it: a cell of the normal distribution is right up to 1e-12, including the place of its mean,
for each of the t weights; an addition sums at most 4 N terms, each right up to a few units in the last place.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from .grid import Array

POINTS = 4096
REACH = 8.3  # of the grid, in standard deviations of log W under P and under Q: leaves out 1e-16
CELL = 1e-12  # the relative error of a cell's probability and mean
UNIT = 2.0**-53
LARGEST = 12.0  # 1 / noise; weights are then up to e^172, and no probability that matters vanishes


def few_sums(mu: float, sums: int) -> tuple[Array, Array, float, float]:
    """Return the values of t Y, their probabilities under Q, what is lost under P, and `rounding`.

    Formal guarantee: for convex f, E f(t Y) under Q is at most (1 + rounding) times that of the values
    returned, apart from weights above the grid's end, which are counted as 0. Under P, the probability that
    the weight of the unit's own sum lies there is at most the third number. Raise `MemoryError` if the
    weights are too large for floating-point numbers.
    """
    if mu > LARGEST:
        raise MemoryError(f"the weights of an allocation are too large for a noise of {1 / mu:g}")
    step = (2 * REACH * mu + mu * mu) / POINTS
    lowest = -REACH * mu - mu * mu / 2
    total = POINTS + math.ceil(math.log(sums) / step) + 2 * sums.bit_length() + 2
    logs: Array = np.asarray(lowest + step * np.arange(total), dtype=np.float64)
    values = np.concatenate([[0.0], np.exp(logs)])
    masses = _weights(mu, logs[: POINTS + 1], values[: POINTS + 2], total + 1)
    power, result, left = masses, None, sums
    additions = 0
    while True:
        if left % 2:
            result = power if result is None else _added(result, power, step)
            additions += 1
        left //= 2
        if not left:
            break
        power = _added(power, power, step)
        additions += 1
    assert result is not None
    rounding = sums * CELL + additions * (4 * total + 8) * UNIT * sums
    return values, result, float(ndtr(-REACH)) * (1 + CELL), rounding


def _weights(mu: float, logs: Array, values: Array, total: int) -> Array:
    """Return the probabilities of W at the values, spread from the cells between them; above them, W is 0."""
    places = np.concatenate([[-np.inf], logs / mu + mu / 2])
    inside, mean = between(places), between(places - mu)  # of each cell, under Q and under P
    right = np.clip((mean - values[:-1] * inside) / np.diff(values), 0.0, inside)
    masses = np.zeros(total)
    masses[: len(inside)] += inside - right
    masses[1 : len(inside) + 1] += right
    masses[0] += float(ndtr(-places[-1]))
    return masses


def between(places: Array) -> Array:
    """Return the normal probability between neighbouring places, without cancelling in the upper tail."""
    return np.where(places[:-1] > 0, -np.diff(ndtr(-places)), np.diff(ndtr(places)))


def _added(one: Array, other: Array, step: float) -> Array:
    """Return the distribution of the sum of two independent values; the first probability is that of 0."""
    made: Array = np.asarray(one[0] * other + other[0] * one, dtype=np.float64)
    made[0] = one[0] * other[0]
    first, second, sums = one[1:], other[1:], made[1:]
    length = len(first)
    apart = np.arange(length)
    grown = np.log1p(np.exp(-step * apart)) / step
    up = np.floor(grown).astype(int)
    part = np.expm1((grown - up) * step) / math.expm1(step)
    for difference in range(length):
        size = length - difference - up[difference] - 1  # the values above are not reached
        high = slice(difference, difference + size)
        pairs = first[high] * second[:size]
        if difference:
            pairs += first[:size] * second[high]
        share = pairs * part[difference]
        at = difference + up[difference]
        sums[at : at + size] += pairs - share
        sums[at + 1 : at + 1 + size] += share
    return made
