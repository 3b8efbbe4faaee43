"""Measures of predicted probabilities."""

from __future__ import annotations

import numpy as np

from .intervals import student
from .predictions import TWO, Predictions, Values, without_interval

CELLS = 10  # of predicted probabilities, equally wide
TINY = float(np.finfo(np.float64).eps)


def mean_over_rows(made: Predictions, points: np.ndarray) -> Values:
    """Return the mean of what each row adds, all at least 0, with Student's interval."""
    count = np.broadcast_to(np.array(made.sizes, dtype=float), (len(points), len(made.sizes)))
    filled = np.where(count > 0, count, np.nan)
    mean = made.totals(points) / filled
    variance = made.totals((points - np.nan_to_num(mean)[:, made.silo]) ** 2) / filled
    return Values(mean, *student(mean, variance, count, least=0.0), variance / filled)


def log_loss(made: Predictions, threshold: float | None = None) -> Values:
    """Return the mean of -log of the true class's probability."""
    true = made.values[:, np.arange(len(made.targets)), made.targets]
    return mean_over_rows(made, -np.log(np.clip(true, TINY, 1.0)))


def brier(made: Predictions, threshold: float | None = None) -> Values:
    """Return the squared error of the second class's probability; of several classes, the sum of all."""
    return mean_over_rows(made, brier_of_rows(made))


def brier_of_rows(made: Predictions) -> np.ndarray:
    """Return what each row adds to the Brier score."""
    if made.kind == TWO:
        return np.asarray((made.values[..., 1] - made.targets) ** 2)
    true = made.targets[:, None] == np.arange(made.classes)
    return np.asarray(((made.values - true) ** 2).sum(2))


def calibration_error(made: Predictions, threshold: float | None = None) -> Values:
    """Return how far probabilities are from frequencies: the mean over ten cells, weighted by their rows.

    Of two classes these are the probabilities of the second; of several, those of the predicted class. With
    few rows chance alone makes it larger, by an unknown amount, so it has no interval.
    """
    if made.kind == TWO:
        said, true = made.values[..., 1], np.broadcast_to(made.targets == 1, made.values.shape[:2])
    else:
        called = np.asarray(made.predicted)
        said = np.take_along_axis(made.values, called[..., None], 2)[..., 0]
        true = called == made.targets
    cell = np.minimum((said * CELLS).astype(int), CELLS - 1)
    error = np.zeros((made.runs, len(made.sizes)))
    for number in range(CELLS):
        error += np.abs(made.totals(np.where(cell == number, said - true, 0.0)))
    size = np.array(made.sizes, dtype=float)
    mean = error / np.where(size > 0, size, np.nan)
    return without_interval(mean)
