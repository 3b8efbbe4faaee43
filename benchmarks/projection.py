"""PFA: what a round costs, and how much of it is the server's search for directions."""

from __future__ import annotations

import time

import numpy as np

from coterie.data.federation import from_table
from coterie.data.partition import Partition
from coterie.data.sources.table import Table
from coterie.experiment.experiment import Experiment
from coterie.methods import PFA
from coterie.planning.plan import Plan
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.tasks.task import make_task

SILOS, SIZE, RUNS, STEPS = 30, 1200, 5, 100


def report() -> list[str]:
    """Train rounds of 30 silos of 1,200 made-up images, five runs together, 100 steps of 8 a round."""
    rows = SILOS * SIZE * 5 // 4
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, size=(rows, 784), dtype=np.uint8)
    table = Table("made up", x, generator.integers(0, 10, size=rows), None)
    data = from_table(table, silos=SILOS, partition=Partition("iid"))
    task = make_task("linear", shape=data.shape, classes=10)
    privacy = Privacy(epsilon={"each": [10.0, *[0.1] * 4]}, delta=1e-5)
    training = Training(
        rounds=3, steps=STEPS, batch=8, lr=0.02, seeds=tuple(range(RUNS)), participation=Participation(0.8)
    )
    made = Experiment(data, task, _Timed(), privacy, training)
    made.check()
    plan: Plan = made.plan()
    made.train(plan)  # warms up
    _Timed.spent = 0.0
    began = time.perf_counter()
    made.train(plan)
    took = (time.perf_counter() - began) / training.rounds
    share = _Timed.spent / training.rounds / took
    return [
        f"## PFA: {SILOS} silos of {SIZE}, linear model of 7,850, {RUNS} runs together, {STEPS} steps of 8 a round",
        "",
        f"A round takes {took:.2f} s (100 rounds: {100 * took / 60:.1f} min; the goal is 5 min). The server's"
        f" step (directions, projection, mean) is {share:.1%} of it (goal 5 %).",
    ]


class _Timed(PFA):
    """PFA with a clock on the server's step."""

    spent = 0.0

    def merge(self, shared, uploads, merger):  # type: ignore[no-untyped-def]
        """Merge, and add up the time."""
        began = time.perf_counter()
        found = super().merge(shared, uploads, merger)
        _Timed.spent += time.perf_counter() - began
        return found
