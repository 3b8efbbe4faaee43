"""The number of trials in a sweep: random, from a distribution that keeps the best trial private."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaln

from ..errors import Problem, nearest

DISTRIBUTIONS = ("poisson", "geometric", "negative-binomial")
LEAST_GAMMA = 1e-250


@dataclass(frozen=True)
class Trials:
    """A random number of trials: its distribution, its mean and, for some, its shape.

    "negative-binomial" is conditioned on at least one trial (Papernot and Steinke 2022,
    definition 1). Their eta is `shape`, any number above -1, and their gamma follows from the
    mean. Shape 0 is the logarithmic distribution. Shape 1 is the geometric one, which has its own
    name and takes no shape. A smaller shape costs less, but its draws are more often far from the mean.
    "poisson" stays near its mean, costs most, and may draw no trial at all. If more than `most` trials
    are drawn, nothing is run and nothing is chosen; this costs part of delta.

    >>> Trials("geometric", mean=10.0).gamma
    0.1
    """

    distribution: str
    mean: float
    shape: float | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        if self.most is not None:
            check_count(self.most, least=1)
        if self.distribution not in DISTRIBUTIONS:
            raise Problem(
                f"distribution: unknown distribution '{self.distribution}';"
                f" {nearest(self.distribution, DISTRIBUTIONS)}"
            )
        if not 1 <= self.mean < math.inf:
            raise Problem(f"mean must be a finite number of trials >= 1, got {self.mean}")
        if self.distribution != "negative-binomial":
            if self.shape is not None:
                raise Problem(f"shape: a {self.distribution} distribution has no shape, got {self.shape}")
        elif self.shape is None or not -1 < self.shape < math.inf:
            raise Problem(f"shape must be a finite number > -1, got {self.shape}")
        elif _log_mean(-math.log(LEAST_GAMMA), self.shape) < math.log(self.mean):
            raise Problem(
                f"shape {self.shape:g} is too close to -1 for a mean of {self.mean:g} trials; raise the shape"
            )

    @property
    def gamma(self) -> float:
        """The parameter gamma in (0, 1] of Papernot and Steinke 2022, at which the mean is `mean`."""
        return 1 / self.mean if self.distribution == "geometric" else math.exp(-decay_of(self))


class Uniform(Protocol):
    """A generator of random numbers."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def poisson(self, mean: float, /) -> int:
        """Return a Poisson number."""
        ...


def draw_trials(trials: Trials, generator: Uniform) -> int:
    """Draw a number of trials.

    A Poisson number may be 0: then no trial is run and nothing is chosen. This is a valid outcome and
    must be published as it is. Drawing again would be another distribution, whose cost is not known.

    A negative binomial number is a Poisson number of logarithmic ones, added up (Quenouille 1949), here
    with at least one of them. A shape below 0 is drawn by rejection from the logarithmic distribution.
    """
    if trials.distribution == "poisson":
        return int(generator.poisson(trials.mean))
    decay, shape = decay_of(trials), shape_of(trials)
    if shape > 0:
        first = -math.log1p(generator.random() * math.expm1(-shape * decay))
        parts = 1 + int(generator.poisson(max(shape * decay - first, 0.0)))
        return sum(_logarithmic(decay, generator) for _ in range(parts))
    while True:
        drawn = _logarithmic(decay, generator)
        kept = -math.log(drawn + shape) - float(betaln(drawn, 1 + shape))
        if math.log(1 - generator.random()) <= kept:
            return drawn


def _logarithmic(decay: float, generator: Uniform) -> int:
    """Draw from the logarithmic distribution: a geometric one with chance gamma^u, u uniform (Kemp 1981)."""
    chance = math.exp(-decay * generator.random())
    if chance >= 1:
        return 1
    return 1 + math.floor(math.log(1 - generator.random()) / math.log1p(-chance))


def chance_above(trials: Trials, count: int) -> float:
    """Return the probability that more than `count` trials are drawn, rounded up and so never quite 0.

    Refusing more than `count` trials has a price: the chosen model's (epsilon, delta) becomes
    (epsilon, delta + (1 + e^epsilon) * probability).

    >>> round(chance_above(Trials("geometric", 10.0), 20), 6)  # 0.9^20
    0.121577
    """
    check_count(count)
    return min(max(1 - float(np.exp(_log_chances(trials, count)).sum()), 0.0) + 1e-14 * (1 + count), 1.0)


def _log_chances(trials: Trials, count: int) -> np.ndarray:
    """Return the log-probabilities of the numbers up to `count`, from 0 for Poisson and from 1 otherwise."""
    if trials.distribution == "poisson":
        later = math.log(trials.mean) - np.log(np.arange(1.0, count + 1))
        return -trials.mean + np.concatenate([[0.0], np.cumsum(later)])
    decay, shape = decay_of(trials), shape_of(trials)
    if decay == 0:
        return np.zeros(min(count, 1))
    less = math.log(-math.expm1(-decay))
    first = less - math.log(decay) - _log_growth(shape * decay)
    number = np.arange(1.0, max(count, 1))
    later = less + np.log((number + shape) / (number + 1))
    return np.cumsum(np.concatenate([[first], later]))[:count]


def _log_growth(x: float) -> float:
    """Return log((e^x - 1) / x), which is 0 at 0."""
    if x == 0:
        return 0.0
    return max(x, 0.0) + math.log(-math.expm1(-abs(x)) / abs(x))


def _log_mean(decay: float, shape: float) -> float:
    """Return the log of the mean, shape * (1 / gamma - 1) / (1 - gamma^shape), where gamma = e^-decay."""
    return _log_growth(decay) - _log_growth(-shape * decay)


def shape_of(trials: Trials) -> float:
    """Return the shape of a distribution; that of the geometric one is 1."""
    return 1.0 if trials.shape is None else trials.shape


@functools.lru_cache(maxsize=1024)
def decay_of(trials: Trials) -> float:
    """Return log(1 / gamma) for the mean that was asked for."""
    if trials.distribution == "poisson":
        raise Problem("gamma: a poisson distribution has no gamma")
    if trials.mean == 1:
        return 0.0
    if trials.distribution == "geometric":
        return math.log(trials.mean)
    wanted, shape = math.log(trials.mean), shape_of(trials)
    most = -math.log(LEAST_GAMMA)
    return float(brentq(lambda decay: _log_mean(decay, shape) - wanted, 0.0, most, xtol=1e-15, rtol=1e-14))


def check_count(count: int, least: int = 0) -> None:
    """Raise `Problem` unless `count` is a whole number of at least `least`."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least:
        raise Problem(f"the number of trials must be a whole number >= {least}, got {count}")
