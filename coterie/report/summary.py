"""A result as lines over one setting that was varied: for the plot, and for a table in markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..experiment.result import SIMULATED, UNACCOUNTED, Result, RunRecord, deviation, label_of
from ..privacy.accountant import shown_spent

ENOUGH = 3  # values of a setting that make a line


@dataclass(frozen=True)
class Line:
    """One method: the values of the setting that varies, mean scores, and their deviations over seeds
    (none for one seed).

    A method without this setting has no values, and one mean.
    """

    label: str
    values: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float | None, ...]


def swept_key(runs: Sequence[RunRecord]) -> str | None:
    """Give the setting of which one method has the most values, if they are enough for a line."""
    seen: dict[tuple[str, str], set[float]] = {}
    for run in runs:
        for key in run.settings:
            if (value := place_of(run, key)) is not None:
                seen.setdefault((key, label_without(run, key)), set()).add(value)
    best = max(seen, key=lambda one: (len(seen[one]), one[0] == "epsilon"), default=("", ""))
    return best[0] if len(seen.get(best, ())) >= ENOUGH else None


def place_of(run: RunRecord, key: str) -> float | None:
    """Give a setting as a place on an axis, if it has one."""
    value = run.settings.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None  # type: ignore[arg-type]


def label_without(run: RunRecord, key: str) -> str:
    """Name a run without a setting that has a place on the axis."""
    gone = place_of(run, key) is not None
    return label_of(run.method, {k: v for k, v in run.settings.items() if k != key or not gone})


def lines_over(runs: Sequence[RunRecord], key: str) -> list[Line]:
    """Give a line for each method and its other settings."""
    groups: dict[str, dict[tuple[float, ...], list[float]]] = {}
    for run in runs:
        value = place_of(run, key)
        at = () if value is None else (value,)
        groups.setdefault(label_without(run, key), {}).setdefault(at, []).append(run.score)
    made = []
    for label, points in groups.items():
        scores = [points[at] for at in sorted(points)]
        spread = tuple(deviation(s) if len(s) > 1 else None for s in scores)
        values = tuple(value for at in sorted(points) for value in at)
        made.append(Line(label, values, tuple(map(statistics.fmean, scores)), spread))
    return made


def markdown(result: Result) -> str:
    """Give the summary as a table in markdown: methods by values of what varies most, else one column."""
    better = "higher" if result.task.higher_is_better else "lower"
    seeds = max(row["seeds"] for row in result.summary)
    title = f"Test {result.task.metric} ({better} is better), {len(result.names)} silos, {seeds} seed(s)"
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
        return _table(f"{title}: mean and deviation over seeds", heads, rows) + _caveats(result)
    lines = lines_over(result.runs, key)
    values = sorted({value for line in lines for value in line.values})
    rows = [[line.label, *(_cell(line, value) for value in values)] for line in lines]
    heads = ["method", *(f"{value:g}" for value in values)]
    told = f"{title}, by {key}" + (": mean ± deviation over seeds" if seeds > 1 else "")
    spent = "" if key == "epsilon" else "\n" + _spent(result.runs, key, values)
    return _table(told, heads, rows) + spent + _caveats(result)


def _spent(runs: Sequence[RunRecord], key: str, values: Sequence[float]) -> str:
    """Say the largest epsilon of each method and value, where the values are not epsilons themselves."""
    found: dict[str, dict[float | None, float]] = {}
    for run in runs:
        most = max(silo.epsilon for silo in run.silos.values())
        row, value = found.setdefault(label_without(run, key), {}), place_of(run, key)
        row[value] = max(row.get(value, 0.0), most)
    told = {shown_spent(most) for row in found.values() for most in row.values()}
    if len(told) == 1:
        return f"Epsilon at most {told.pop()}.\n"
    rows = [
        [
            label,
            *(
                shown_spent(row[at]) if (at := None if None in row else value) in row else ""
                for value in values
            ),
        ]
        for label, row in found.items()
    ]
    return _table(f"Epsilon at most, by {key}", ["method", *(f"{value:g}" for value in values)], rows)


def _caveats(result: Result) -> str:
    """Say what the numbers do not tell."""
    lines = [
        "Units, deltas, and against whom an epsilon holds and against whom nothing protects: statements/."
    ]
    if result.tuning is not None:
        lines.append("What tuning cost is in result.json and in the statements.")
    elif len(result.summary) > 1:
        lines.append(UNACCOUNTED)
    return "\n" + "\n".join([*lines, SIMULATED]) + "\n"


def _cell(line: Line, value: float) -> str:
    if line.values and value not in line.values:
        return ""
    at = line.values.index(value) if line.values else 0
    spread = line.deviations[at]
    return f"{line.means[at]:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def _table(title: str, head: list[str], rows: list[list[str]]) -> str:
    lines = [title + ".", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
