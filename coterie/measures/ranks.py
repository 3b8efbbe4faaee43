"""AUC and average precision: measures of how models order the rows of two classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .intervals import auc_interval, auc_variance, share_variance, wilson
from .predictions import TWO, Predictions, Values


class Ordered:
    """The rows of each run and silo, sorted by a score, in groups of equal scores.

    `positive`, `negative` are the counts of each group, `above_*` those of all groups with greater scores in
    the same run and silo, and `segment` its run and silo.
    """

    def __init__(self, scores: np.ndarray, is_positive: np.ndarray, silo: np.ndarray, silos: int) -> None:
        runs, rows = scores.shape
        segment = (np.arange(runs)[:, None] * silos + silo).reshape(-1)
        flat, flags = scores.reshape(-1), np.broadcast_to(is_positive, (runs, rows)).reshape(-1)
        order = np.lexsort((-flat, segment))
        flat, segment, flags = flat[order], segment[order], flags[order]
        new = np.ones(len(flat), dtype=bool)
        new[1:] = (flat[1:] != flat[:-1]) | (segment[1:] != segment[:-1])
        starts = np.flatnonzero(new)
        size = np.diff(starts, append=len(flat))
        self.positive = np.add.reduceat(flags.astype(float), starts) if len(starts) else np.empty(0)
        self.negative = size - self.positive
        self.segment, self.shape = segment[starts], (runs, silos)
        first = np.searchsorted(self.segment, self.segment)  # the first group of each one's segment
        self.above_positive, self.above_negative = (
            (before := np.cumsum(part) - part) - before[first] for part in (self.positive, self.negative)
        )

    def total(self, points: np.ndarray) -> np.ndarray:
        """Return the sum over the groups of each run and silo."""
        runs, silos = self.shape
        return np.bincount(self.segment, points, runs * silos).reshape(self.shape)


def auc_of(scores: np.ndarray, is_positive: np.ndarray, silo: np.ndarray, silos: int) -> Values:
    """Return the AUC of scores `[runs, rows]`; pairs with equal scores count half."""
    ordered = Ordered(scores, is_positive, silo, silos)
    won = ordered.total(ordered.negative * (ordered.above_positive + ordered.positive / 2))
    positive, negative = ordered.total(ordered.positive), ordered.total(ordered.negative)
    pairs = positive * negative
    auc = np.divide(won, pairs, out=np.full(won.shape, np.nan), where=pairs > 0)
    return Values(auc, *auc_interval(auc, positive, negative), auc_variance(auc, positive, negative))


def precision_of(scores: np.ndarray, is_positive: np.ndarray, silo: np.ndarray, silos: int) -> Values:
    """Return the average precision of scores `[runs, rows]`; undefined if all rows are of one class."""
    ordered = Ordered(scores, is_positive, silo, silos)
    found = ordered.above_positive + ordered.positive
    shown = found + ordered.above_negative + ordered.negative
    positive = ordered.total(ordered.positive)
    gained = ordered.total(ordered.positive * found / shown)
    both = (positive > 0) & (ordered.total(ordered.negative) > 0)
    value = np.divide(gained, positive, out=np.full(gained.shape, np.nan), where=both)
    return Values(value, *wilson(value, positive), share_variance(value, positive))


def auc(made: Predictions, threshold: float | None = None) -> Values:
    """Return the area under the ROC curve; of several classes, the mean of each against the rest.

    Classes without test rows in a silo are left out there.
    """
    return _over_classes(made, auc_of)


def average_precision(made: Predictions, threshold: float | None = None) -> Values:
    """Return the average precision; of several classes, the mean of each against the rest."""
    return _over_classes(made, precision_of)


def _over_classes(
    made: Predictions, measure: Callable[[np.ndarray, np.ndarray, np.ndarray, int], Values]
) -> Values:
    silos = len(made.sizes)
    if made.kind == TWO:
        return measure(made.score, made.targets == 1, made.silo, silos)
    return mean_of(
        [
            measure(made.values[..., c], made.targets == c, made.silo, silos)
            for c in range(made.classes)
            if (made.targets == c).any()
        ]
    )


def mean_of(parts: list[Values]) -> Values:
    """Return the means of classes' values and limits, without the classes that are undefined in a silo.

    The variance is that of estimates that err together.
    """
    parts = [part._replace(variance=np.sqrt(part.variance)) for part in parts]
    known = [~np.isnan(part.value) for part in parts]
    count = np.sum(known, axis=0)
    found = Values(
        *(
            np.divide(
                np.sum([np.where(k, column, 0.0) for k, column in zip(known, columns, strict=True)], axis=0),
                count,
                out=np.full(count.shape, np.nan),
                where=count > 0,
            )
            for columns in zip(*parts, strict=True)
        )
    )
    return found._replace(variance=found.variance**2)
