"""Lower bounds on epsilon: the privacy losses of one pair of data sets, merged into cells.

**Cells.** Let P and Q be the distributions of one release on two data sets. Whoever is told only in which of
some cells the release lies knows less, so the pair of cell probabilities (p_j, q_j) has a smaller divergence
than (P, Q), also after composition: that is post-processing. Any cells are valid; we cut where the loss
passes half a step of the grid, so that each cell's loss log(p_j / q_j) is close to one point of the grid.

**What is left.** A cell's loss is a point of the grid plus a remainder o_j, which is of second order in the
step. Over a composition, remainders add up to some number O, and the losses on the grid to some number G.
By Chernoff's bound, O >= s except with a probability of at most b. So, with x+ = max(x, 0),

    E (1 - e^(a - G - O))+  >=  E (1 - e^(a - s - G))+ - b,

which means: the epsilon of the composition at delta is at least s plus the epsilon of the losses on the grid
at delta + b. Rounding every loss down, as is usual, costs half a step per release. Here a release costs a
share of the square of the step, so the bounds stay within a percent even for a million releases.

**Numbers.** Cells whose probabilities are too small to compute are left out, as if they had no loss at all:
that only makes delta smaller. The other probabilities are differences of normal tails, each wrong by at most
`WRONG` of itself (more where it is small, see `_between`); every remainder is lowered by what that can do to
its loss. Errors of Fourier transforms are added to delta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from ..events import Event
from .grid import Array, Losses, composed
from .mechanisms import REACH

WRONG = 1e-14
CHANCE = 1e-3  # b, as a share of delta
PLACES = 16_384  # where the loss is evaluated, to find out where to cut
LEAST = 1e-250
MOST_POINTS = 2**22
LEANS = (
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.99,
)  # of selections: how the range of the loss is split between two candidates
TILTS = 2.0 ** np.arange(-4, 5)
Mixture = dict[float, float]  # weights of normal distributions of variance 1, by their means


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of one release: their probabilities under P, their losses, and how wrong these may be."""

    masses: Array
    losses: Array
    errors: Array

    @property
    def variance(self) -> float:
        """The variance of the loss."""
        mean = self.masses @ self.losses
        return float(self.masses @ (self.losses - mean) ** 2)

    def on_grid(self, interval: float) -> tuple[Losses, Array]:
        """Return the losses on the grid, and each cell's remainder (at least)."""
        safe = self.losses - self.errors
        place = np.rint(safe / interval).astype(np.int64)
        lowest = int(place.min())
        masses: Array = np.bincount(place - lowest, weights=self.masses).astype(np.float64)
        return Losses(interval, lowest, masses, 0.0), safe - place * interval


def lower_epsilon(
    events: Sequence[Event], delta: float, interval: float, adjacency: str, aside: float = 1.0
) -> float:
    """Return a lower bound on the epsilon, at delta, of the worst pair of data sets; 0 if none is found.

    The best of the pairs of `_pairs` counts. The grid's `interval` is made coarser where there would be too
    many losses. `aside` is the share of the allowance for rounding that is applied.
    """
    chance = CHANCE * delta
    spare = aside * (1e-12 + 1e-14 * sum(event.count for event in events))
    best = 0.0
    for way in range(max(_number_of_pairs(event, adjacency) for event in events)):
        parts = _parts(events, way, interval, adjacency)
        spread = math.sqrt(sum(count * cells.variance for cells, count in parts))
        step = max(interval, 20 * spread / MOST_POINTS)
        if step > interval:
            parts = _parts(events, way, step, adjacency)
        split = [(*cells.on_grid(step), cells.masses, count) for cells, count in parts]
        try:
            made = composed([(losses, count) for losses, _, _, count in split], upper=False)
        except MemoryError:
            continue
        found = made.epsilon_at(min(delta + chance + spare, 1.0))
        if found > 0:
            best = max(best, found + _least_sum([(m, o, n) for _, o, m, n in split], chance))
    return float(best)


def _parts(events: Sequence[Event], way: int, interval: float, adjacency: str) -> list[tuple[Cells, int]]:
    """Return the cells of each event, all in the same direction: of even pairs a unit is taken out."""
    return [
        (_cells(event, way % _number_of_pairs(event, adjacency), interval, adjacency), event.count)
        for event in events
    ]


def spread_of(event: Event, adjacency: str) -> float:
    """Return about the standard deviation of the loss of one release, where it is small."""
    reach = 2.0 if adjacency == "replace-one" or event.sampler == "fixed" else 1.0
    mu = reach / event.noise
    if event.sampler == "allocation":
        return mu * math.sqrt(event.rate)
    return min(mu, event.rate * math.sqrt(math.expm1(min(mu**2, 500.0))))


def _least_sum(parts: Iterable[tuple[Array, Array, int]], chance: float) -> float:
    """Return what the sum of all remainders is at least, except with this probability (Chernoff).

    A part has the probabilities of the cells, their remainders, and the number of releases.
    """
    given = list(parts)
    square = sum(count * float(masses @ rest**2) for masses, rest, count in given)
    widest = max(float(np.abs(rest).max()) for _, rest, _ in given)
    if widest == 0:
        return 0.0
    most = math.log(1 / chance)
    best = sum(count * min(float(rest.min()), 0.0) for _, rest, count in given)  # always true
    for tilt in TILTS * math.sqrt(2 * most / max(square, 1e-300)):
        tilt = min(tilt, 100 / widest)
        moments = ((count, float(masses @ np.expm1(-tilt * rest))) for masses, rest, count in given)
        moment = sum(count * math.log1p(max(value, -1 + 1e-15)) for count, value in moments)
        best = max(best, -(moment + most) / tilt)
    return best


def _mixtures(event: Event, adjacency: str) -> list[tuple[Mixture, Mixture]]:
    """Return pairs of data sets on which Gaussian sums differ most, as far as known, in both directions.

    Poisson samples have one such pair, which is the worst one. For samples of a fixed size the worst one is
    not known under zero-out. Two candidates are tried: all other units contribute 0, so the sum grows by a
    clip if the unit is in the sample; or all of them contribute -1, so that it grows by two clips if the
    unit, which contributes 1, takes the place of another, and by one if it is zeroed out. Under replace-one
    the unit may contribute -1 too, so that its place in the sample makes no difference. Of an allocation only
    the sum over a pass is looked at, which is less than what its worst pair tells.
    """
    rate, mu = event.rate, 1 / event.noise
    replaced, out = adjacency == "replace-one", {0.0: 1 - event.rate}
    if event.sampler == "allocation":  # whoever adds up all sums of a pass finds the unit in one of them
        mu, rate = mu * math.sqrt(rate), 1.0
    if rate == 1:
        return [({(2.0 if replaced else 1.0) * mu: 1.0}, {0.0: 1.0})]
    if event.sampler == "poisson" and replaced:
        return [({**out, mu: rate}, {**out, -mu: rate})]
    if event.sampler == "poisson":
        pairs: list[tuple[Mixture, Mixture]] = [({**out, mu: rate}, {0.0: 1.0})]
    elif replaced:
        pairs = [({**out, 2 * mu: rate}, {0.0: 1.0})]
    else:
        pairs = [({**out, 2 * mu: rate}, {**out, mu: rate}), ({**out, mu: rate}, {0.0: 1.0})]
    return [way for one, two in pairs for way in ((one, two), (two, one))]


def _number_of_pairs(event: Event, adjacency: str) -> int:
    if event.mechanism == "laplace":
        return 1
    return len(LEANS) if event.mechanism == "selection" else len(_mixtures(event, adjacency))


def _cells(event: Event, number: int, interval: float, adjacency: str) -> Cells:
    """Return the cells of one of the pairs of data sets."""
    reach = (2.0 if adjacency == "replace-one" else 1.0) / event.noise
    if event.mechanism == "laplace":
        return _laplace(reach, interval)
    if event.mechanism == "selection":
        return _selection(reach, LEANS[number])
    return _normal(*_mixtures(event, adjacency)[number], interval)


def _normal(one: Mixture, two: Mixture, interval: float) -> Cells:
    """Return the cells of a mixture of normal distributions against another one."""
    means = sorted({*one, *two})
    first = np.array([one.get(mean, 0.0) for mean in means])
    second = np.array([two.get(mean, 0.0) for mean in means])
    places = np.linspace(means[0] - REACH, means[-1] + REACH, PLACES)
    cuts = _cuts(_loss(places, means, first, second), places, interval)
    edges = np.concatenate([[-np.inf], cuts, [np.inf]])
    masses, wrong = np.array([_between(edges - mean) for mean in means]).swapaxes(0, 1)
    p, q = first @ masses, second @ masses
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        excess = (first - second) @ masses / q
        doubt = (np.abs(first - second) @ wrong + np.abs(excess) * (second @ wrong)) / q
        losses = np.where(np.abs(excess) < 0.5, np.log1p(excess), np.log(p / q))
        # the error of log(1 + x) is at most that of x over 1 + x, less its own error
        errors = doubt / (1 + excess - doubt) + 1e-15 * np.abs(losses)
    kept = (p > LEAST) & (q > LEAST) & np.isfinite(losses) & (doubt < (1 + excess) / 2)
    return Cells(p[kept], losses[kept], errors[kept])


def _loss(places: Array, means: Sequence[float], first: Array, second: Array) -> Array:
    """Return log(P / Q) at each place."""
    logs = np.array([mean * places - mean**2 / 2 for mean in means])
    high = logs.max(axis=0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(first @ np.exp(logs - high)) - np.log(second @ np.exp(logs - high)))


def _cuts(losses: Array, places: Array, interval: float) -> Array:
    """Return the places, in order, where the loss passes half a step of the grid; it may turn once."""
    ends = losses[0], losses[-1]
    turn = int(np.argmin(losses)) if losses.min() < min(ends) else int(np.argmax(losses))
    found = []
    for part in (slice(0, turn + 1), slice(turn, None)):
        values, at = losses[part], places[part]
        if len(values) > 1 and np.isfinite(values).all():
            values, at = (values, at) if values[-1] >= values[0] else (values[::-1], at[::-1])
            values = np.maximum.accumulate(values)
            halves = np.arange(math.ceil(values[0] / interval - 0.5), math.ceil(values[-1] / interval - 0.5))
            found.append(np.interp((halves + 0.5) * interval, values, at))
    return np.unique(np.concatenate(found)) if found else np.empty(0)


def _between(edges: Array) -> tuple[Array, Array]:
    """Return the normal probabilities between edges, from the nearer tail, and how wrong they may be."""
    low, high = edges[:-1], edges[1:]
    right = low > 0
    near = np.where(right, ndtr(-low), ndtr(high))
    far = np.where(right, ndtr(-high), ndtr(low))
    edge = np.where(right, low, high)  # the error of a tail's argument grows with it
    return np.maximum(near - far, 0.0), WRONG * (1 + np.where(np.isfinite(edge), edge, 0.0) ** 2 / 10) * near


def _laplace(epsilon: float, interval: float) -> Cells:
    """Return the cells of Laplace noise; the largest and the smallest loss each have a cell of their own."""
    most = math.ceil(epsilon / interval - 0.5)
    halves = (np.arange(-most, most) + 0.5) * interval
    edges = np.concatenate([[-epsilon], halves[np.abs(halves) < epsilon], [epsilon]])
    with np.errstate(over="ignore"):
        p = -np.diff(1 - np.exp((edges - epsilon) / 2) / 2)
        q = np.diff(np.exp((-edges - epsilon) / 2) / -2)
    p = np.concatenate([[math.exp(-epsilon) / 2], np.abs(p), [0.5]])
    q = np.concatenate([[0.5], np.abs(q), [math.exp(-epsilon) / 2]])
    kept = (p > 1e-13) & (q > 1e-13)
    p, q = p[kept], q[kept]
    return Cells(p, np.log(p / q), 1e-15 / p + 1e-15 / q)


def _selection(epsilon: float, lean: float) -> Cells:
    """Return a selection between two candidates with losses t and t - epsilon, where t = lean * epsilon."""
    high, low = lean * epsilon, (lean - 1) * epsilon
    chance = math.expm1(-low) / (math.exp(-low) - math.exp(-high))
    return Cells(np.array([1 - chance, chance]), np.array([low, high]), np.array([1e-14, 1e-14]) * epsilon)
