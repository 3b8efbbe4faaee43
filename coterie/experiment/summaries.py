"""What a result's runs have in common: means over seeds, with intervals, and what to say about them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..measures.intervals import student

if TYPE_CHECKING:
    from .result import Result, RunRecord

CONSTANT = {True: "predicting each silo's most frequent class", False: "predicting each silo's mean"}
MOST_NAMES = 5
ROUNDING = 1e-9


def deviation(scores: Sequence[float]) -> float:
    """Return the standard deviation of several scores; NaN if one of them is not finite."""
    return statistics.stdev(scores) if all(map(math.isfinite, scores)) else math.nan


def leading(runs: Sequence[RunRecord], metric: str) -> str:
    """Return the measure by which methods are compared: the first one of the runs, or else the score."""
    return next(iter(runs[0].measures), metric) if runs else metric


def summarise(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return the mean and deviation over seeds for each method and setting; epsilon is the largest."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    rows = []
    for members in groups.values():
        scores = [run.score for run in members]
        rows.append(
            {
                "method": members[0].method,
                "settings": members[0].settings,
                "metric": members[0].metric,
                "mean": statistics.fmean(scores),
                "std": deviation(scores) if len(scores) > 1 else 0.0,
                "seeds": len(scores),
                "epsilon": max(s.epsilon for run in members for s in run.silos.values()),
                "seconds": sum(run.seconds for run in members),
                "bytes_up": members[0].bytes_up,
                "bytes_down": members[0].bytes_down,
                "constant": members[0].constant,
                "measures": measure_summary(members),
            }
        )
    return rows


def led_by(result: Result) -> tuple[str, bool]:
    """Return the measure by which methods are compared, and whether a larger one is better."""
    name = leading(result.runs, result.task.metric)
    known = result.runs[0].measures.get(name) if result.runs else None
    return name, result.task.higher_is_better if known is None else known.higher_is_better


def led_runs(result: Result) -> list[RunRecord]:
    """Return the runs with the leading measure in place of the score, over all silos and in each."""
    name, _ = led_by(result)
    if name == result.task.metric:
        return list(result.runs)
    runs = []
    for run in result.runs:
        measured = run.measures[name]
        silos = {k: replace(silo, score=measured.silos[k].value) for k, silo in run.silos.items()}
        runs.append(replace(run, metric=name, score=measured.value, silos=silos))
    return runs


def measure_summary(members: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    """Return the mean of each measure over the seeds of a method and setting, with its intervals.

    `rows` is the interval over test rows (the mean limits of all seeds), `seeds` that over seeds: Student's,
    of the mean; None for one seed. `undefined` is the largest number of silos that were left out.
    """
    summary = {}
    for name in members[0].measures:
        each = [run.measures[name] for run in members]
        values = [measured.value for measured in each]
        rows = [statistics.fmean(getattr(one, end) for one in each) for end in ("low", "high")]
        summary[name] = {
            "mean": statistics.fmean(values),
            "std": deviation(values) if len(values) > 1 else 0.0,
            "rows": rows,
            "seeds": over_seeds(values),
            "higher_is_better": each[0].higher_is_better,
            "undefined": max(len(measured.undefined) for measured in each),
        }
    return summary


def over_seeds(values: Sequence[float]) -> list[float] | None:
    """Return Student's interval of the mean of several seeds; None for one."""
    if len(values) < 2:
        return None
    numbers = np.array(values)
    limits = student(numbers.mean(), numbers.var(), np.array(len(values)))
    return [float(limit) for limit in limits]


def no_better(row: dict[str, Any], higher_is_better: bool) -> bool:
    """Return whether a row of the summary scores no better than constant predictions."""
    sign = 1 if higher_is_better else -1
    return bool(sign * (row["mean"] - row["constant"]) <= ROUNDING)


def measure_lines(result: Result) -> list[str]:
    """Return what a reader should know about the measures: what is no better than a constant or undefined."""
    if not result.runs:
        return []
    firsts = {run.label: run for run in reversed(result.runs)}
    firsts = {run.label: firsts[run.label] for run in result.runs}
    metric, lines = result.task.metric, []
    constant = result.runs[0].constant
    what = CONSTANT[result.task.higher_is_better]
    rows = dict(zip(firsts, result.summary, strict=True))
    poor = [label for label, row in rows.items() if no_better(row, result.task.higher_is_better)]
    if poor:
        lines.append(f"No better than {what} ({metric} {constant:.4f}): {', '.join(poor)}.")
    some = [
        f"{label} ({len(run.no_better)} of {len(result.names)})"
        for label, run in firsts.items()
        if run.no_better and label not in poor
    ]
    if some:
        first = " in the first seed" if any(row["seeds"] > 1 for row in rows.values()) else ""
        lines.append(f"In some silos no better than {what}{first}: {', '.join(some)}.")
    return lines + _undefined(firsts, len(result.names)) + _partial(result) + _rows_of_persons(result)


def _rows_of_persons(result: Result) -> list[str]:
    """Return a line if persons have several test rows, which intervals over test rows do not know."""
    if not result.trained:
        return []
    silos = result.trained[min(result.trained)].experiment.federation.silos
    rows = sum(len(silo.test_y) for silo in silos)
    people = sum(silo.persons.test for silo in silos if silo.persons is not None)
    if not people or rows == people or any(silo.persons is None for silo in silos):
        return []
    return [
        f"The {rows:,} test rows are of {people:,} persons, but intervals over test rows take rows to be"
        " independent: they are too narrow."
    ]


def _partial(result: Result) -> list[str]:
    """Return a line about silos that have no test rows of some of several classes."""
    counts = {name: len(each.partial) for name, each in result.runs[0].measures.items() if each.partial}
    if not counts:
        return []
    several = getattr(result.task, "targets", 0)
    why = "some targets are undefined" if several else "some classes have no test rows"
    silos = f"{max(counts.values())} of {len(result.names)} silos"
    return [f"In {silos} {why}, and are left out there: {', '.join(counts)}."]


def _undefined(firsts: dict[str, RunRecord], silos: int) -> list[str]:
    """Return a line for each group of silos in which measures are undefined, and are left out of the mean."""
    lost: dict[tuple[tuple[str, ...], str], dict[str, list[str]]] = {}
    for label, run in firsts.items():
        for name, measured in run.measures.items():
            if measured.undefined:
                lost.setdefault((measured.undefined, measured.why), {}).setdefault(name, []).append(label)
    lines = []
    for (gone, why), by_name in lost.items():
        shown = [
            name if len(labels) == len(firsts) else f"{name} ({', '.join(labels)})"
            for name, labels in by_name.items()
        ]
        names = ", ".join(gone[:MOST_NAMES]) + (", ..." if len(gone) > MOST_NAMES else "")
        lines.append(
            f"Undefined in {len(gone)} of {silos} silos ({names}), because {why}: {', '.join(shown)}. The"
            " means leave these silos out."
        )
    return lines
