"""Gaussian differential privacy: closed forms.

`delta_of` and `epsilon_of` are exact for the Gaussian mechanism. The estimates by the central limit
theorem only start searches: they can be too small, so they are never certified.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr


def delta_of(mu: float, epsilon: float) -> float:
    """Return the delta of a mu-Gaussian mechanism at epsilon (Dong, Roth, Su 2022, corollary 2.13)."""
    tail = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(ndtr(-epsilon / mu + mu / 2) - math.exp(min(tail, 0.0)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the epsilon of a mu-Gaussian mechanism at delta."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return float(brentq(lambda e: delta_of(mu, e) - delta, 0.0, high, xtol=1e-12 * high, rtol=1e-10))


def estimated_mu(noise: float, rate: float, steps: int) -> float:
    """Return the mu that Poisson-sampled Gaussian steps tend to: p sqrt(T (e^(1/z^2) - 1))."""
    unsampled = math.sqrt(steps) / noise
    exponent = 1 / noise**2
    if rate >= 1 or exponent > 500:
        return unsampled
    return min(unsampled, rate * math.sqrt(steps * math.expm1(exponent)))


def estimate_noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the noise multiplier at which the central limit gives epsilon."""

    def excess(log_noise: float) -> float:
        mu = estimated_mu(math.exp(log_noise), rate, steps)
        return math.log(max(epsilon_of(mu, delta), 1e-300)) - math.log(epsilon)

    low, high = math.log(1e-2), math.log(1e7)
    for end, sign in ((low, -1), (high, 1)):
        if sign * excess(end) > 0:
            return math.exp(end)
    return math.exp(float(brentq(excess, low, high, xtol=1e-4)))
