"""The measures that a configuration or a call asks for: by name, or functions of one's own.

A function gets what a silo's model predicts for its test rows, and their targets, as numpy arrays. It returns
a number. Predictions are numbers `[rows]`, or a probability (a score, if the loss has none) of each class
`[rows, classes]`. If less is better, it has an attribute `higher_is_better = False`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import Problem, first_line, shown
from ..measures.catalogue import KEY, METRICS, Facts, Metric, read_metric
from ..measures.predictions import KINDS, NUMBER, Predictions, Values, without_interval
from ..tasks.code import Allowed, find_code
from ..tasks.models import qualified_name
from ..tasks.task import Task
from .measures import facts_of
from .several import check_one_target

Function = Callable[[np.ndarray, np.ndarray], float]
ROWS = 24  # made up to try a function
FAILED = "the function failed on their test rows, or returned no finite number"


def metrics_of(given: Any, task: Task, allowed: Allowed | None = None) -> tuple[Metric, ...]:
    """Return the measures that are asked for; raise one `Problem` that lists all that cannot be computed.

    Without `allowed`, a name such as "module:function" was given in Python and may stand for any module.
    """
    if given is None:
        return ()
    facts = facts_of(task)
    problems: list[str] = []
    made: dict[str, Metric] = {}
    for each in _listed(given):
        try:
            metric = _metric(each, facts, task, allowed)
            if metric.name in made:
                raise Problem(f"{KEY}: two metrics are called '{metric.name}'; rename the function")
            made[metric.name] = metric
        except Problem as problem:
            problems.append(str(problem))
    if problems:
        raise Problem("\n".join(problems))
    return tuple(made.values())


def _listed(given: Any) -> list[Any]:
    """Return what is asked for as a list, in which nothing is twice."""
    listed = [given] if isinstance(given, str) or callable(given) else given
    if not isinstance(listed, Sequence) or not listed:
        raise Problem(f"{KEY}: expected names of metrics, such as ['auc', 'f1'], got {shown(given)}")
    return [each for place, each in enumerate(listed) if each not in listed[:place]]


def written_metrics(given: Any) -> list[str]:
    """Return the names of measures as a configuration writes them."""
    return [each if isinstance(each, str) else qualified_name(each) for each in _listed(given)]


def _metric(given: Any, facts: Facts, task: Task, allowed: Allowed | None) -> Metric:
    if isinstance(given, str) and ":" not in given:
        return read_metric(given, facts)
    if isinstance(given, str):
        return own_metric(given, find_code(given, allowed, KEY, "metric"), task)
    if not callable(given):
        raise Problem(f"{KEY}: expected the name of a metric or a function, got {shown(given)}")
    name = getattr(given, "__name__", "")
    if not name.isidentifier() or name in METRICS:
        raise Problem(f"{KEY}: expected a function with a name of its own, got {shown(given)}")
    return own_metric(name, given, task)


def own_metric(name: str, function: Function, task: Task) -> Metric:
    """Return a function of one's own as a measure; raise `Problem` unless it works on made-up rows."""
    check_one_target(task, f"{KEY}: '{name}'")
    facts = facts_of(task)
    generator = np.random.default_rng(0)
    if facts.kind == NUMBER:
        values, targets = generator.random(ROWS), generator.random(ROWS)
    else:
        values = generator.dirichlet(np.ones(task.classes), ROWS)
        targets = np.array([row % task.classes for row in range(ROWS)])
    try:
        found = float(function(values, targets))
    except Exception as error:  # a user's function may raise anything
        raise Problem(
            f"{KEY}: '{name}' fails on made-up rows with {first_line(error)}; it is called with predictions"
            f" {list(values.shape)} and targets {list(targets.shape)}, as numpy arrays"
        ) from error
    if not np.isfinite(found):
        raise Problem(f"{KEY}: '{name}' must return a finite number, and returned {found} on made-up rows")

    def compute(made: Predictions, threshold: float | None) -> Values:
        ends = np.cumsum([0, *made.sizes])
        value = np.full((made.runs, len(made.sizes)), np.nan)
        for run, k in np.ndindex(*value.shape):
            rows = slice(ends[k], ends[k + 1])
            if made.sizes[k] and made.sound[run, k]:
                value[run, k] = _tried(function, made.values[run, rows], made.targets[rows])
        return without_interval(value)

    better = bool(getattr(function, "higher_is_better", True))
    return Metric(name, compute, KINDS, higher_is_better=better, undefined=FAILED)


def _tried(function: Function, values: np.ndarray, targets: np.ndarray) -> float:
    """Return what a function makes of one silo's rows; NaN if it fails: the training is over and paid for."""
    try:
        found = float(function(values.copy(), targets.copy()))
    except Exception:  # a user's function may raise anything
        return np.nan
    return found if np.isfinite(found) else np.nan
