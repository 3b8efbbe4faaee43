"""Dual coordinates on HAR as rounds go by: figure 2 of Hu, Guo, Li, Pei, Gong 2020. Not part of `make bench`.

python -m benchmarks.har_convergence OUT.png      needs har.npz (COTERIE_DATA)
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from coterie.experiment.config.schema import read
from coterie.experiment.from_config import make_experiments
from coterie.experiment.result import RunRecord

PANELS = {
    "all alike": [],
    "uneven work, tau .5": ["train.uneven=0.5"],
    "uneven, and dropping with chance .2": ["train.uneven=0.5", "train.drop=0.2"],
}
WITHOUT = ["train.rounds=250", "train.steps=8", "train.batch=26", "method.inner=50", "method.lam=1e-3",
           "method.form=upload"]  # fmt: skip
UNDER = ["train.rounds=250", "train.steps=4", "method.inner=50"]
BUDGETS = (1.0, 8.0, 100.0)


def main() -> None:
    """Train each panel without privacy and under budgets; draw test errors and duality gaps over rounds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    axes = figure.subplots(2, len(PANELS), sharex=True, sharey="row")
    print("| | duality gap, first and last | error without privacy | " + " | ".join(
        f"eps {budget:g}" for budget in BUDGETS
    ) + " |\n| --- | --- | --- |" + " --- |" * len(BUDGETS), flush=True)  # fmt: skip
    for place, (name, changes) in enumerate(PANELS.items()):
        top, below = axes[0][place], axes[1][place]
        plain = runs_of([*WITHOUT, *changes, "privacy.epsilon=inf"])
        gaps = mean([run.gaps for run in plain])
        top.semilogy(*zip(*gaps, strict=True), color="#2a6f97")
        below.plot(*zip(*errors(plain), strict=True), color="#7d8597", label="no privacy")
        found = [errors(plain)[-1][1]]
        for budget, colour in zip(BUDGETS, ("#f2cc8f", "#e07a5f", "#81b29a"), strict=True):
            curve = errors(runs_of([*UNDER, *changes, f"privacy.epsilon={budget}"]))
            below.plot(*zip(*curve, strict=True), color=colour, label=f"epsilon {budget:g}")
            found.append(curve[-1][1])
        top.set_title(name, fontsize=10)
        below.set_xlabel("round")
        print(f"| {name} | {gaps[0][1]:.2g}, {gaps[-1][1]:.2g} | "
              + " | ".join(f"{value:.3f}" for value in found) + " |", flush=True)  # fmt: skip
    axes[0][0].set_ylabel("duality gap, no privacy")
    axes[1][0].set_ylabel("test error")
    figure.legend(*axes[1][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle("HAR, sitting against the rest, 30 people, dual coordinates; means of seeds", fontsize=10)
    figure.savefig(Path(sys.argv[1]), dpi=120)


def runs_of(changes: list[str]) -> list[RunRecord]:
    """Train the example with some settings changed."""
    config = read("examples/har_dual_epsilon.toml", changes)
    (made,) = make_experiments(config)
    return made.train().runs


def errors(runs: list[RunRecord]) -> list[tuple[int, float]]:
    """Give the mean test error over rounds."""
    return [(number, 1 - score) for number, score in mean([run.history for run in runs])]


def mean(curves: list[Any]) -> list[tuple[int, float]]:
    """Give the mean of curves over the same rounds."""
    return [
        (points[0][0], statistics.fmean(value for _, value in points)) for points in zip(*curves, strict=True)
    ]


if __name__ == "__main__":
    main()
