"""Measures of predicted numbers, on the scale of the prepared target."""

from __future__ import annotations

import numpy as np

from .intervals import student
from .predictions import Predictions, Values
from .probabilities import mean_over_rows


def squared_error(made: Predictions, threshold: float | None = None) -> Values:
    """Return the mean squared error."""
    return mean_over_rows(made, squared_errors(made))


def squared_errors(made: Predictions) -> np.ndarray:
    """Return the squared error of each row."""
    return np.asarray((made.values - made.targets) ** 2)


def absolute_error(made: Predictions, threshold: float | None = None) -> Values:
    """Return the mean absolute error."""
    return mean_over_rows(made, absolute_errors(made))


def absolute_errors(made: Predictions) -> np.ndarray:
    """Return the absolute error of each row."""
    return np.asarray(np.abs(made.values - made.targets))


def r2(made: Predictions, threshold: float | None = None) -> Values:
    """Return one minus the squared error relative to that of predicting the mean of the silo's test rows.

    It is undefined if these rows all have the same target.
    """
    size = np.array(made.sizes, dtype=float)
    filled = np.where(size > 0, size, np.nan)
    apart = spread(made)
    error = (made.values - made.targets) ** 2
    left, all_of_it = made.totals(error) / filled, made.totals(apart[None]) / filled
    all_of_it = np.where(all_of_it > 0, all_of_it, np.nan)
    ratio = left / all_of_it
    influence = np.nan_to_num((error - ratio[:, made.silo] * apart) / all_of_it[:, made.silo])
    variance = made.totals(influence**2) / filled
    value = 1 - ratio
    limits = student(value, variance, np.broadcast_to(size, value.shape))
    return Values(value, *limits, variance / filled)


def spread(made: Predictions) -> np.ndarray:
    """Return the squared distance of each target from the mean of its silo's; 0 if these are all equal."""
    size = np.maximum(np.array(made.sizes, dtype=float), 1)
    first = made.targets[np.minimum(np.cumsum([0, *made.sizes])[:-1], len(made.targets) - 1)]
    moved = made.targets - first[made.silo]  # so that equal targets have a mean of exactly themselves
    found: np.ndarray = (moved - (made.totals(moved[None])[0] / size)[made.silo]) ** 2
    return found
