"""A result as lines over the setting that varies, for the plot and for a table in markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..experiment.result import SCORED, UNACCOUNTED, Result, RunRecord, label_of
from ..experiment.summaries import deviation, measure_lines
from ..privacy.accountant import shown_spent
from .measures_table import HEADS, TITLE, measure_rows
from .silo_tables import gain_lines, learned_lines

ENOUGH = 3  # values of a setting that make a line


@dataclass(frozen=True)
class Line:
    """One method's mean scores over the setting that varies, and their deviations over seeds.

    With a single seed, deviations are None. A method without this setting has no values and one mean.
    """

    label: str
    values: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float | None, ...]


def swept_key(runs: Sequence[RunRecord]) -> str | None:
    """Return the setting for which a method has the most values, if they are enough for a line."""
    seen: dict[tuple[str, str], set[float]] = {}
    for run in runs:
        for key in run.settings:
            if (value := place_of(run, key)) is not None:
                seen.setdefault((key, label_without(run, key)), set()).add(value)
    best = max(seen, key=lambda pair: (len(seen[pair]), pair[0] == "epsilon"), default=("", ""))
    return best[0] if len(seen.get(best, ())) >= ENOUGH else None


def place_of(run: RunRecord, key: str) -> float | None:
    """Return the value of a setting as a position on an axis, or None if it is not a finite number."""
    value = run.settings.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None  # type: ignore[arg-type]


def label_without(run: RunRecord, key: str) -> str:
    """Return the run's label, without the setting that the axis shows."""
    gone = place_of(run, key) is not None
    return label_of(run.method, {k: v for k, v in run.settings.items() if k != key or not gone})


def lines_over(runs: Sequence[RunRecord], key: str) -> list[Line]:
    """Return one line per method and combination of its other settings."""
    groups: dict[str, dict[tuple[float, ...], list[float]]] = {}
    for run in runs:
        value = place_of(run, key)
        at = () if value is None else (value,)
        groups.setdefault(label_without(run, key), {}).setdefault(at, []).append(run.score)
    lines = []
    for label, points in groups.items():
        scores = [points[at] for at in sorted(points)]
        spread = tuple(deviation(s) if len(s) > 1 else None for s in scores)
        values = tuple(value for at in sorted(points) for value in at)
        lines.append(Line(label, values, tuple(map(statistics.fmean, scores)), spread))
    return lines


def markdown(result: Result) -> str:
    """Return the summary as a markdown table, with a column per value of the setting that varies, if any."""
    better = "higher" if result.task.higher_is_better else "lower"
    seeds = max(row["seeds"] for row in result.summary)
    counts = f"{_count(len(result.names), 'silo')}, {_count(seeds, 'seed')}"
    title = f"Test {result.task.metric} ({better} is better), {counts}"
    key = swept_key(result.runs)
    if key is None:
        rows = [
            [
                label_of(row["method"], row["settings"]),
                f"{row['mean']:.4f}",
                f"{row['std']:.4f}" if row["seeds"] > 1 else "-",
                shown_spent(row["epsilon"]),
            ]
            for row in result.summary
        ]
        heads = ["method", "mean", "±", "epsilon ≤"]
        first = _table(f"{title}: mean and deviation over seeds", heads, rows)
        return first + _measures(result) + _caveats(result)
    lines = lines_over(result.runs, key)
    values = sorted({value for line in lines for value in line.values})
    rows = [[line.label, *(_cell(line, value) for value in values)] for line in lines]
    heads = ["method", *(f"{value:g}" for value in values)]
    heading = f"{title}, by {key}" + (": mean ± deviation over seeds" if seeds > 1 else "")
    spent = "" if key == "epsilon" else "\n" + _spent(result.runs, key, values)
    return _table(heading, heads, rows) + spent + _measures(result) + _caveats(result)


def _measures(result: Result) -> str:
    """Return a table of all measures with their intervals over test rows; empty without any."""
    rows = measure_rows(result)
    return "\n" + _table(TITLE, HEADS, rows) if rows else ""


def _spent(runs: Sequence[RunRecord], key: str, values: Sequence[float]) -> str:
    """Return the largest epsilon of each method and value, as one sentence or a table."""
    spent: dict[str, dict[float | None, float]] = {}
    for run in runs:
        most = max(silo.epsilon for silo in run.silos.values())
        row, value = spent.setdefault(label_without(run, key), {}), place_of(run, key)
        row[value] = max(row.get(value, 0.0), most)
    distinct = {shown_spent(most) for row in spent.values() for most in row.values()}
    if len(distinct) == 1:
        return f"Epsilon is at most {distinct.pop()}.\n"
    rows = [
        [
            label,
            *(
                shown_spent(row[at]) if (at := None if None in row else value) in row else ""
                for value in values
            ),
        ]
        for label, row in spent.items()
    ]
    return _table(f"Upper bound on epsilon, by {key}", ["method", *(f"{value:g}" for value in values)], rows)


def _caveats(result: Result) -> str:
    """Return what the numbers leave out, as lines of text."""
    lines = [
        *measure_lines(result),
        *gain_lines(result),
        *learned_lines(result),
        "The files in statements/ say what each epsilon protects, at which delta, and against whom.",
    ]
    if result.tuning is not None:
        lines.append("result.json and the statements include what tuning cost.")
    elif len(result.summary) > 1:
        lines.append(UNACCOUNTED)
    return "\n" + "\n".join([*lines, SCORED[result.kind]]) + "\n"


def _count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cell(line: Line, value: float) -> str:
    if line.values and value not in line.values:
        return ""
    at = line.values.index(value) if line.values else 0
    spread = line.deviations[at]
    return f"{line.means[at]:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def _table(title: str, head: list[str], rows: list[list[str]]) -> str:
    lines = [title + ".", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
