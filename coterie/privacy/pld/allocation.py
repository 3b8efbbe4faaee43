"""Random allocation ("balls and bins"): in each pass over the data, every unit is in one of t noisy sums.

Each unit draws its sum independently of all others, uniformly from the t sums of the pass.

**The worst pair.** Let x be the t outputs, divided by the deviation of the noise, and mu = 1 / noise.
Whatever the unit contributes, within the clip and after seeing earlier outputs, the outputs are a
post-processing of

    x ~ P = (1/t) sum_i N(mu e_i, I)  if the unit is there,  and of  x ~ Q = N(0, I)  if it is zeroed out.

In each sum a contribution of at most one clip is a rotated, shortened step of length mu, and what the other
units do does not depend on where this one is (Chua and others 2025; Feldman and Shenfeld 2025).

**One dimension.** The density ratio is P/Q = Y = (1/t) sum_i W_i, with W_i = e^(mu x_i - mu^2 / 2). Under Q
the W_i are independent and log-normal with mean 1. So delta(a) is E_Q (Y - e^a)+ in one direction and
E_Q (1 - e^a Y)+ in the other. Both are expectations of convex functions of Y. We replace each W_i by one on a
grid, spread to the neighbouring points so that its mean stays: that makes both expectations larger, never
smaller. What is above the grid's end counts as a loss without limit in the first direction, and as W = 0 in
the second. The sum's distribution is a convolution. In the first direction we compute it under P, where one
of the W_i is weighted by its own value: delta(a) = E_P (1 - e^a / Y)+, whose terms are at most 1.

**Without sampling.** A pass tells no more than one Gaussian release of all units: P is a mixture of
N(mu e_i, I), and the divergence is convex. The smaller of both bounds counts at each epsilon. Only the second
one is used if the grid would be too long (for noise below about 0.45 and more than 128 sums, or below 0.08),
and for units that are replaced, with twice the clip.

**Passes that are drawn again.** In a metered training each of the t sums has room for a public number T of
units. If one of them gets more, the whole pass is drawn again (`coterie.cohort.sampling`). T is so large that

    t Pr[Binomial(n, 1/t) >= T]  <=  2^-50,

for n units. This is what it costs. Fix where the units other than ours are, which does not depend on the
data, and call the pass *crowded* if one of the sums holds T of them or more. Only a crowded pass can be drawn
again, so this happens with a probability r that is at most the probability c of a crowded pass. A pass that
is kept is crowded with probability (c - r) / (1 - r) <= c <= 2^-50. If it is not, there is room for our unit
in every sum, so nothing is drawn again whatever its place, and its place is uniform: the pair above. If it
is, we count a loss without limit (`REDRAWN`), in both directions. Whether a pass is crowded does not depend
on the data either, so delta(a) grows by at most 2^-50 per pass. The bound without sampling needs no such
addition: it holds whatever the distribution of the unit's place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import fft
from scipy.special import log_ndtr, ndtr

from ..events import Event
from .few_sums import between, few_sums
from .grid import Array, Losses, connected, raise_to

FINE, COARSE = 100.0, 4.0  # points of the grid within one standard deviation of W: wanted, and at least
REACHES = (7.7, 6.4)  # where the grid ends, in standard deviations of log W under P: leaves out 1e-14, 1e-10
LONGEST = 2**22
LITTLE_NOISE, FEW = 1.6, 128  # 1 / noise, and sums: there a grid with growing steps is faster and tighter
LONGEST_SUM = 2**24
OUTSIDE = 1e-15  # of a sum's distribution; it counts as a loss without limit
Curve = Callable[[Array], Array]
SPARE = 1e-13  # what rounding may add to a delta of one pass
REDRAWN = 2.0**-50  # what drawing crowded passes again may add to a delta of one pass


@dataclass(frozen=True, eq=False)
class Sums:
    """The values of Y and their probabilities under P and Q.

    Under P the value may also be `lost` above the grid's end; under both, `outside` of it. Each probability
    is right up to a factor of 1 + `rounding`.
    """

    values: Array
    under_p: Array
    under_q: Array
    lost: float
    outside: float
    rounding: float


def allocated(event: Event, interval: float) -> tuple[Losses, Losses]:
    """Return upper bounds on the losses of one pass, in both directions: a unit is removed, or added.

    Raise `MemoryError` if the grid would be too long.
    """
    sums, mu = round(1 / event.rate), 1 / event.noise
    made = _sums(mu, sums)
    return (
        _connected(_removed(made), made.values, made.under_p, mu, interval, False),
        _connected(_added(made), made.values, made.under_q, mu, interval, True),
    )


@functools.lru_cache(maxsize=4)
def _sums(mu: float, sums: int) -> Sums:
    """Return the distribution of Y: for few sums with little noise on a grid whose steps grow."""
    return _few(mu, sums) if mu >= LITTLE_NOISE and sums <= FEW else _many(mu, sums)


def _few(mu: float, sums: int) -> Sums:
    values, under_q, lost, rounding = few_sums(mu, sums)
    ratios: Array = np.asarray(values / sums, dtype=np.float64)
    return Sums(ratios, ratios * under_q, under_q, lost, 0.0, rounding)


def _many(mu: float, sums: int) -> Sums:
    """Return the distribution of Y on a grid of equal steps."""
    plain, weighted, width = _weights(mu, sums)
    size = fft.next_fast_len(_length(plain, weighted, sums), real=True)
    if size > LONGEST_SUM:
        raise MemoryError(f"a distribution over {size} sums is too large")
    spectrum = fft.rfft(plain, size)
    rest = np.ones_like(spectrum)
    raise_to(rest, spectrum.copy(), sums - 1)
    under_p, under_q = (fft.irfft(rest * last, size) for last in (fft.rfft(weighted, size), spectrum))
    lost = max(1.0 - float(weighted.sum()), 0.0)
    values: Array = np.asarray(np.arange(size) * (width / sums), dtype=np.float64)
    return Sums(values, under_p, under_q, lost, OUTSIDE, 0.0)


def _length(plain: Array, weighted: Array, sums: int) -> int:
    """Return the number of points that holds all but `OUTSIDE` of both sums (Chernoff)."""
    most = (len(plain) - 1) * sums
    spread = math.sqrt(sums * float(plain @ (np.arange(len(plain)) - plain @ np.arange(len(plain))) ** 2))
    normal = math.sqrt(2 * math.log(1 / OUTSIDE)) / spread
    heavy = math.log(1 / OUTSIDE) / len(plain)
    found = float(most)
    for tilt in (*(2.0 ** np.arange(-4, 3) * normal), *(2.0 ** np.arange(-4, 3) * heavy)):
        if tilt * len(plain) < 600:
            grown = np.expm1(tilt * np.arange(len(plain)))
            logs = [
                math.log1p(float(masses @ grown) + float(masses.sum()) - 1) for masses in (plain, weighted)
            ]
            moment = (sums - 1) * logs[0] + max(logs)
            found = min(found, (moment + math.log(1 / OUTSIDE)) / tilt)
    return math.ceil(found) + len(plain)


def _weights(mu: float, sums: int) -> tuple[Array, Array, float]:
    """Return the probabilities of W on a grid, those weighted by W, and the grid's step."""
    spread = math.sqrt(math.expm1(min(mu * mu, 500.0)))
    for reach in REACHES:
        end = math.exp(min(mu * reach + mu * mu / 2, 600.0))
        width = max(spread / FINE, end / LONGEST, 40 * spread * math.sqrt(sums) / LONGEST)
        if width <= spread / COARSE:
            break
    else:
        raise MemoryError("the weights of an allocation have too many points")
    points = math.ceil(end / width)
    edges = width * np.arange(points + 1)
    with np.errstate(divide="ignore"):
        places = np.log(edges) / mu + mu / 2
    inside, mean = between(places), between(places - mu)  # of each cell, under Q and under P
    right = np.clip(mean / width - np.arange(points) * inside, 0.0, inside)
    plain = np.zeros(points + 1)
    plain[:-1] += inside - right
    plain[1:] += right
    plain[0] += float(ndtr(-places[-1]))
    return plain, edges * plain, width


def _removed(made: Sums) -> Curve:
    """Return delta(a) = E_P (1 - e^a / Y)+, with what lies above the grid's end."""
    values, masses = made.values, made.under_p
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(values > 0, masses / values, 0.0)
    above, steep = _tail(np.where(values > 0, masses, 0.0)), _tail(inverse)

    def curve(a: Array) -> Array:
        at = np.searchsorted(values, np.exp(a), side="right")
        found = above[at] - np.exp(a) * steep[at]
        wrong = made.rounding * np.maximum(above[at], 0.0)
        return np.asarray(np.clip(found + wrong, 0.0, 1.0) + made.lost + made.outside + SPARE)

    return curve


def _added(made: Sums) -> Curve:
    """Return delta(a) = E_Q (1 - e^a Y)+."""
    values, masses = made.values, made.under_q
    below = np.concatenate([[0.0], np.cumsum(masses)])
    steep = np.concatenate([[0.0], np.cumsum(masses * values)])

    def curve(a: Array) -> Array:
        at = np.searchsorted(values, np.exp(-a), side="left")
        found = below[at] - np.exp(a) * steep[at]
        wrong = made.rounding * np.maximum(below[at], 0.0)
        return np.asarray(np.clip(found + wrong, 0.0, 1.0) + made.outside + SPARE)

    return curve


def _tail(masses: Array) -> Array:
    return np.concatenate([np.cumsum(masses[::-1])[::-1], [0.0]])


def _connected(
    curve: Curve, values: Array, masses: Array, mu: float, interval: float, inverted: bool
) -> Losses:
    """Connect the dots of a curve between the losses that have a noticeable probability."""
    below = np.cumsum(np.maximum(masses, 0.0))
    low = values[min(int(np.searchsorted(below, 1e-15)), len(values) - 1)]
    ends = [math.log(max(float(value), 1e-300)) for value in (low, values[-1])]
    ends = [-ends[1], -ends[0]] if inverted else ends
    most = 10 * mu + mu * mu / 2  # where the bound without sampling is as good as 0
    ends = [max(ends[0], -most), min(ends[1], most)]
    first, last = math.floor(ends[0] / interval), math.ceil(ends[1] / interval)
    grid: Array = np.asarray(np.arange(first, last + 1) * interval, dtype=np.float64)
    unsampled = ndtr(mu / 2 - grid / mu) - np.exp(grid + log_ndtr(-mu / 2 - grid / mu))
    deltas = np.minimum(curve(grid), np.clip(unsampled, 0.0, 1.0) + SPARE)
    return connected(interval, first, deltas + REDRAWN)
