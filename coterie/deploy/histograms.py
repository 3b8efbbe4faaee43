"""Noised counts of test examples, in place of one noised score: what a silo tells, and what follows from it.

What is counted, and why one Gaussian release pays for the whole table, is in `coterie.measures.histogram`.
How measures and their intervals follow is in `coterie.measures.private`. The intervals are about what other
test examples of the same kind could have given, and include the noise.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..cohort.examples import Examples
from ..errors import Problem
from ..experiment.config.schema import Scores
from ..experiment.measures import facts_of, predictions_of
from ..measures.histogram import EDGES, check_edges, counts_of, shape_of
from ..measures.predictions import TWO
from ..measures.private import Balance, balances, calibration
from ..tasks.task import Task

RELEASE = "histogram"


def edges_of(scores: Scores, task: Task) -> tuple[float, ...] | None:
    """Return the edges of the cells of scores; None for the confusions of several classes."""
    if facts_of(task).kind != TWO:
        return None
    return EDGES if scores.edges is None else tuple(scores.edges)


def check_histogram(scores: Scores, task: Task) -> None:
    """Raise `Problem` for a histogram that the task does not have."""
    if scores.release != RELEASE:
        if scores.edges is not None:
            raise Problem("scores.edges: allowed only with release = 'histogram'")
        return
    try:
        shape_of(facts_of(task).kind, task.classes)
    except Problem as problem:
        raise Problem(f"scores.release: {problem}") from None
    edges = edges_of(scores, task)
    if edges is not None:
        check_edges(edges, "scores.edges")
    elif scores.edges is not None:
        raise Problem(
            "scores.edges: several classes have a table of confusions, without scores: leave it out"
        )


def own_counts(scores: Scores, task: Task, test: Examples, vector: Tensor, memory: int) -> np.ndarray:
    """Return the counts of one silo's test examples with its own model."""
    made = predictions_of(task, test, vector.reshape(1, 1, -1), memory)
    table: np.ndarray = counts_of(made, edges_of(scores, task) or EDGES)[0, 0]
    return table


def read_counts(said: Any, shape: Sequence[int]) -> np.ndarray | None:
    """Return a silo's noisy counts from what it told; None if that is no such table."""
    size = math.prod(shape)
    if not isinstance(said, list) or len(said) != size or not all(isinstance(n, float) for n in said):
        return None
    table = np.array(said).reshape(shape)
    return table if np.isfinite(table).all() else None


def measures_of_counts(
    scores: Scores, task: Task, tables: Mapping[str, tuple[np.ndarray, float]]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the measures of each silo and of all, from noisy tables with their deviations."""
    edges = edges_of(scores, task)
    each = {name: balances(table, deviation, edges) for name, (table, deviation) in tables.items()}
    cells = {name: calibration(*of) for name, of in tables.items()} if edges is not None else {}
    silos = {
        name: {"measures": _estimates(own), **_cells(cells.get(name), edges)} for name, own in each.items()
    }
    keys = next(iter(each.values()), {})
    total = {key: functools.reduce(operator.add, (own[key] for own in each.values())) for key in keys}
    summed = [functools.reduce(operator.add, column) for column in zip(*cells.values(), strict=True)]
    return silos, {"measures": _estimates(total), **_cells(summed or None, edges)}


def _estimates(found: Mapping[str, Balance]) -> dict[str, dict[str, float] | None]:
    return {name: _written(balance) for name, balance in found.items()}


def _written(balance: Balance) -> dict[str, float] | None:
    estimate = balance.estimate()
    return None if estimate is None else dict(zip(("value", "low", "high"), estimate, strict=True))


def _cells(found: Sequence[Balance] | None, edges: Sequence[float] | None) -> dict[str, Any]:
    """Return, for each cell of predicted probabilities, the share of positive examples in it."""
    if found is None or edges is None:
        return {}
    ends = [0.0, *edges, 1.0]
    return {
        "calibration": [
            {"above": low, "to": high, "count": balance.whole, "positive": _written(balance)}
            for low, high, balance in zip(ends[:-1], ends[1:], found, strict=True)
        ]
    }
