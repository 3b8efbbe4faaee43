"""Intervals in closed form, of arrays of any shape; their level is 95 %.

Where an estimate is not defined, neither is its interval: NaN comes out as NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri, stdtrit

if TYPE_CHECKING:
    from .predictions import Values

LEVEL = 0.95
Z = float(ndtri((1 + LEVEL) / 2))
HALVINGS = 50


def wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson's score interval of a share of `count` rows.

    >>> low, high = wilson(np.array(0.9), np.array(10))
    >>> round(float(low), 4), round(float(high), 4)
    (0.5958, 0.9821)
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = Z**2 / np.where(count > 0, count, np.nan)
        centre = (share + squares / 2) / (1 + squares)
        half = Z * np.sqrt(share * (1 - share) / count + squares / (4 * count)) / (1 + squares)
    return np.clip(centre - half, 0, share), np.clip(centre + half, share, 1)


def auc_interval(
    auc: np.ndarray, positive: np.ndarray, negative: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of an AUC of `positive` and `negative` rows, by Newcombe 2006, method 5.

    It holds all t with (auc - t)^2 <= z^2 V(t), where V is `auc_variance`. So it is sensible for an AUC of 1.
    """

    def outside(at: np.ndarray) -> np.ndarray:
        return np.asarray((auc - at) ** 2 > Z**2 * auc_variance(at, positive, negative))

    low, high = np.zeros_like(auc), np.ones_like(auc)
    inner_low, inner_high = auc.copy(), auc.copy()
    for _ in range(HALVINGS):
        middle = (low + inner_low) / 2
        beyond = outside(middle)
        low, inner_low = np.where(beyond, middle, low), np.where(beyond, inner_low, middle)
        middle = (high + inner_high) / 2
        beyond = outside(middle)
        high, inner_high = np.where(beyond, middle, high), np.where(beyond, inner_high, middle)
    unknown = np.isnan(auc)
    return np.where(unknown, np.nan, low), np.where(unknown, np.nan, high)


def auc_variance(auc: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Return the variance of an AUC (Hanley and McNeil's form, as Newcombe 2006 symmetrises it)."""
    more = (positive + negative) / 2 - 1
    inside = 1 + more * (1 - auc) / (2 - auc) + more * auc / (1 + auc)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: np.ndarray = auc * (1 - auc) * inside / (positive * negative)
    return found


def student(
    mean: np.ndarray, variance: np.ndarray, count: np.ndarray, least: float = -np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """Return Student's interval of a mean of `count` numbers with this variance (its divisor is `count`)."""
    free = np.where(count > 1, count - 1.0, np.nan)
    half = stdtrit(free, (1 + LEVEL) / 2) * np.sqrt(np.maximum(variance, 0) / free)
    return np.maximum(mean - half, least), mean + half


def share_variance(share: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return an unbiased estimate of the variance of a share of `count` rows; of one row, the largest one."""
    with np.errstate(invalid="ignore"):
        found = np.where(count > 1, share * (1 - share) / np.maximum(count - 1, 1), 0.25)
    return np.where(np.isnan(share), np.nan, found)


def combined(weights: np.ndarray, parts: Values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weighted mean of independent estimates over the last axis, and its interval.

    The interval is recovered from theirs, as in the method of variance estimates recovery (Zou and Donner
    2008), but by cumulants. Half of an interval's width is about z standard deviations; if the variances say
    more in all, they count. By how much an interval's middle is off the estimate is proportional to the
    third cumulant over the variance. Both cumulants add up with powers of the weights. So the mean of many
    estimates has a nearly symmetric interval, and that of one has its own, or a wider one.

    NaN estimates are left out. The limits are NaN if one of the others has none.
    """
    value, low, high, variance = parts
    known = ~np.isnan(value)
    share = np.where(known, weights, 0.0)
    total = share.sum(-1, keepdims=True)
    share = np.divide(share, total, out=np.zeros_like(share), where=total > 0)

    def added(parts: np.ndarray) -> np.ndarray:
        summed: np.ndarray = np.where(share > 0, parts, 0.0).sum(-1)
        return np.where(total[..., 0] > 0, summed, np.nan)

    half, middle = (high - low) / 2, (high + low) / 2
    mean, recovered = added(share * value), added((share * half) ** 2)
    third = added(share**3 * half**2 * (middle - value))
    shift = np.divide(third, recovered, out=np.where(np.isnan(recovered), np.nan, 0.0), where=recovered > 0)
    reach = np.sqrt(np.fmax(recovered, Z**2 * added(share**2 * variance))) + 0 * recovered
    return mean, np.minimum(mean, mean + shift - reach), np.maximum(mean, mean + shift + reach)
