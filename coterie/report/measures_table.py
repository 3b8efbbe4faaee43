"""The measures of a result as a table: means over seeds, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..experiment.result import Result, label_of
from .terminal import compact

TITLE = "Measures over all silos, with 95 % intervals over test rows and over seeds"
HEADS = ["measure", "method", "mean", "over test rows", "over seeds"]
MOST_METHODS = 5


def measure_table(result: Result) -> Table | None:
    """Return a table with a row for each measure and method; None if there is nothing beside the score.

    Of many methods it has those with the best means.
    """
    names = list(result.runs[0].measures)
    if set(names) <= {result.task.metric}:
        return None
    labels = best_labels(result, MOST_METHODS)
    table = compact(TITLE)
    for number, name in enumerate(HEADS):
        table.add_column(name, justify="left" if number < 2 else "right")
    for row in measure_rows(result, labels):
        table.add_row(*map(escape, row), end_section=row[1] == labels[-1])
    hidden = len(result.summary) - len(labels)
    if hidden:
        table.caption = f"{hidden} more methods: see summary.md."
        table.caption_justify = "left"
    return table


def best_labels(result: Result, most: int) -> list[str]:
    """Return the labels with the best means of the leading measure, in the order of the runs."""
    name, summary = result.leading, result.summary

    def place(row: dict[str, Any]) -> tuple[bool, float]:
        measure = row["measures"][name]
        sign = -1 if measure["higher_is_better"] else 1
        return math.isnan(measure["mean"]), sign * measure["mean"]

    best = [id(row) for row in sorted(summary, key=place)[:most]]
    return [label_of(row["method"], row["settings"]) for row in summary if id(row) in best]


def measure_rows(result: Result, labels: Sequence[str] | None = None) -> list[list[str]]:
    """Return the rows of the table as text, of all methods or of some."""
    shown = [
        (label, row["measures"])
        for row in result.summary
        if (label := label_of(row["method"], row["settings"])) in (labels or [label])
    ]
    names = list(shown[0][1]) if shown else []
    return [[name, label, *_cells(measures[name])] for name in names for label, measures in shown]


def _cells(measure: dict[str, Any]) -> list[str]:
    if math.isnan(measure["mean"]):
        return ["undefined", "-", "-"]
    return [f"{measure['mean']:.4f}", _limits(measure["rows"]), _limits(measure["seeds"])]


def _limits(limits: list[float] | None) -> str:
    if limits is None or any(map(math.isnan, limits)):
        return "-"
    return f"{limits[0]:.3f} to {limits[1]:.3f}"
