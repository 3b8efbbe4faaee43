"""The measures by their names, and which of them a result has by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import Problem, nearest, shown
from .classes import accuracy, balanced_accuracy, f1, hits, sensitivity, specificity
from .numbers import absolute_error, absolute_errors, r2, squared_error, squared_errors
from .predictions import KINDS, NUMBER, SEVERAL, TWO, Predictions, Values
from .probabilities import brier, brier_of_rows, calibration_error, log_loss
from .ranks import auc, average_precision

KEY = "report.metrics"
RARE = 0.2  # of two classes; of several, the same part of an even share
ONE_CLASS = "their test rows are all of one class"
NO_FIRST, NO_SECOND = (f"they have no test rows of the {which} class" for which in ("first", "second"))
NEITHER = "the second class is neither in their test rows nor predicted"


@dataclass(frozen=True)
class Metric:
    """A measure: what it computes, of which kinds of task, and why it can be undefined in a silo.

    With a `threshold`, the second of two classes is predicted above it. `by_threshold` says whether it may
    have one. If it is a mean over rows, `rows` returns what each adds; `by_class` says whether it is a mean
    over the classes that have test rows.
    """

    name: str
    compute: Callable[[Predictions, float | None], Values]
    kinds: tuple[str, ...] = (TWO, SEVERAL)
    higher_is_better: bool = True
    undefined: str = "they have no test rows"
    needs_probabilities: bool = False
    by_threshold: bool = False
    threshold: float | None = None
    rows: Callable[[Predictions], np.ndarray] | None = None
    by_class: bool = False

    def values(self, made: Predictions) -> Values:
        """Return the measure in each run and silo, `[runs, silos]`; NaN where a model is not sound."""
        found = self.compute(made, self.threshold)
        return Values(*(np.where(made.sound, column, np.nan) for column in found))


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", accuracy, rows=hits),
        Metric("balanced-accuracy", balanced_accuracy, undefined=ONE_CLASS, by_class=True),
        Metric("auc", auc, undefined=ONE_CLASS, by_class=True),
        Metric("average-precision", average_precision, undefined=ONE_CLASS, by_class=True),
        Metric("sensitivity", sensitivity, (TWO,), undefined=NO_SECOND, by_threshold=True),
        Metric("specificity", specificity, (TWO,), undefined=NO_FIRST, by_threshold=True),
        Metric("f1", f1, undefined=NEITHER, by_threshold=True),
        Metric("log-loss", log_loss, higher_is_better=False, needs_probabilities=True),
        Metric("brier", brier, higher_is_better=False, needs_probabilities=True, rows=brier_of_rows),
        Metric("calibration-error", calibration_error, higher_is_better=False, needs_probabilities=True),
        Metric("mse", squared_error, (NUMBER,), higher_is_better=False, rows=squared_errors),
        Metric("mae", absolute_error, (NUMBER,), higher_is_better=False, rows=absolute_errors),
        Metric("r2", r2, (NUMBER,), undefined="the targets of their test rows are all the same"),
    )
}
ALSO_CALLED = {
    "roc-auc": "auc",
    "auroc": "auc",
    "recall": "sensitivity",
    "tpr": "sensitivity",
    "tnr": "specificity",
    "ap": "average-precision",
    "auprc": "average-precision",
    "pr-auc": "average-precision",
    "nll": "log-loss",
    "cross-entropy": "log-loss",
    "ece": "calibration-error",
    "squared": "mse",
    "rmse": "mse",
    "absolute": "mae",
    "r-squared": "r2",
}


@dataclass(frozen=True)
class Facts:
    """What decides which measures fit: the kind of task, its loss, and whether that gives probabilities."""

    kind: str
    loss: str
    probable: bool


def read_metrics(names: Sequence[str], facts: Facts) -> tuple[Metric, ...]:
    """Return the measures of these names; raise one `Problem` that lists all that do not fit the task."""
    problems, made = [], []
    for name in dict.fromkeys(names):
        try:
            made.append(read_metric(name, facts))
        except Problem as problem:
            problems.append(str(problem))
    if problems:
        raise Problem("\n".join(problems))
    return tuple(made)


def unknown_metric(name: str) -> str | None:
    """Return what is wrong with a name that no measure has; None if one has it."""
    bare = name.partition("@")[0]
    if bare in METRICS:
        return None
    meant = ALSO_CALLED.get(bare.lower().replace("_", "-"))
    hint = f"did you mean '{meant}'?" if meant else nearest(bare, METRICS)
    return f"unknown metric '{bare}'; {hint} (all: {', '.join(METRICS)})"


def read_metric(name: str, facts: Facts) -> Metric:
    """Return the measure of a name, such as "auc" or "sensitivity@0.2"."""
    bare, at, text = name.partition("@")
    if (unknown := unknown_metric(name)) is not None:
        raise Problem(f"{KEY}: {unknown}")
    metric = METRICS[bare]
    if facts.kind not in metric.kinds:
        fits = [each.name for each in METRICS.values() if facts.kind in each.kinds]
        wanted = " or ".join(kind for kind in KINDS if kind in metric.kinds)
        instead = f"; use {', '.join(fits)}" if fits else ""
        raise Problem(f"{KEY}: '{bare}' needs {wanted}, but the target is {facts.kind}{instead}")
    if metric.needs_probabilities and not facts.probable:
        raise Problem(
            f"{KEY}: '{bare}' needs probabilities, but the loss '{facts.loss}' gives scores only; train with"
            " 'cross-entropy' or 'logistic', or leave it out"
        )
    if not at:
        return metric
    if not metric.by_threshold or facts.kind != TWO:
        raise Problem(f"{KEY}: '{name}' has a threshold, which '{bare}' of {facts.kind} does not use")
    try:
        threshold = float(text)
    except ValueError:
        threshold = np.nan
    if not np.isfinite(threshold) or (facts.probable and not 0 < threshold < 1):
        expected = "a probability between 0 and 1" if facts.probable else "a number"
        raise Problem(f"{KEY}: expected {expected} after the @ of '{name}', got {shown(text)}")
    return replace(metric, name=name, threshold=threshold)


def default_metrics(kind: str, shares: Sequence[float]) -> tuple[Metric, ...]:
    """Return the measures of a task; `shares` are those of its classes among all test rows.

    Where a class is rare, accuracy says little: AUC and balanced accuracy come before it.
    """
    if kind == NUMBER:
        return (METRICS["mse"],)
    if kind not in KINDS:
        return ()
    rare = bool(len(shares)) and min(shares) < RARE * 2 / len(shares)
    return tuple(METRICS[name] for name in (("auc", "balanced-accuracy") if rare else ()) + ("accuracy",))
