"""Trade-off curves: how often an attack must miss a unit that was used, given its false alarms.

An attacker sees everything that was released and guesses whether one unit was in the data. A
type I error is a false alarm (a unit is called used but was not); a type II error is a miss (a unit
is called unused but was used). Privacy prevents both errors from being small: the curve gives the
smallest type II error that any attack can have at each type I error (Wasserman and Zhou 2010; Dong,
Roth, Su 2022, section 2.1). Random guessing is the line 1 - type I. The closer a curve is to that
line, the less an attacker can learn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from ..errors import Problem
from .accountant import ADJACENCY, LEAST_NOISE, TIGHT_POINTS, interval, renyi_epsilon, rounding
from .events import Event, check_adjacency, joined
from .pld.mechanisms import distribution

Array = NDArray[np.float64]
CERTIFIED = "certified"
PAIRS = 2_001  # the number of supporting lines of a certified curve
MOST_EPSILON = 700.0  # lines steeper than e^700 overflow
TAILS = (1e-9, 1e-6, 1e-3, 0.1, 0.5)  # the lines go down to the first of these deltas that is reachable
FINE_STEP = 0.005  # the step of the privacy loss should not be coarser than this


@dataclass(frozen=True, eq=False)
class TradeOff:
    """Points of a trade-off curve.

    `label` names what the curve describes. `by` says how it was found: a "certified" curve lies on or
    below the true one. `type_one` increases from 0 to 1; `type_two` is the smallest type II error at each.
    """

    label: str
    by: str
    type_one: Array
    type_two: Array

    def __post_init__(self) -> None:
        for key in ("type_one", "type_two"):
            values = np.array(getattr(self, key), dtype=np.float64)
            if values.ndim != 1 or len(values) < 2 or not np.all((values >= 0) & (values <= 1)):
                raise Problem(f"{key} must be two or more numbers in [0, 1]")
            values.flags.writeable = False
            object.__setattr__(self, key, values)
        ends = self.type_one[0] == 0 and self.type_one[-1] == 1
        if not ends or np.any(np.diff(self.type_one) <= 0):
            raise Problem("type_one must increase from 0 to 1")
        if len(self.type_one) != len(self.type_two):
            raise Problem(
                f"type_two must have as many numbers as type_one, {len(self.type_one)},"
                f" got {len(self.type_two)}"
            )


def gaussian_curve(mu: float, label: str = "", type_one: ArrayLike | None = None) -> TradeOff:
    """Return G_mu: the type II error Phi(Phi^-1(1 - alpha) - mu) at type I error alpha.

    This is the curve for distinguishing N(0, 1) from N(mu, 1) (Dong, Roth, Su 2022, section 2.2).
    mu = 0 is perfect privacy, infinity is none. For a composition of sampled steps, mu comes from a
    limit theorem, so the curve is an estimate and not a bound.

    >>> round(misses(gaussian_curve(1.0), 0.05), 4)
    0.7405
    """
    if not mu >= 0:
        raise Problem(f"mu must be a number >= 0, got {mu:g}")
    alpha = _grid(type_one)
    beta = np.zeros_like(alpha) if math.isinf(mu) else ndtr(-ndtri(alpha) - mu)
    return TradeOff(label, "gaussian", alpha, beta)


def certified_curve(
    events: Iterable[Event],
    label: str = "",
    type_one: ArrayLike | None = None,
    adjacency: str = ADJACENCY,
) -> TradeOff:
    """Return a curve that no attack on a composition of events, fixed in advance, can go below.

    Formal guarantee: for two neighbouring data sets, with either of them as the null hypothesis, an
    attack's type II error at each type I error is at least the curve's. If no bound is finite (because
    there is almost no noise), the curve is 0.
    """
    check_adjacency(adjacency)
    alpha = _grid(type_one)
    whole = joined(event for event in events if math.isfinite(event.noise))
    if not whole:
        return TradeOff(label, CERTIFIED, alpha, 1 - alpha)
    if any(event.noise < LEAST_NOISE for event in whole):
        return TradeOff(label, CERTIFIED, alpha, np.zeros_like(alpha))
    return TradeOff(label, CERTIFIED, alpha, supported(*_pairs(whole, adjacency), alpha))


def supported(epsilons: ArrayLike, deltas: ArrayLike, type_one: ArrayLike) -> Array:
    """Return the smallest type II errors allowed by (epsilon, delta)-privacy at all given pairs.

    This is the supremum over pairs of max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)):
    Wasserman and Zhou 2010, theorem 2.4; Dong, Roth, Su 2022, section 2.3. All pairs of a mechanism
    together give its curve; some of them give a curve below it.

    >>> supported([math.log(3)], [0.0], [0.0, 0.25, 1.0]).round(6).tolist()
    [1.0, 0.25, 0.0]
    """
    alpha = np.asarray(type_one, dtype=np.float64)
    least = np.zeros_like(alpha)
    pairs = zip(np.atleast_1d(epsilons).tolist(), np.atleast_1d(deltas).tolist(), strict=True)
    for epsilon, delta in pairs:
        if epsilon <= MOST_EPSILON:
            np.maximum(least, 1 - delta - math.exp(epsilon) * alpha, out=least)
            np.maximum(least, math.exp(-epsilon) * (1 - delta - alpha), out=least)
    return least


def misses(curve: TradeOff, false_alarms: float) -> float:
    """Return the share of misses at a share of false alarms: the curve's next point, never more.

    >>> round(misses(gaussian_curve(0.0), 0.05), 3)
    0.95
    """
    if not 0 <= false_alarms <= 1:
        raise Problem(f"false alarms must be a number in [0, 1], got {false_alarms:g}")
    return float(curve.type_two[np.searchsorted(curve.type_one, false_alarms)])


def _grid(type_one: ArrayLike | None) -> Array:
    """Return the given type I errors, or steps of 0.2 percent with finer ones near 0."""
    if type_one is not None:
        return np.asarray(type_one, dtype=np.float64)
    return np.concatenate([[0.0], np.geomspace(1e-6, 1e-3, 60), np.linspace(0.002, 1, 500)])


def _pairs(whole: Sequence[Event], adjacency: str) -> tuple[Array, Array]:
    """Return valid (epsilon, delta) pairs, by privacy-loss distribution or else by Renyi privacy."""
    try:
        step = _step(whole, adjacency)
        made = distribution(whole, step, adjacency)
        reach = next(e for e in map(made.epsilon_at, TAILS) if math.isfinite(e))
        epsilons = np.linspace(0, min(float(reach), MOST_EPSILON), PAIRS)
        deltas = np.nan_to_num(made.delta_at(epsilons), nan=1.0)
        return epsilons, np.clip(deltas + rounding(whole, step), 0, 1)
    except (OverflowError, MemoryError, ValueError, StopIteration):  # too little noise, or too long
        deltas = np.geomspace(TAILS[0], 0.99, PAIRS // 10)
        return np.array([renyi_epsilon(whole, float(delta), adjacency) for delta in deltas]), deltas


def _step(whole: Sequence[Event], adjacency: str) -> float:
    """Choose the grid's step as the accountant does, but finer if little noise would make it coarse."""
    coarse = interval(whole, TAILS[1], adjacency)
    return min(coarse, max(FINE_STEP, interval(whole, TAILS[1], adjacency, TIGHT_POINTS)))
