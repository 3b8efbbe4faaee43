"""Privacy-loss distributions of events, discretised so that they give upper bounds on epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from ..events import Event
from .allocation import allocated
from .grid import Array, Losses, composed, connected

Curve = Callable[[Array], Array]
REACH = 10.0  # in standard deviations: a loss beyond it (probability 1e-23) counts as infinite


@dataclass(frozen=True)
class Distribution:
    """Losses in each direction: a unit is removed, or a unit is added."""

    directions: tuple[Losses, ...]

    def epsilon_at(self, delta: float) -> float:
        """Return the smallest epsilon that holds with delta in every direction; infinite if there is none."""
        return max(one.epsilon_at(delta) for one in self.directions)

    def delta_at(self, epsilons: Array) -> Array:
        """Return the larger delta of both directions at each epsilon."""
        found: Array = np.maximum.reduce([one.delta_at(epsilons) for one in self.directions])
        return found


def distribution(events: Iterable[Event], interval: float, adjacency: str = "zero-out") -> Distribution:
    """Compose the privacy-loss distributions of events; every epsilon read from it is an upper bound."""
    with np.errstate(all="ignore"):  # `Losses` refuses values that are not finite
        parts = [(_one(event, interval, adjacency), event.count) for event in events]
        ways = max(len(both) for both, _ in parts)
        made = [
            composed([(both[way % len(both)], n) for both, n in parts], upper=True) for way in range(ways)
        ]
    return Distribution(tuple(made))


def _one(event: Event, interval: float, adjacency: str) -> tuple[Losses, ...]:
    """Return the losses of one release; one direction is enough if both are equal."""
    reach = 2.0 if adjacency == "replace-one" else 1.0
    if event.mechanism == "laplace":
        return (_laplace(reach / event.noise, interval),)
    if event.mechanism == "selection":
        return (_selection(reach / event.noise, interval),)
    if event.in_passes:
        return _allocated(event, interval, reach)
    if event.sampler == "fixed" and event.rate < 1:
        return (_fixed_size(event.noise, event.rate, interval),)
    if event.rate == 1:
        return (_gaussian(reach / event.noise, interval),)
    if reach == 2:
        return (_replaced(event.noise, event.rate, interval),)
    return _sampled(event.noise, event.rate, interval)


def _allocated(event: Event, interval: float, reach: float) -> tuple[Losses, ...]:
    """Return the losses of one pass; as one release of all units where no better bound is known."""
    try:
        if reach == 1:
            return allocated(event, interval)
    except MemoryError:
        pass
    return (_gaussian(reach / event.noise, interval),)


def _gaussian(mu: float, interval: float) -> Losses:
    """Return the losses of N(0, 1) against N(mu, 1)."""
    end = REACH * mu + mu**2 / 2
    return _from_curve(lambda a: gaussian_delta(a, mu), -end, end, interval)


def gaussian_delta(a: Array, mu: float) -> Array:
    """Return delta(a) of N(0, 1) against N(mu, 1) (Balle and Wang 2018)."""
    return np.asarray(ndtr(mu / 2 - a / mu) - np.exp(a + log_ndtr(-mu / 2 - a / mu)))


def _sampled(noise: float, rate: float, interval: float) -> tuple[Losses, Losses]:
    """Return the losses of a Poisson-sampled Gaussian, with P = (1 - rate) N(0) + rate N(1) and Q = N(0).

    P - e^a Q = rate (N(1) - e^b N(0)) where e^b = (e^a - 1 + rate) / rate, and Q - e^a P =
    (1 - e^a (1 - rate)) (N(0) - e^c N(1)) where e^c = rate e^a / (1 - e^a (1 - rate)). So each delta is
    that of a Gaussian at another epsilon. The losses of P are above log(1 - rate); those of Q are below
    -log(1 - rate).
    """
    mu, floor = 1 / noise, math.log1p(-rate)

    def outer(a: Array) -> Array:  # b, for losses above the floor
        return np.asarray(a - math.log(rate) + np.log(-np.expm1(np.minimum(floor - a, 0))))

    def loss(x: float) -> float:  # at place x, in standard deviations
        return float(np.logaddexp(floor, math.log(rate) + (x - mu / 2) * mu))

    def taken(a: Array) -> Array:
        above = a > floor
        inside = rate * gaussian_delta(outer(np.where(above, a, 0.0)), mu)
        return np.where(above, inside, -np.expm1(a))

    def added(a: Array) -> Array:
        below = a < -floor
        share = -np.expm1(np.where(below, a, 2 * floor) + floor)
        c = np.where(below, a, 0.0) + math.log(rate) - np.log(share)
        return np.where(below, share * gaussian_delta(c, mu), 0.0)

    ends = loss(-REACH), loss(mu + REACH), loss(REACH)
    return (
        _from_curve(taken, ends[0], ends[1], interval),
        _from_curve(added, -ends[2], -ends[0], interval),
    )


def _replaced(noise: float, rate: float, interval: float) -> Losses:
    """Return the losses of a Poisson-sampled Gaussian if a unit is replaced by its opposite.

    They are those of P = (1 - rate) N(0) + rate N(1) against Q = (1 - rate) N(0) + rate N(-1), which
    dp-accounting takes as the worst pair. The loss is odd and increases with x, so each loss a >= 0 belongs
    to one x: u = e^(x mu) is a root of r u^2 - (1 - rate)(e^a - 1) u - r e^a = 0, r = rate e^(-mu^2 / 2).
    """
    mu = 1 / noise

    def place(a: Array) -> Array:
        size = np.abs(a)
        small = math.log(rate) - mu**2 / 2
        one = math.log1p(-rate) + np.log(-np.expm1(-size)) - math.log(2)
        two = small - size / 2
        high = np.maximum(one, two)
        first, second = np.exp(one - high), np.exp(two - high)
        return np.asarray(np.sign(a) * (high + np.log(first + np.hypot(first, second)) + size - small) / mu)

    def curve(a: Array) -> Array:
        x = place(a)
        other = np.logaddexp(math.log1p(-rate) + log_ndtr(-x), math.log(rate) + log_ndtr(-x - mu))
        return np.asarray((1 - rate) * ndtr(-x) + rate * ndtr(mu - x)) - np.exp(a + other)

    far = math.log1p(-rate), math.log(rate)
    x = mu + REACH
    end = float(
        np.logaddexp(far[0], far[1] + (x - mu / 2) * mu) - np.logaddexp(far[0], far[1] - (x + mu / 2) * mu)
    )
    return _from_curve(curve, -end, end, interval)


def _laplace(epsilon: float, interval: float) -> Losses:
    """Return the losses of Laplace noise; both ends of their range have positive probability."""
    return _from_curve(
        lambda a: np.where(a <= -epsilon, -np.expm1(a), -np.expm1(np.minimum(a - epsilon, 0) / 2)),
        -epsilon, epsilon, interval,
    )  # fmt: skip


def _selection(epsilon: float, interval: float) -> Losses:
    """Return upper bounds for all selections whose privacy losses lie in a range of length epsilon.

    The curve is that of Dong, Durfee and Rogers (2020):
    delta(a) = (1 - e^(-(epsilon - a) / 2))^2 / (1 - e^-epsilon).
    """

    def curve(a: Array) -> Array:
        inside = np.expm1(-(epsilon - np.clip(a, -epsilon, epsilon)) / 2) ** 2 / -math.expm1(-epsilon)
        return np.asarray(np.where(a <= -epsilon, -np.expm1(a), inside))

    return _from_curve(curve, -epsilon - interval, epsilon + interval, interval)


def _fixed_size(noise: float, rate: float, interval: float) -> Losses:
    """Return the losses of a Gaussian on a sample of fixed size, drawn without replacement.

    In such a sample, another unit takes the place of the one that left. So sums differ by twice the
    clip, whatever the adjacency. For a >= 0, delta'(a) = rate delta(log(1 + (e^a - 1) / rate))
    (Balle, Barthe, Gaboardi 2018, theorem 9); a < 0 follows by symmetry of the two data sets.
    """
    mu = 2 / noise

    def curve(a: Array) -> Array:
        size = np.abs(a)
        inner = np.where(size > 30, size - math.log(rate), np.log1p(np.expm1(np.minimum(size, 30)) / rate))
        positive = np.clip(rate * gaussian_delta(inner, mu), 0, 1)
        return np.asarray(np.where(a >= 0, positive, 1 - np.exp(a) * (1 - positive)))

    widest = REACH * mu + mu**2 / 2
    return _from_curve(curve, -widest, widest, interval)


def _from_curve(curve: Curve, low: float, high: float, interval: float) -> Losses:
    """Return an upper bound of a curve delta(a) between two losses, by connecting its dots."""
    first, last = math.floor(low / interval), math.ceil(high / interval)
    return connected(interval, first, curve(_grid(first, last, interval)))


def _grid(first: int, last: int, interval: float) -> Array:
    return np.asarray(np.arange(first, last + 1) * interval, dtype=np.float64)
