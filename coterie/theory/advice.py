"""Which silos gain by joining: mean estimation for silos that differ in size and in budget.

In the model of `mean_estimation` all silos are alike. Here each silo k has its own number of examples n_k
and its own noise. Its hidden centre is w_k ~ N(theta, tau^2), with theta unknown (a flat prior). It
publishes x_k = w_k + e_k, the mean of its examples with privacy noise on their sum, so e_k has the variance

    v_k = sigma^2 / n_k + noise_k^2 / n_k^2.

A method predicts w_k by a weighted sum sum_j a_j x_j whose weights add up to 1. Its expected error over
centres, examples and noise is

    sum_j a_j^2 v_j + tau^2 ((1 - a_k)^2 + sum_{j != k} a_j^2).

With p_j = n_j / n, S = sum_j p_j^2 v_j and D_k = (1 - p_k)^2 + sum_{j != k} p_j^2:

- Local: a = (1 for k, 0 otherwise); the error is v_k.
- FedAvg: a = p; the error is S + tau^2 D_k.
- MR-MTL: (x_k + lam * sum_j p_j x_j) / (1 + lam), with one lam for all silos. With q = lam / (1 + lam) the
  error is (1 - q)^2 v_k + 2 q (1 - q) p_k v_k + q^2 (S + tau^2 D_k).
- The best weighting, with any anchor and a lam for silo k alone, uses weights 1 / (v_j + tau^2). No
  weighting that is unbiased for every theta has less error.

As in `mean_estimation`, sizes are public, nothing is clipped, and noise is independent of the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Problem

Array = NDArray[np.float64]
MOST = 1e9


@dataclass(frozen=True, eq=False)
class Circle:
    """Two or more silos: how many `examples` n_k each has, and the `noise` on its sum (multiplier x clip).

    `deviation` is the standard deviation of examples around their silo's centre.
    """

    examples: ArrayLike
    noise: ArrayLike
    deviation: float

    def __post_init__(self) -> None:
        sizes, noise = (np.asarray(value, dtype=np.float64) for value in (self.examples, self.noise))
        if sizes.ndim != 1 or sizes.shape != noise.shape:
            raise Problem("examples and noise must be lists with one number for each silo")
        if len(sizes) < 2:
            raise Problem("there is only one silo, so it has nobody to join")
        if not (np.isfinite(sizes) & (sizes >= 1)).all():
            raise Problem("every silo must have at least one example")
        if not (np.isfinite(noise) & (noise >= 0)).all():
            raise Problem("the noise of every silo must be a finite number >= 0")
        if not 1 / MOST <= self.deviation <= MOST:
            raise Problem(f"deviation must be a number from {1 / MOST:g} to {MOST:g}, got {self.deviation:g}")

    @property
    def variances(self) -> Array:
        """Return v_k, the variance of what each silo publishes around its centre."""
        sizes, noise = (np.asarray(value, dtype=np.float64) for value in (self.examples, self.noise))
        return np.asarray(self.deviation**2 / sizes + (noise / sizes) ** 2)

    @property
    def shares(self) -> Array:
        """Return p_k, each silo's share of all examples."""
        sizes = np.asarray(self.examples, dtype=np.float64)
        return np.asarray(sizes / sizes.sum())

    @property
    def apart(self) -> Array:
        """Return D_k: tau^2 D_k is the variance of w_k around the mean of all centres, weighted by size."""
        squares = self.shares**2
        return np.asarray((1 - self.shares) ** 2 + squares.sum() - squares)

    @property
    def blurred(self) -> float:
        """Return S, the variance of the mean of all published values around the mean of the centres."""
        return float((self.shares**2 * self.variances).sum())


def check_spread(silo_spread: float) -> None:
    """Raise Problem unless tau is a number in the allowed range."""
    if not 0 <= silo_spread <= MOST:
        raise Problem(f"spread must be a number from 0 to {MOST:g}, got {silo_spread:g}")


def weighting_errors(circle: Circle, silo_spread: float, weights: ArrayLike) -> Array:
    """Return the error of each silo k that predicts with the weights in row k, which must add up to 1."""
    rows = np.asarray(weights, dtype=np.float64)
    centred = rows - np.eye(len(rows))
    return np.asarray((rows**2 * circle.variances).sum(1) + silo_spread**2 * (centred**2).sum(1))


def local_errors(circle: Circle) -> Array:
    """Return the error of each silo alone: v_k."""
    return circle.variances


def fedavg_errors(circle: Circle, silo_spread: float) -> Array:
    """Return the error of each silo under FedAvg: S + tau^2 D_k."""
    check_spread(silo_spread)
    return np.asarray(circle.blurred + silo_spread**2 * circle.apart)


def mr_mtl_errors(circle: Circle, silo_spread: float, lam: float) -> Array:
    """Return the error of each silo under MR-MTL with one lam for all; an infinite lam is FedAvg."""
    if not lam >= 0:
        raise Problem(f"lam must be a number >= 0, got {lam:g}")
    personal = 1 / (1 + lam)
    variances, shared = circle.variances, fedavg_errors(circle, silo_spread)
    mixed = 2 * personal * (1 - personal) * circle.shares * variances
    return np.asarray(personal**2 * variances + mixed + (1 - personal) ** 2 * shared)


def common_lam(circle: Circle, silo_spread: float) -> float:
    """Return the single lam that is best for all silos together, weighted by size.

    Errors are quadratic in q, so there is a closed form: lam* = v / tau^2, where v is the mean of v_k with
    weights p_k (1 - p_k). If silos do not differ (tau = 0), lam* is infinite: FedAvg is best.
    """
    check_spread(silo_spread)
    shares = circle.shares
    weights = shares * (1 - shares)
    typical = float((weights * circle.variances).sum() / weights.sum())
    return typical / silo_spread / silo_spread if silo_spread > 0 else math.inf


def best_errors(circle: Circle, silo_spread: float) -> Array:
    """Return each silo's smallest possible error over all unbiased weightings of the published values.

    With s_k = tau^2 / (v_k + tau^2) and U = sum_j 1 / (v_j + tau^2) it is s_k v_k + (1 - s_k)^2 / U. The best
    weighting pulls the silo's own mean toward the best estimate of theta.
    """
    check_spread(silo_spread)
    total = circle.variances + silo_spread**2
    kept = silo_spread**2 / total
    return np.asarray(kept * circle.variances + (1 - kept) ** 2 / (1 / total).sum())


def fedavg_limits(circle: Circle) -> Array:
    """Return for each silo the tau below which FedAvg beats Local; 0 means that it never does."""
    return np.sqrt(np.maximum(circle.variances - circle.blurred, 0) / circle.apart)


def joining_ranges(circle: Circle) -> list[tuple[float, float] | None]:
    """Return for each silo the range of tau in which MR-MTL beats Local; None means at no tau.

    MR-MTL uses the single lam that is best for all silos at that tau. A silo gains if q is less than twice
    the q that would be best for itself, a condition that is linear in tau^2. So there are four cases: it
    gains below some tau (above it, the common pull is too strong), above some tau (below it, the others'
    noise is too large), at every tau, or at none. At the end of its range the silo is indifferent.
    """
    shares, variances, apart = circle.shares, circle.variances, circle.apart
    pooled = float((shares * (1 - shares) * variances).sum())
    others = float((shares * (1 - shares)).sum())
    at_zero = pooled * (variances - circle.blurred)
    slope = 2 * variances * (1 - shares) * others - pooled * apart
    return [_range(float(a), float(b)) for a, b in zip(at_zero, slope, strict=True)]


def _range(at_zero: float, slope: float) -> tuple[float, float] | None:
    """Return the range of tau >= 0 in which at_zero + slope tau^2 is above zero."""
    if at_zero <= 0 and slope <= 0:
        return None
    if at_zero >= 0 and slope >= 0:
        return 0.0, math.inf
    turn = math.sqrt(-at_zero / slope)
    return (0.0, turn) if at_zero > 0 else (turn, math.inf)


@dataclass(frozen=True, eq=False)
class Forecast:
    """Errors of all silos at one tau (`silo_spread`): alone, under MR-MTL at its best `lam`, under FedAvg.

    `best` is the error that no unbiased weighting beats, with a pull chosen for each silo.
    """

    silo_spread: float
    lam: float
    local: Array
    mr_mtl: Array
    fedavg: Array
    best: Array

    @property
    def gains(self) -> NDArray[np.bool_]:
        """Return which silos have a smaller error under MR-MTL than alone."""
        return np.asarray(self.mr_mtl < self.local)


def forecast(circle: Circle, silo_spread: float) -> Forecast:
    """Return the expected errors of all silos at one tau."""
    lam = common_lam(circle, silo_spread)
    return Forecast(
        silo_spread,
        lam,
        local_errors(circle),
        mr_mtl_errors(circle, silo_spread, lam),
        fedavg_errors(circle, silo_spread),
        best_errors(circle, silo_spread),
    )
