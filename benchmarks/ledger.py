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

from coterie.experiment.experiment import Experiment
from coterie.guard.ledgers import open_ledgers
from coterie.guard.meter import make_meter
from coterie.guard.session import Session
from coterie.methods import MRMTL
from coterie.planning.plan import Plan
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.witness import FolderWitness
from coterie.tasks.task import make_task

from .school import federation

SILOS, ROUNDS, TURNS, COMMANDS = 139, 200, 5, 5
CONFIG = Path(__file__).parents[1] / "examples" / "school.toml"


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
    """Time `coterie run`, from its start to its last file, with numbers kept on disk and without."""
    if federation()[1] != "School":
        return ["The command was not timed: there is no school.npz in COTERIE_DATA."]
    lines = [
        f"The command `coterie run examples/{CONFIG.name}`, three methods of 5 runs: medians of {COMMANDS} turns,"
        " and the median of what ledgers added in a turn. Warm: noise found by an earlier command is kept on"
        " disk; a ledger does not believe it and computes every charge again.",
        "",
        "| calibration | measure | without | with ledgers | added |",
        "| --- | --- | --- | --- | --- |",
    ]
    times: dict[str, list[tuple[float, float]]] = {f"{a}{b}": [] for a in ("cold", "warm") for b in ("", "+")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for turn in range(COMMANDS):
            for key, spent in times.items():
                if key.startswith("cold"):
                    shutil.rmtree(folder / "cache", ignore_errors=True)
                spent.append(_command(folder, f"{key}{turn}", key.endswith("+")))
    for key in ("cold", "warm"):
        for place, measure in enumerate(("clock", "processor")):
            bare, full = ([both[place] for both in times[f"{key}{end}"]] for end in ("", "+"))
            without, metered = statistics.median(bare), statistics.median(full)
            more = statistics.median((b - a) / a for a, b in zip(bare, full, strict=True))
            lines.append(f"| {key} | {measure} | {without:.1f} s | {metered:.1f} s | {more:+.1%} |")
    return lines


def _command(folder: Path, name: str, metered: bool) -> tuple[float, float]:
    """Give the seconds of the clock and of the processor of one command; its ledgers were opened before."""
    own = folder / name
    command = [str(Path(sys.executable).with_name("coterie"))]
    given = ["--ledger", str(own / "ledgers")] if metered else []
    (own / "witness").mkdir(parents=True)
    where = {
        **os.environ,
        "COTERIE_CACHE": str(folder / "cache"),
        "COTERIE_WITNESS": str(own / "witness"),
    }
    if metered:
        asked = ["ledger", "open", str(CONFIG), *given, "--epsilon", "10000", "--delta", "0.5"]
        subprocess.run([*command, *asked], check=True, capture_output=True, env=where)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    asked = ["run", str(CONFIG), *given, "--out", str(own / "out"), "--json"]
    subprocess.run([*command, *asked], check=True, capture_output=True, env=where)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return ended - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
        custody = Custody(witness=FolderWitness(Path(folder) / "witness", make=True))
        for ledger in open_ledgers(Path(folder), made.federation, [(1e4, 0.5)] * SILOS, custody=custody):
            ledger.close()
        began = time.perf_counter()
        meter = make_meter(Path(folder), made.federation, [None] * SILOS, custody=custody)
        made.train(plan, session=Session(Path(folder) / "checkpoint", "key", meter))
        meter.close()
        return time.perf_counter() - began
