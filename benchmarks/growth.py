"""Cost grows linearly in silos and in runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from coterie.data.federation import from_table
from coterie.data.sources.table import Table
from coterie.experiment.experiment import Experiment
from coterie.methods import MRMTL
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.tasks.task import make_task

COUNTS = (5, 10, 20, 40, 80)
REPEATS = 5


def training(silos: int, runs: int) -> Callable[[], float]:
    """Give a function that trains a small network on silos of 100 examples, and tells the time of a round."""
    generator = np.random.default_rng(0)
    x = generator.random((silos * 125, 14, 14)).astype(np.float32)
    y = generator.integers(0, 10, silos * 125)
    data = from_table(Table("made up", x, y, np.repeat([f"s{k}" for k in range(silos)], 125)))
    task = make_task("cnn", shape=data.shape, classes=10, options={"channels": 8})
    setting = Training(rounds=3, batch=16, lr=0.1, seeds=tuple(range(runs)))
    made = Experiment(data, task, MRMTL(lam=0.5), Privacy(epsilon=4, delta=1e-3), setting)
    plan = made.plan()
    made.train(plan)

    def once() -> float:
        began = time.perf_counter()
        made.train(plan)
        return (time.perf_counter() - began) / 3

    return once


def seconds(trainings: list[Callable[[], float]]) -> list[float]:
    """Time each training, all taking turns, so that a slow minute of the machine meets them all."""
    took = [[once() for once in trainings] for _ in range(REPEATS)]
    return [statistics.median(times) for times in zip(*took, strict=True)]


def report() -> list[str]:
    by_silos = seconds([training(n, 1) for n in COUNTS])
    by_runs = seconds([training(10, n) for n in COUNTS])
    draw(by_silos, by_runs)
    lines = [
        "## Growth",
        "",
        "Seconds a round, a small CNN, 100 training examples a silo (median of five; one run, ten silos where"
        " not varied).",
        "",
        "| | " + " | ".join(map(str, COUNTS)) + " | 16 x the work costs |",
        "| --- |" + " ---: |" * (len(COUNTS) + 1),
    ]
    for name, times in (("silos", by_silos), ("runs", by_runs)):
        shown = " | ".join(f"{t:.3f}" for t in times)
        lines.append(f"| {name} | {shown} | {times[-1] / times[0]:.1f} x |")
    return [*lines, "", "![seconds a round over silos and runs](growth.png)"]


def draw(by_silos: list[float], by_runs: list[float]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, times, name in zip(figure.subplots(1, 2), (by_silos, by_runs), ("silos", "runs"), strict=True):
        axes.plot(COUNTS, times, "o-", color="#2a6f97", label="measured")
        slope = times[-1] / COUNTS[-1]
        axes.plot(COUNTS, [slope * n for n in COUNTS], "--", color="#8d99ae", label="proportional")
        axes.set_xlabel(name)
        axes.set_ylabel("seconds a round")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).parent / "growth.png", dpi=120)
