"""The plot of a result: scores of the methods, and how they came about."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from ..result import Result, RunRecord

BLUE, GREY = "#2a6f97", "#8d99ae"
COLOURS = ("#8d99ae", "#e07a5f", "#2a6f97", "#81b29a", "#f2cc8f", "#6d597a", "#b56576", "#355070")


def draw(result: Result, path: Path) -> None:
    """Draw scores by method (bars; dots are silos) and scores over rounds."""
    from matplotlib.figure import Figure

    groups: dict[str, list[RunRecord]] = {}
    for run in result.runs:
        groups.setdefault(run.label, []).append(run)
    height = max(3.6, 0.42 * len(groups) + 1.6)
    figure = Figure(figsize=(10, height), layout="constrained")
    left, right = figure.subplots(1, 2)
    _bars(left, groups)
    _curves(right, groups)
    metric = result.task.metric
    better = "higher" if result.task.higher_is_better else "lower"
    left.set_xlabel(f"test {metric} ({better} is better)")
    right.set_xlabel("round")
    right.set_ylabel(f"test {metric}")
    largest = max(row["epsilon"] for row in result.summary)
    spent = "no privacy" if largest == float("inf") else f"epsilon at most {largest:.2f}"
    figure.suptitle(f"{len(result.names)} silos, {spent}; scores of a simulation", fontsize=10)
    figure.savefig(path, dpi=130, format="png")


def _bars(axes: Any, groups: dict[str, list[RunRecord]]) -> None:
    """Draw a bar for each method, whiskers over seeds, a dot for each silo (first seed)."""
    values = []
    for place, (label, runs) in enumerate(groups.items()):
        scores = [run.score for run in runs]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0
        silos = [silo.score for silo in runs[0].silos.values()]
        colour = COLOURS[place % len(COLOURS)]
        mean = statistics.fmean(scores)
        axes.barh(place, mean, xerr=spread, height=0.62, color=colour, alpha=0.85)
        if len(silos) <= 60:
            axes.plot(silos, [place] * len(silos), "o", color="black", ms=2.5, alpha=0.45)
            values += silos
        axes.annotate(f"{mean:.4g} ", (mean, place), ha="right", va="center", fontsize=8, color="white",
                      weight="bold")  # fmt: skip
        values.append(mean + spread)
        axes.set_title(f"over {len(scores)} seed(s); dots: silos" if len(silos) <= 60 else "", fontsize=9)
        del label
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.05 if max(values) > 0 else 1)
    axes.spines[["top", "right"]].set_visible(False)


def _curves(axes: Any, groups: dict[str, list[RunRecord]]) -> None:
    """Draw the mean score over rounds."""
    for place, (label, runs) in enumerate(groups.items()):
        rounds = [number for number, _ in runs[0].history]
        means = [
            statistics.fmean(values)
            for values in zip(*([s for _, s in r.history] for r in runs), strict=True)
        ]
        axes.plot(rounds, means, label=label, color=COLOURS[place % len(COLOURS)], lw=1.8)
    if len(groups) <= 10:
        axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
