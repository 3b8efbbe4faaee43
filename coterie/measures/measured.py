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
from .ranks import mean_of


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


def measure(metric: Metric, each: Sequence[Predictions], names: Sequence[str]) -> list[Measured]:
    """Return a measure in each run; of several targets, the mean of those that are defined in a silo."""
    parts, made = [metric.values(target) for target in each], each[0]
    found = parts[0] if len(parts) == 1 else mean_of(parts)
    value, low, high, _ = found
    sound = np.all([target.sound for target in each], axis=0)
    value[~sound] = np.nan
    whole = np.stack(combined(np.array(made.sizes, dtype=float), found), -1)
    whole[~sound.all(1)] = np.nan  # as the score of a run in which a model diverged
    measures = []
    for r in range(made.runs):
        lacking = np.any([np.isnan(part.value[r]) for part in parts], axis=0)
        if len(parts) == 1 and metric.by_class:
            lacking = _lacking(made)
        rows = zip(value[r].tolist(), low[r].tolist(), high[r].tolist(), strict=True)
        silos = {name: Estimate(*row) for name, row in zip(names, rows, strict=True)}
        lost = np.isnan(value[r]) & sound[r]
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


def constant_score(each: Sequence[Predictions]) -> float:
    """Return what the best constant predictions score over all silos, a constant for each silo and target.

    That is the accuracy of each silo's most frequent class, or the squared error of its mean.
    """
    rows = sum(each[0].sizes) * len(each)
    return float(sum(_constant_totals(made).sum() for made in each) / rows) if rows else math.nan


def silos_no_better(each: Sequence[Predictions], names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the silos, in each run, whose models score no better than the best constant predictions."""
    constant = np.sum([_constant_totals(made) for made in each], axis=0)
    if each[0].kind == NUMBER:
        poor = np.sum([made.totals((made.values - made.targets) ** 2) for made in each], axis=0) >= constant
    else:
        poor = np.sum([made.totals(made.predicted == made.targets) for made in each], axis=0) <= constant
    poor &= np.all([made.sound for made in each], axis=0) & (np.array(each[0].sizes) > 0)
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
