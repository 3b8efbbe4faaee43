"""Measures from noisy counts (`histogram`), with intervals that include the noise.

Every measure here is a ratio of counts, or of products of counts. So it is the t at which a *balance* is 0:
- a share, such as sensitivity: B(t) = part - t whole. By the choice of test rows, given their number, it has
  the variance whole t (1 - t), as in Wilson's interval;
- the AUC: B(t) = sum over cells i, j of a_i b_j (K_ij - t), where a_i are positive and b_j negative rows, and
  K is 1 for i > j, 1/2 for i = j, else 0. By the choice of rows it has (pairs)^2 times `auc_variance`.

Independent noise of mean 0 does not move the mean of a balance, not even that of the products. It adds a
variance. For a share that is known. For the AUC it is s^2 (|(K - t) b|^2 + |(K - t)' a|^2) + s^4 |K - t|^2
of the true counts. Squares of noisy counts exceed it by s^2 |K - t|^2 each on average, which is subtracted.

The interval holds every t at which the balance is within z standard deviations of 0 (Fieller's method). So it
is wide, up to all of [0, 1], if the noise drowns the counts; it never relies on a noisy denominator. That of
the AUC is wider by what the order within cells could change: half of the pairs that share a cell. Balances of
silos add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .intervals import Z, auc_variance

POINTS = np.linspace(0.0, 1.0, 2001)


@dataclass(frozen=True, eq=False)
class Balance:
    """A balance at each of `POINTS`: its value and variance, and how far it may be off for other reasons.

    It is `part` - t `whole` everywhere.
    """

    part: float
    whole: float
    variance: np.ndarray
    slack: float = 0.0

    def __add__(self, other: Balance) -> Balance:
        return Balance(
            self.part + other.part,
            self.whole + other.whole,
            self.variance + other.variance,
            self.slack + other.slack,
        )

    def estimate(self) -> tuple[float, float, float] | None:
        """Return the value and its interval; None if the counts leave nothing to divide by."""
        if not self.whole > 0:
            return None
        value = min(max(self.part / self.whole, 0.0), 1.0)
        far = np.abs(self.part - POINTS * self.whole) - self.slack
        held = POINTS[far <= Z * np.sqrt(self.variance)]
        if not len(held):
            return value, value, value
        return value, min(value, float(held[0])), max(value, float(held[-1]))


def share_balance(part: np.ndarray, rest: np.ndarray, deviation: float) -> Balance:
    """Return the balance of the share that the cells of `part` have in all of `part` and `rest`."""
    inside, whole = float(part.sum()), float(part.sum() + rest.sum())
    noise = deviation**2 * (part.size * (1 - POINTS) ** 2 + rest.size * POINTS**2)
    return Balance(inside, whole, noise + max(whole, 1.0) * POINTS * (1 - POINTS))


def auc_balance(positive: np.ndarray, negative: np.ndarray, deviation: float) -> Balance:
    """Return the balance of the AUC, from noisy counts of both classes in each cell, lowest score first."""
    places = np.arange(len(positive))
    wins = np.sign(places[:, None] - places) / 2 + 0.5
    pairs = float(positive.sum() * negative.sum())
    square = _length(wins.reshape(-1), np.ones(wins.size))
    of_positive = _length(wins @ negative, np.full(len(places), negative.sum()))
    of_negative = _length(positive @ wins, np.full(len(places), positive.sum()))
    variance = deviation**2 * (of_positive + of_negative) - deviation**4 * square
    noise = np.maximum(variance, deviation**4 * square)
    rows = max(float(positive.sum()), 1.0), max(float(negative.sum()), 1.0)
    chosen = (rows[0] * rows[1]) ** 2 * auc_variance(POINTS, *(np.array(count) for count in rows))
    shared = max(float((positive * negative).sum()), 0.0)
    return Balance(float(positive @ wins @ negative), pairs, noise + chosen, shared / 2)


def _length(start: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return |start - t slope|^2 at each point t."""
    found: np.ndarray = start @ start - 2 * POINTS * (start @ slope) + POINTS**2 * (slope @ slope)
    return found


def balances(table: np.ndarray, deviation: float, edges: Sequence[float] | None) -> dict[str, Balance]:
    """Return the balances of a silo's noisy table: of two classes (with `edges`) or of several."""
    if edges is None:
        classes = len(table)
        right = np.eye(classes, dtype=bool)
        found = {"accuracy": share_balance(table[right], table[~right], deviation)}
        for c in range(classes):
            own = np.arange(classes) == c
            found[f"sensitivity of {c}"] = share_balance(table[c, own], table[c, ~own], deviation)
        return found
    negative, positive = table
    middle = list(edges).index(0.5) + 1
    found = {
        "auc": auc_balance(positive, negative, deviation),
        "accuracy": share_balance(
            np.concatenate([negative[:middle], positive[middle:]]),
            np.concatenate([negative[middle:], positive[:middle]]),
            deviation,
        ),
    }
    for place, edge in enumerate(edges, 1):
        at = "" if edge == 0.5 else f"@{edge:g}"
        found[f"sensitivity{at}"] = share_balance(positive[place:], positive[:place], deviation)
        found[f"specificity{at}"] = share_balance(negative[:place], negative[place:], deviation)
    return found


def calibration(table: np.ndarray, deviation: float) -> list[Balance]:
    """Return the balance of the share of positive rows in each cell of a noisy table of two classes."""
    return [share_balance(table[1, [k]], table[0, [k]], deviation) for k in range(table.shape[1])]
