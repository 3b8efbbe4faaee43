"""Exact noise: numbers per second next to numpy, and a metered training next to a simulated one."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.examples import Examples
from coterie.guard.secret_streams import EntropyStreams
from coterie.noise.dice import KeyedDice
from coterie.noise.keystream import Keystream
from coterie.noise.rounded import add_noise
from coterie.protocol.doors import Work
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import make_task

NUMBERS, REPEATS = 2_000_000, 7


def keyed(names) -> EntropyStreams:
    streams = EntropyStreams({name: name.encode().ljust(32) for name in names})
    for name in names:
        streams.begin(name, "row")
    return streams


def cpu_seconds(work) -> float:
    """Processor time of this process: the median of some repetitions."""
    work()
    took = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return statistics.median(took)


def drawing() -> list[str]:
    stream, words = Keystream(bytes(32)), np.empty((1, NUMBERS), dtype=np.uint64)
    sums, generator = np.zeros((1, NUMBERS)), np.random.Generator(np.random.SFC64(0))

    def exact():
        stream.fill(words)
        add_noise(sums, np.ones(1), words, [KeyedDice(bytes(32))])

    parties = {
        "AES-CTR keystream alone, 64 bits per number": lambda: stream.fill(words),
        "exact noise on the grid (keystream, quantile, rounding)": exact,
        "numpy standard_normal, float64, SFC64": lambda: generator.standard_normal(NUMBERS),
        "numpy standard_normal, float32, SFC64": lambda: generator.standard_normal(NUMBERS, dtype=np.float32),
    }
    rows = [f"| {name} | {NUMBERS / cpu_seconds(work) / 1e6:.0f} |" for name, work in parties.items()]
    return ["| one core | million numbers per second |", "| --- | ---: |", *rows]


def training(name, task, sizes, batch, steps) -> str:
    """Rounds of one descend, the two kinds of streams taking turns."""
    generator = torch.Generator().manual_seed(0)
    longest, names = max(sizes), tuple(f"s{k}" for k in range(len(sizes)))
    x = torch.rand(len(sizes), longest, *task.shape, generator=generator)
    labels = torch.randint(0, 10, (len(sizes), longest), generator=generator)
    y = labels if task.classes else labels / 10
    full = torch.ones(1, len(sizes))
    work = tuple(Work(size, min(batch, size), steps) for size in sizes)
    cohort = Cohort(task, Examples(names, tuple(sizes), x, y, 1.0), work, Settings(0.1 * full, full, full))
    start = task.initial(0).expand(1, len(sizes), -1)
    streams, times = (
        {"simulated": SeededStreams(((0, 0),)), "metered": keyed(names)},
        {"simulated": [], "metered": []},
    )
    for round_ in range(2 * REPEATS + 1):
        for kind in streams:
            began = time.perf_counter()
            descend(cohort, start, streams[kind], round_, 0)
            if round_:
                times[kind].append(time.perf_counter() - began)
    ratios = [m / s for m, s in zip(times["metered"], times["simulated"], strict=True)]
    both = [1000 * statistics.median(times[kind]) for kind in ("simulated", "metered")]
    return f"| {name} | {both[0]:.1f} | {both[1]:.1f} | {statistics.median(ratios):.2f} (goal 1.3) |"


def report() -> list[str]:
    cnn = make_task("cnn", shape=(28, 28), classes=10)
    linear = make_task("linear", shape=(28,), classes=0)
    school = np.linspace(22, 199, 139).round().astype(int).tolist()
    rows = [
        training(f"small CNN, {cnn.layout.size:,} parameters, ten silos, batch 32", cnn, [640] * 10, 32, 10),
        training(f"School, {linear.layout.size} parameters, 139 silos, batch 32", linear, school, 32, 20),
    ]
    return [
        "## Exact noise",
        "",
        *drawing(),
        "",
        "| one call of `descend` | simulated, ms | metered, ms | metered : simulated |",
        "| --- | ---: | ---: | ---: |",
        *rows,
        "",
        "Metered means exact noise and coins from a keystream, without the ledger's own writes (see Ledgers).",
    ]
