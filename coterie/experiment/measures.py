"""Measure the models that a training ends with, on the test rows of their silos."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..cohort.examples import Examples
from ..cohort.outputs import outputs_of
from ..measures.catalogue import Facts, Metric, default_metrics
from ..measures.measured import Measured, class_shares, constant_score, measure, silos_no_better
from ..measures.predictions import NUMBER, SEVERAL, TWO, Predictions, predictions
from ..tasks.losses import PROBABILITIES, TWO_CLASSES, class_scores, predicted_class, predicted_number
from ..tasks.task import Task

if TYPE_CHECKING:
    from .experiment import Experiment

BYTES = 64  # that a run needs for each output, with all that measures make of it


class Measures(NamedTuple):
    """The measures of each run by their names, and what the best constant predictions score.

    `no_better` are the silos of each run whose models score no better than that.
    """

    runs: list[dict[str, Measured]]
    constant: float
    no_better: list[tuple[str, ...]]


def facts_of(task: Task) -> Facts:
    """Return what decides which measures fit a task."""
    kind = NUMBER if not task.classes else TWO if task.classes == 2 else SEVERAL
    return Facts(kind, task.loss, task.loss in PROBABILITIES)


def predictions_of(task: Task, test: Examples, vectors: Tensor, memory: int) -> Predictions:
    """Return what `vectors` `[runs, silos, P]` predict for the test rows of their silos, of one target."""
    (made,) = predictions_of_each(task, test, vectors, memory)
    return made


def predictions_of_each(task: Task, test: Examples, vectors: Tensor, memory: int) -> list[Predictions]:
    """Return the same for each of several targets."""
    output, targets = outputs_of(task, test, vectors, memory), _targets(test)
    if not task.targets:
        return [_predictions(task, test.sizes, output, targets)]
    return [
        _predictions(task, test.sizes, output[..., t : t + 1], targets[:, t]) for t in range(task.targets)
    ]


def _targets(test: Examples) -> np.ndarray:
    """Return the targets of all test rows, `[rows]`, or `[rows, targets]` if there are several."""
    return np.concatenate([test.y[k, :size].cpu().numpy() for k, size in enumerate(test.sizes)])


def _predictions(task: Task, sizes: tuple[int, ...], output: Tensor, targets: np.ndarray) -> Predictions:
    facts = facts_of(task)
    if facts.kind == NUMBER:
        numbers = predicted_number(task.loss, output.double()).cpu().numpy()
        return predictions(facts.kind, sizes, targets.astype(float), numbers)
    # one score per label, also with a loss of one's own
    loss = "hinge" if task.targets and task.loss not in TWO_CLASSES else task.loss
    called = predicted_class(loss, output).cpu().numpy()
    scores = class_scores(loss, output.double()).cpu().numpy()
    return predictions(facts.kind, sizes, targets.astype(int), scores, called, facts.probable)


def metrics_for(experiment: Experiment, test: Examples) -> tuple[Metric, ...]:
    """Return the measures that are asked for, or else those that suit the task and its test rows."""
    if experiment.metrics:
        return experiment.metrics
    task, real = experiment.task, _targets(test)
    kind = facts_of(task).kind
    if not task.classes:
        return default_metrics(kind, [])
    columns = real.reshape(len(real), -1).T
    return default_metrics(kind, min((class_shares(each, task.classes) for each in columns), key=min))


def measures_of(experiment: Experiment, test: Examples, vectors: Tensor) -> Measures:
    """Return all measures of the models `[runs, silos, P]` that a training ends with."""
    metrics = metrics_for(experiment, test)
    runs: list[dict[str, Measured]] = []
    no_better: list[tuple[str, ...]] = []
    constant = float("nan")
    for part in _parts(experiment, test, vectors):
        made = predictions_of_each(experiment.task, test, part, experiment.training.memory)
        constant = constant_score(made)
        no_better += silos_no_better(made, test.names)
        columns = [measure(metric, made, test.names) for metric in metrics]
        runs += [
            {metric.name: column[r] for metric, column in zip(metrics, columns, strict=True)}
            for r in range(len(part))
        ]
    return Measures(runs, constant, no_better)


def _parts(experiment: Experiment, test: Examples, vectors: Tensor) -> Iterator[Tensor]:
    """Return some runs at a time, as many as there is memory for."""
    each = BYTES * max(1, sum(test.sizes)) * experiment.task.outputs
    most = max(1, int(experiment.training.memory // each))
    yield from torch.split(vectors, most)
