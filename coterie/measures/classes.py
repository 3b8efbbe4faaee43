"""Measures of predicted classes."""

from __future__ import annotations

import numpy as np

from .intervals import combined, share_variance, wilson
from .predictions import TWO, Predictions, Values
from .ranks import mean_of


def share(part: np.ndarray, whole: np.ndarray) -> Values:
    """Return a share of rows with Wilson's interval; undefined without rows."""
    whole = np.broadcast_to(whole, part.shape)
    value = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return Values(value, *wilson(value, whole), share_variance(value, whole))


def accuracy(made: Predictions, threshold: float | None = None) -> Values:
    """Return the share of right predictions."""
    return share(made.totals(hits(made)), np.array(made.sizes))


def hits(made: Predictions) -> np.ndarray:
    """Return 1 for each right prediction, else 0."""
    return np.asarray(made.predicted == made.targets, dtype=float)


def recall(made: Predictions, of_class: int) -> Values:
    """Return the share of a class's rows that are predicted as that class."""
    right = (made.predicted == of_class) & (made.targets == of_class)
    return share(made.totals(right), made.counts(of_class))


def balanced_accuracy(made: Predictions, threshold: float | None = None) -> Values:
    """Return the mean of the recalls of the classes that have test rows; undefined if only one has."""
    parts = [recall(made, c) for c in range(made.classes)]
    stacked = Values(*(np.stack(columns, -1) for columns in zip(*parts, strict=True)))
    known = ~np.isnan(stacked.value)
    count = np.maximum(known.sum(-1), 1)
    variance = np.where(known, stacked.variance, 0).sum(-1) / count**2
    found = Values(*combined(np.ones(made.classes), stacked), variance)
    return Values(*(np.where(known.sum(-1) > 1, column, np.nan) for column in found))


def sensitivity(made: Predictions, threshold: float | None = None) -> Values:
    """Return the share of the second class's rows with a score above the threshold."""
    above = _above(made, threshold)
    return share(made.totals(above & (made.targets == 1)), made.counts(1))


def specificity(made: Predictions, threshold: float | None = None) -> Values:
    """Return the share of the first class's rows with a score at most the threshold."""
    above = _above(made, threshold)
    return share(made.totals(~above & (made.targets == 0)), made.counts(0))


def f1(made: Predictions, threshold: float | None = None) -> Values:
    """Return F1 of the second class; of several classes, the mean over those with rows or predictions."""
    if made.kind == TWO:
        return f1_of(made, _above(made, threshold), made.targets == 1)
    return mean_of([f1_of(made, made.predicted == c, made.targets == c) for c in range(made.classes)])


def f1_of(made: Predictions, called: np.ndarray, true: np.ndarray) -> Values:
    """Return 2 TP / (2 TP + FP + FN); undefined if nothing is true and nothing is called so."""
    hits, either = made.totals(called & true), made.totals(called | true)
    jaccard = share(hits, either)
    value, low, high = (2 * each / (1 + each) for each in jaccard[:3])
    return Values(value, low, high, jaccard.variance * 4 / (1 + jaccard.value) ** 4)


def _above(made: Predictions, threshold: float | None) -> np.ndarray:
    if threshold is None:
        return np.asarray(made.predicted == 1)
    return np.asarray(made.score > threshold)
