"""The score of each trial of a sweep: released by the silos with noise, or that of public silos.

Two kinds of measures can be charged, each as one Gaussian release of a silo with a sensitivity of 1:
- a mean over examples from 0 to 1 (accuracy, mse, mae, and the Brier score of two classes): the sum of what
  each example adds, forced into [0, 1] and rounded to a multiple of 2^-20;
- the AUC of two classes, from counts of test examples by class and cell of their score: one example is in one
  cell (`coterie.measures.histogram`). The trial's AUC is that of the cells, over all pairs of examples of one
  silo.

Other measures are no such sums, or one example can move them by more than noise for a sensitivity of 1 hides.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..cohort.examples import Examples
from ..cohort.score import FINENESS, bounded_total
from ..errors import Problem
from ..measures.catalogue import METRICS, Metric, read_metric
from ..measures.histogram import EDGES, counts_of
from ..measures.predictions import NUMBER, SEVERAL, TWO, Predictions
from ..measures.private import auc_balance
from ..tasks.task import Task
from .measures import facts_of, predictions_of
from .several import check_one_target

KEY = "tuning.metric"
BOUNDED = {NUMBER: ("mse", "mae"), TWO: ("accuracy", "auc", "brier"), SEVERAL: ("accuracy",)}
AUC = "auc"


def tuned_metric(name: str | None, task: Task) -> Metric:
    """Return the measure by which a sweep chooses; raise `Problem` if its release cannot be charged."""
    facts = facts_of(task)
    if name in (None, task.metric):
        return METRICS[task.metric]
    check_one_target(task, f"{KEY}: '{name}'")
    chargeable = [known for known in BOUNDED.get(facts.kind, ()) if known != "brier" or facts.probable]
    try:
        metric = read_metric(name, facts)
    except Problem as problem:
        raise Problem(f"{KEY}: {str(problem).partition(': ')[2]}") from None
    if metric.name not in chargeable:
        raise Problem(
            f"{KEY}: '{name}' of {facts.kind} cannot be released with noise that is charged; choose by"
            f" {' or '.join(chargeable)}"
        )
    return metric


@dataclass(frozen=True, eq=False)
class TrialScores:
    """What each silo tells of each trial: `told` `[trials, silos, numbers]`, without noise yet.

    One test example of a silo moves its numbers by a vector of length 1 at most.
    """

    metric: Metric
    told: np.ndarray
    sizes: np.ndarray

    def combined(self, deviations: np.ndarray, counted: np.ndarray) -> list[float]:
        """Return the score of every trial from the numbers of the silos that count."""
        if self.metric.name != AUC:
            return [float(s) for s in self.told[:, counted, 0].sum(1) / self.sizes[counted].sum()]
        return [self._auc(trial[counted], deviations[counted]) for trial in self.told]

    def _auc(self, told: np.ndarray, deviations: np.ndarray) -> float:
        """Return the AUC of a trial; 1/2 if the noise leaves no pairs of examples."""
        tables = told.reshape(len(told), 2, -1)
        each = [auc_balance(table[1], table[0], s) for table, s in zip(tables, deviations, strict=True)]
        estimate = functools.reduce(operator.add, each).estimate()
        return 0.5 if estimate is None else estimate[0]


def trial_scores(metric: Metric, task: Task, test: Examples, vectors: Tensor, memory: int) -> TrialScores:
    """Return what the silos tell of trials with the models `[trials, silos, P]`."""
    sizes = np.array(test.sizes, dtype=float)
    if metric.name == task.metric:
        sums = bounded_total(task, test, vectors, memory).cpu().numpy()
        return TrialScores(metric, sums[..., None], sizes)
    parts = [_told(metric, predictions_of(task, test, part, memory)) for part in torch.split(vectors, 1)]
    return TrialScores(metric, np.concatenate(parts), sizes)


def _told(metric: Metric, made: Predictions) -> np.ndarray:
    if metric.name == AUC:
        return counts_of(made, EDGES).reshape(made.runs, len(made.sizes), -1)
    assert metric.rows is not None
    with np.errstate(over="ignore", invalid="ignore"):
        points = metric.rows(replace(made, values=made.given))  # so that each row is judged by itself
    points = np.nan_to_num(points, nan=1.0, posinf=1.0, neginf=1.0)
    return made.totals(np.round(np.clip(points, 0, 1) * FINENESS) / FINENESS)[..., None]
