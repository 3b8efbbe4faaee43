"""What ledgers add to a training of many small silos, all on one disk."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coterie.experiment import Experiment
from coterie.keeping import Keeper
from coterie.metering import make_meter, open_ledgers
from coterie.methods import MRMTL
from coterie.plan import Plan
from coterie.privacy.budget import Privacy
from coterie.task import make_task
from coterie.training import Training

from .school import federation

SILOS, ROUNDS, TURNS, COMMANDS = 139, 200, 5, 3
CONFIG = """
[data]
source = "school"
test = 0.2
features = "standardize"
target_range = [1, 70]

[model]
name = "linear"
loss = "squared"

[train]
rounds = 200
batch = 32
lr = 0.01
seeds = 5

[privacy]
epsilon = 6
delta = 1e-3

[[method]]
name = "mr-mtl"
lam = 1.0
"""


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
    return [*lines, "", *_commands()]


def _commands() -> list[str]:
    """Time `coterie run`, from its start to its last file, with numbers kept on disk and without.

    Processor time of one thread: more steady than the clock on a machine with neighbours.
    """
    if federation()[1] != "School":
        return ["The command was not timed: there is no school.npz in COTERIE_DATA."]
    lines = [
        f"The command `coterie run`, one method, 5 runs: processor time, medians of {COMMANDS} turns. Warm: noise found by an"
        " earlier command is kept on disk; a ledger does not believe it and computes every charge again.",
        "",
        "| calibration | without | with ledgers | added |",
        "| --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "school.toml"
        config.write_text(CONFIG)
        times: dict[str, list[float]] = {key: [] for key in ("cold", "cold metered", "warm", "warm metered")}
        for turn in range(COMMANDS):
            for key, spent in times.items():
                if key.startswith("cold"):
                    shutil.rmtree(folder / "cache", ignore_errors=True)
                spent.append(_command(folder, config, f"{key} {turn}", "metered" in key))
    for key in ("cold", "warm"):
        without, metered = statistics.median(times[key]), statistics.median(times[f"{key} metered"])
        more = statistics.median(b - a for a, b in zip(times[key], times[f"{key} metered"], strict=True))
        lines.append(f"| {key} | {without:.1f} s | {metered:.1f} s | {more / without:+.0%} |")
    return lines


def _command(folder: Path, config: Path, name: str, metered: bool) -> float:
    """Give the processor time of one command, with ledgers that were opened before."""
    own = folder / name
    command = [str(Path(sys.executable).with_name("coterie"))]
    given = ["--ledger", str(own / "ledgers")] if metered else []
    where = {**os.environ, "COTERIE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    if metered:
        asked = ["ledger", "open", str(config), *given, "--epsilon", "10000", "--delta", "0.5"]
        subprocess.run([*command, *asked], check=True, capture_output=True, env=where)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    asked = ["run", str(config), *given, "--out", str(own / "out"), "--json"]
    subprocess.run([*command, *asked], check=True, capture_output=True, env=where)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
