"""Measures of a run as records: each silo's, and that of all silos."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .catalogue import Metric
from .intervals import combined
from .numbers import spread
from .predictions import NUMBER, SEVERAL, Predictions


@dataclass(frozen=True)
class Estimate:
    """A value with the limits of its interval; NaN where they are not defined."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Measured:
    """One measure in one run: over all silos, and in each.

    `undefined` are the silos that are left out of the mean, since `why`. In those of `partial`, some of
    several classes have no test rows and are left out.
    """

    value: float
    low: float
    high: float
    higher_is_better: bool
    silos: dict[str, Estimate] = field(default_factory=dict)
    undefined: tuple[str, ...] = ()
    why: str = ""
    partial: tuple[str, ...] = ()


def measure(metric: Metric, made: Predictions, names: Sequence[str]) -> list[Measured]:
    """Return a measure in each run."""
    found = metric.values(made)
    value, low, high, _ = found
    whole = np.stack(combined(np.array(made.sizes, dtype=float), found), -1)
    whole[~made.sound.all(1)] = np.nan  # as the score of a run in which a model diverged
    lacking = _lacking(made) if metric.by_class else np.zeros(len(made.sizes), dtype=bool)
    measures = []
    for r in range(made.runs):
        rows = zip(value[r].tolist(), low[r].tolist(), high[r].tolist(), strict=True)
        silos = {name: Estimate(*row) for name, row in zip(names, rows, strict=True)}
        lost = np.isnan(value[r]) & made.sound[r]
        undefined = tuple(name for name, gone in zip(names, lost.tolist(), strict=True) if gone)
        mean, least, most = whole[r].tolist()
        why = metric.undefined if undefined else ""
        partial = tuple(np.array(names)[lacking & ~np.isnan(value[r])].tolist())
        measures.append(Measured(mean, least, most, metric.higher_is_better, silos, undefined, why, partial))
    return measures


def _lacking(made: Predictions) -> np.ndarray:
    """Return which silos have no test rows of one of several classes."""
    if made.kind != SEVERAL:
        return np.zeros(len(made.sizes), dtype=bool)
    return np.asarray(np.min([made.counts(c) for c in range(made.classes)], axis=0) == 0)


def constant_score(made: Predictions) -> float:
    """Return what the best constant predictions score over all silos, a constant for each silo.

    That is the accuracy of each silo's most frequent class, or the squared error of its mean.
    """
    rows = sum(made.sizes)
    return float(_constant_totals(made).sum() / rows) if rows else math.nan


def silos_no_better(made: Predictions, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the silos, in each run, whose models score no better than the best constant prediction."""
    constant, filled = _constant_totals(made), np.array(made.sizes) > 0
    if made.kind == NUMBER:
        poor = made.totals((made.values - made.targets) ** 2) >= constant
    else:
        poor = made.totals(made.predicted == made.targets) <= constant
    poor &= made.sound & filled
    return [tuple(name for name, is_poor in zip(names, row, strict=True) if is_poor) for row in poor.tolist()]


def _constant_totals(made: Predictions) -> np.ndarray:
    """Return the scores of each silo's best constant prediction, added up over its test rows."""
    if made.kind == NUMBER:
        return np.asarray(made.totals(spread(made)[None])[0])
    return np.asarray(np.max([made.counts(c) for c in range(made.classes)], axis=0))


def class_shares(targets: np.ndarray, classes: int) -> list[float]:
    """Return the share of each class."""
    counts = np.bincount(targets.astype(int), minlength=classes)
    return [float(count) / max(1, len(targets)) for count in counts]


def read_measured(content: dict[str, Any]) -> Measured:
    """Return a measure read from `result.json`, where null means that a number is not defined."""

    def number(value: float | None) -> float:
        return math.nan if value is None else float(value)

    silos = {
        name: Estimate(*(number(each[key]) for key in ("value", "low", "high")))
        for name, each in content["silos"].items()
    }
    value, low, high = (number(content[key]) for key in ("value", "low", "high"))
    better, undefined = bool(content["higher_is_better"]), tuple(content["undefined"])
    partial = tuple(content.get("partial", ()))
    return Measured(value, low, high, better, silos, undefined, str(content["why"]), partial)
