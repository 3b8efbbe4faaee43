"""The plot of a result: scores of the methods, and how they came about."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from ..privacy.accountant import shown
from ..result import Result, RunRecord

COLOURS = ("#7d8597", "#e07a5f", "#2a6f97", "#81b29a", "#f2cc8f", "#6d597a", "#b56576", "#355070")


def draw(result: Result, path: Path) -> None:
    """Draw scores by method and silo, and scores over rounds."""
    from matplotlib.figure import Figure

    groups: dict[str, list[RunRecord]] = {}
    for run in result.runs:
        groups.setdefault(run.label, []).append(run)
    height = max(3.6, 0.55 * len(groups) + 1.4)
    figure = Figure(figsize=(10, height), layout="constrained")
    left, right = figure.subplots(1, 2)
    _scores(left, groups)
    _curves(right, groups)
    metric = result.task.metric
    better = "higher" if result.task.higher_is_better else "lower"
    left.set_xlabel(f"test {metric} ({better} is better)")
    right.set_xlabel("round")
    right.set_ylabel(f"test {metric}")
    largest = max(row["epsilon"] for row in result.summary)
    spent = "no privacy" if largest == float("inf") else f"epsilon at most {shown(largest)}"
    figure.suptitle(f"{len(result.names)} silos, {spent}; scores of a simulation", fontsize=10)
    figure.savefig(path, dpi=130, format="png")


def _scores(axes: Any, groups: dict[str, list[RunRecord]]) -> None:
    """Draw each method's mean, its deviation over seeds, and a dot for each silo (first seed)."""
    labels = []
    for place, (label, runs) in enumerate(groups.items()):
        scores = [run.score for run in runs]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0
        silos = [silo.score for silo in runs[0].silos.values()]
        colour = COLOURS[place % len(COLOURS)]
        mean = statistics.fmean(scores)
        height = [place + 0.16 + 0.18 * ((k * 0.618) % 1) for k in range(len(silos))]
        axes.plot(silos, height, "o", color=colour, ms=3.5, alpha=max(0.15, min(0.7, 20 / len(silos))), mew=0)
        axes.errorbar(mean, place, xerr=spread, fmt="D", color=colour, ms=8, capsize=4, mec="black", mew=0.6)
        labels.append(f"{label}\n{mean:.4f}")
    axes.set_yticks(range(len(groups)), labels)
    axes.set_ylim(len(groups) - 0.4, -0.5)
    axes.set_title("diamond: mean and deviation over seeds; dots: silos", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)


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
