"""What models predict for all test rows of all silos, in several runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

NUMBER, TWO, SEVERAL = "a number", "two classes", "several classes"
KINDS = (NUMBER, TWO, SEVERAL)


class Values(NamedTuple):
    """A measure in each run and silo, `[runs, silos]`, with the limits of its interval; NaN if undefined.

    `variance` is that of the value, where the interval's width does not say it.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    variance: np.ndarray


def without_interval(value: np.ndarray) -> Values:
    """Return values that have no interval."""
    return Values(value, *(np.full_like(value, np.nan) for _ in range(3)))


@dataclass(frozen=True, eq=False)
class Predictions:
    """Test rows, those of the first silo first, and what the silos' models predict for them in each run.

    `targets` `[rows]` are numbers, or numbers of classes. `values` are predicted numbers `[runs, rows]`, or a
    score for each class `[runs, rows, classes]`: its probability, if `probable`. `predicted` `[runs, rows]`
    are the predicted classes. `sound` `[runs, silos]` says which models have finite predictions only. In
    `values`, those of the others are zeros; `given` has them as they are.
    """

    kind: str
    sizes: tuple[int, ...]
    targets: np.ndarray
    values: np.ndarray
    sound: np.ndarray
    predicted: np.ndarray
    given: np.ndarray
    probable: bool = False

    @property
    def runs(self) -> int:
        """The number of runs."""
        return len(self.values)

    @property
    def classes(self) -> int:
        """The number of classes; 0 for a number."""
        return 0 if self.kind == NUMBER else int(self.values.shape[2])

    @cached_property
    def silo(self) -> np.ndarray:
        """The silo of each row."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def score(self) -> np.ndarray:
        """The score of the second of two classes, `[runs, rows]`: its probability, if `probable`."""
        return score_of(self.values, self.probable)

    def counts(self, of_class: int) -> np.ndarray:
        """Return the number of rows of a class in each silo."""
        return np.asarray(self.totals((self.targets == of_class)[None])[0])

    def totals(self, points: np.ndarray) -> np.ndarray:
        """Return sums over the rows of each silo, `[runs, silos]`, of `[runs, rows]`."""
        made = np.zeros((len(points), len(self.sizes)))
        filled = [k for k, size in enumerate(self.sizes) if size]
        if filled:
            starts = np.cumsum([0, *self.sizes])[filled]
            made[:, filled] = np.add.reduceat(points.astype(float, copy=False), starts, axis=1)
        return made

    def checked(self) -> Predictions:
        """Return the same, with zeros in place of what models predict that are not sound."""
        bare = ~self.sound[:, self.silo]
        if not bare.any():
            return self
        values = self.values.copy()
        values[bare] = 0.0
        return replace(self, values=values)


def score_of(values: np.ndarray, probable: bool) -> np.ndarray:
    """Return the score of the second of two classes: its probability, or by how much it exceeds the first."""
    first, second = values[..., 0], values[..., 1]
    return np.asarray(second if probable else second - first)


def predictions(
    kind: str,
    sizes: tuple[int, ...],
    targets: np.ndarray,
    values: np.ndarray,
    predicted: np.ndarray | None = None,
    probable: bool = False,
) -> Predictions:
    """Return predictions; a model that gives a number that is not finite is not sound."""
    finite = np.isfinite(values)
    rows = finite if values.ndim == 2 else finite.all(2)
    called = np.empty(0) if predicted is None else predicted
    made = Predictions(kind, sizes, targets, values, np.empty(0), called, values, probable)
    sound = made.totals(~rows) == 0
    return replace(made, sound=sound).checked()
