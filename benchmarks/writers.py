"""FEMNIST by writer, whole silos protected: what a round costs.

200 writers, 100 of them a round, one local epoch; a CNN of 100 k parameters. Silos train without clips
and noise of their own: uploads are clipped and noised at the merge.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from coterie.data.federation import Federation, from_table, load
from coterie.data.sources.table import Table
from coterie.engines.simulation import simulate
from coterie.errors import Problem
from coterie.experiment.experiment import Experiment
from coterie.methods import MRMTL, FedAvg
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.protocol.method import Method
from coterie.tasks.task import make_task

SILOS, SHARE, BATCH, CHANNELS, CLIP, RATE = 200, 0.5, 32, 50, 1.0, 0.1
ROUNDS, GOAL = 6, 4.0


def federation() -> tuple[Federation, str]:
    """FEMNIST from COTERIE_DATA, else made-up images of as many silos and about the same sizes."""
    try:
        return load("femnist", silos=SILOS, test="official"), "FEMNIST"
    except Problem:
        generator = np.random.default_rng(0)
        sizes = np.linspace(140, 240, SILOS).round().astype(int)
        x = generator.integers(0, 256, size=(sizes.sum(), 28, 28), dtype=np.uint8)
        silo = np.repeat([f"s{k}" for k in range(SILOS)], sizes)
        table = Table("made up", x, np.arange(sizes.sum()) % 62, silo)
        return from_table(table, test=0.1), "made-up images of FEMNIST's size"


def rounds(
    data: Federation, method: Method, count: int, batch: int = BATCH, tick: Callable[[], None] | None = None
) -> Iterator[float]:
    """Train so many rounds and one to warm up; give the seconds of each of the others; `tick` after each."""
    task = make_task("cnn", shape=data.shape, classes=len(data.classes), options={"channels": CHANNELS})
    training = Training(rounds=count + 1, batch=batch, lr=RATE, participation=Participation(SHARE))
    privacy = Privacy(epsilon=8, delta=1e-3, clip=CLIP, unit="silo")
    made = Experiment(data, task, method, privacy, training)
    made.check()
    plan = made.plan()
    states = simulate(made.running, made.cohort(plan), plan, made.roster, [0], made.streams())
    next(states)
    for number in range(count + 1):
        began = time.perf_counter()
        next(states)
        took = time.perf_counter() - began
        if tick is not None:
            tick()
        if number:
            yield took


def report() -> list[str]:
    data, name = federation()
    lines = [
        f"## {name}: {SILOS} silos, {int(SHARE * SILOS)} a round, one epoch, a CNN of 100 k parameters",
        "",
        "The unit is the silo: uploads are clipped and noised at the merge. Without scoring.",
        "",
        "| method | batch | a round, s | goal |",
        "| --- | ---: | ---: | ---: |",
    ]
    for method in (FedAvg(), MRMTL(lam=0.1)):
        took = list(rounds(data, method, ROUNDS))
        lines.append(f"| {method.name} | {BATCH} | {statistics.median(took):.2f} | {GOAL:g} |")
    return lines
