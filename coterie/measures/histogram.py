"""Counts of test rows by class and score, from which noised measures follow (`private`).

Of two classes, a silo counts its rows by class and by the cell of their score: `[2, cells]`. Of several, by
class and predicted class: `[classes, classes]`. The edges of the cells are public. The score is the
probability of the second class. If the loss gives no probabilities, it is the logistic function of the
difference between the two scores.

Formal guarantee: each row is in exactly one cell, whatever the model is. Which one depends on the model and
this row only, also if the model gives a number for a row that is not finite. So replacing a row by a null
one, which is not counted, moves one count by 1, and the table has an L2 sensitivity of 1. With Gaussian noise
of deviation s in every cell it is one Gaussian release with the noise multiplier s. Whatever is computed from
the noisy table is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import Problem
from .predictions import NUMBER, TWO, Predictions, score_of

EDGES = (0.02, 0.05, 0.1, 0.18, 0.27, 0.38, 0.5, 0.62, 0.73, 0.82, 0.9, 0.95, 0.98)
MOST_EDGES = 127
MOST_CLASSES = 40


def check_edges(edges: Sequence[float], key: str) -> None:
    """Raise `Problem` unless edges are increasing probabilities, .5 among them."""
    numbers = np.asarray(edges, dtype=float)
    if not len(numbers) or len(numbers) > MOST_EDGES or not ((numbers > 0) & (numbers < 1)).all():
        raise Problem(f"{key}: expected 1 to {MOST_EDGES} probabilities between 0 and 1, got {list(edges)}")
    if (np.diff(numbers) <= 0).any():
        raise Problem(f"{key}: expected increasing numbers, got {list(edges)}")
    if 0.5 not in numbers:
        raise Problem(f"{key}: 0.5 must be among them, because classes are predicted by it")


def shape_of(kind: str, classes: int, edges: Sequence[float] = EDGES) -> tuple[int, int]:
    """Return the shape of a silo's table of counts."""
    if kind == NUMBER:
        raise Problem("a histogram of scores needs classes, but the target is a number")
    if kind == TWO:
        return 2, len(edges) + 1
    if classes > MOST_CLASSES:
        raise Problem(
            f"a table of confusions is for at most {MOST_CLASSES} classes, but the data has {classes}"
        )
    return classes, classes


def counts_of(made: Predictions, edges: Sequence[float] = EDGES) -> np.ndarray:
    """Return the table of each run and silo, `[runs, silos, rows of the table, columns]`."""
    shape = shape_of(made.kind, made.classes, edges)
    cell = made.predicted
    if made.kind == TWO:
        cell = np.searchsorted(np.asarray(edges), probability(made), side="left")
    cell = np.clip(cell, 0, shape[1] - 1)
    runs, silos = made.runs, len(made.sizes)
    group = np.arange(runs)[:, None] * silos + made.silo
    place = (group * shape[0] + made.targets) * shape[1] + cell
    total = runs * silos * shape[0] * shape[1]
    return np.bincount(place.reshape(-1), minlength=total).astype(float).reshape(runs, silos, *shape)


def probability(made: Predictions) -> np.ndarray:
    """Return the score of the second of two classes as a number from 0 to 1; 0 if it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        score = score_of(made.given, made.probable)
        found = score if made.probable else 1 / (1 + np.exp(-score))
    return np.where(np.isfinite(made.given).all(-1), found, 0.0)
