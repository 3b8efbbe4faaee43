"""What measures add to a run, and how scikit-learn's take beside them, one silo and run after the other."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pandas as pd
from sklearn import metrics as learn

import coterie as ct
from coterie.experiment import experiment
from coterie.measures.catalogue import METRICS
from coterie.measures.predictions import TWO, Predictions

SILOS, ROWS, SEEDS, ROUNDS = 12, 300, 5, 50
ALL = [name for name, metric in METRICS.items() if TWO in metric.kinds]
SLOW = {
    "accuracy": lambda y, p: learn.accuracy_score(y, p > 0.5),
    "balanced-accuracy": lambda y, p: learn.balanced_accuracy_score(y, p > 0.5),
    "auc": learn.roc_auc_score,
    "average-precision": learn.average_precision_score,
    "sensitivity": lambda y, p: learn.recall_score(y, p > 0.5),
    "specificity": lambda y, p: learn.recall_score(y, p > 0.5, pos_label=0),
    "f1": lambda y, p: learn.f1_score(y, p > 0.5, zero_division=0),
    "log-loss": learn.log_loss,
    "brier": learn.brier_score_loss,
}


def hospitals() -> ct.Federation:
    """Hospitals with 8 % positives."""
    generator, parts = np.random.default_rng(0), []
    for k in range(SILOS):
        x = generator.normal(size=(ROWS, 10))
        chance = 1 / (1 + np.exp(2.9 - x[:, :3].sum(1) - generator.normal(size=10) @ x.T / 4))
        sick = np.where(generator.random(ROWS) < chance, "yes", "no")
        parts.append(pd.DataFrame(x).assign(site=f"h{k}", sick=sick))
    return ct.load(pd.concat(parts), silo_column="site", target_column="sick", name="hospitals", test=0.3)


def shares(data: ct.Federation, metrics: list[str] | None, seeds: int) -> float:
    """Return the time for measures relative to the rest of a run, the median of three."""
    spent, real = [0.0], experiment.measures_of

    def timed(*given):  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        found = real(*given)
        spent[0] += time.perf_counter() - began
        return found

    found = []
    for _ in range(3):
        spent[0], began = 0.0, time.perf_counter()
        experiment.measures_of = timed
        methods = ["local", "fedavg", ct.MRMTL(lam=[0.1, 0.5, 1.0])]
        ct.run(data, methods, ct.Privacy(epsilon=4, delta=1e-3), rounds=ROUNDS, seeds=seeds, metrics=metrics)
        experiment.measures_of = real
        found.append(spent[0] / (time.perf_counter() - began - spent[0]))
    return statistics.median(found)


def beside(runs: int = 25) -> tuple[float, float]:
    """Return the seconds that our measures and scikit-learn's take for the same predictions."""
    generator, rows = np.random.default_rng(1), SILOS * 90
    targets = (generator.random(rows) < 0.2).astype(int)
    second = 1 / (1 + np.exp(-generator.normal(size=(runs, rows)) - targets + 1))
    values = np.stack([1 - second, second], -1)
    sound = np.ones((runs, SILOS), dtype=bool)
    made = Predictions(TWO, (90,) * SILOS, targets, values, sound, (second > 0.5).astype(int), values, True)
    ours, theirs = [], []
    for _ in range(3):
        began = time.perf_counter()
        fast = {name: METRICS[name].values(made).value for name in SLOW}
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        for name, slow in SLOW.items():
            for run in range(runs):
                for k in range(SILOS):
                    part = slice(90 * k, 90 * (k + 1))
                    assert abs(slow(targets[part], second[run, part]) - fast[name][run, k]) < 1e-9
        theirs.append(time.perf_counter() - began)
    return statistics.median(ours), statistics.median(theirs)


def report() -> list[str]:
    data = hospitals()
    ours, theirs = beside()
    return [
        "## Measures",
        "",
        f"What measures add to a run of {SILOS} hospitals with {ROWS} rows of ten numbers, 5 settings,"
        f" {ROUNDS} rounds, linear model (goal: under 5 %):",
        "",
        "| seeds | by default (AUC, balanced accuracy, accuracy) | all ten |",
        "| --- | --- | --- |",
        *(
            f"| {seeds} | {shares(data, None, seeds):.1%} | {shares(data, ALL, seeds):.1%} |"
            for seeds in (1, SEEDS)
        ),
        "",
        f"Nine measures of 25 runs, with intervals, take {ours:.3f} s. Those of scikit-learn take {theirs:.2f} s,"
        f" one silo and run after the other, without intervals: {theirs / ours:.0f} times as long.",
    ]
