"""What ledgers add to a training of many small silos, all on one disk."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from coterie.experiment import Experiment, Training
from coterie.keeping import Keeper
from coterie.metering import make_meter, open_ledgers
from coterie.methods import MRMTL
from coterie.plan import Plan
from coterie.privacy.budget import Privacy
from coterie.task import make_task

from .school import federation

SILOS, ROUNDS, TURNS = 139, 200, 5


def report() -> list[str]:
    """Time trainings of silos like schools, with and without ledgers, taking turns."""
    lines = [
        "## Ledgers",
        "",
        f"The School setting, {SILOS} silos, {ROUNDS} rounds; every silo has a ledger of its own, here all on"
        f" one disk. Medians of {TURNS} turns; the goal is 5 % and 20 ms a round.",
        "",
        "| runs together | without | with ledgers | added | a silo | a round |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for runs in (1, 5):
        made = _experiment(runs)
        plan = made.plan()
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS):
            times[0].append(_plain(made, plan))
            times[1].append(_metered(made, plan))
        without, metered = map(statistics.median, times)
        more = statistics.median(b - a for a, b in zip(*times, strict=True))
        lines.append(
            f"| {runs} | {without:.2f} s | {metered:.2f} s | {more / without:+.0%} | {more / SILOS * 1e3:.1f} ms"
            f" | {more / ROUNDS * 1e3:.1f} ms |"
        )
    return lines


def _experiment(runs: int) -> Experiment:
    data, _ = federation()
    task = make_task("linear", shape=data.shape, classes=0)
    training = Training(rounds=ROUNDS, batch=32, lr=0.01, seeds=tuple(range(runs)))
    return Experiment(data, task, MRMTL(lam=1.0), Privacy(epsilon=6, delta=1e-3), training)


def _plain(made: Experiment, plan: Plan) -> float:
    began = time.perf_counter()
    made.train(plan)
    return time.perf_counter() - began


def _metered(made: Experiment, plan: Plan) -> float:
    with tempfile.TemporaryDirectory() as folder:
        for ledger in open_ledgers(Path(folder), made.federation, "schools", [(1e4, 0.5)] * SILOS):
            ledger.close()
        began = time.perf_counter()
        meter = make_meter(Path(folder), made.federation, "schools", [None] * SILOS)
        made.train(plan, keeper=Keeper(Path(folder) / "checkpoint", "key", meter))
        meter.close()
        return time.perf_counter() - began
