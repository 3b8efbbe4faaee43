"""An LSTM classifier on one silo and on ten: Coterie's cells against Opacus' DPLSTM."""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.examples import Examples
from coterie.protocol.doors import Work
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import Task

SIZE, STEPS, REPEATS, BATCH = 640, 5, 5, 64
CHANNELS, CLASSES = 9, 6


class Classifier(nn.Module):
    """Cells along a series, and a linear layer after the last step."""

    def __init__(self, kind, hidden):
        super().__init__()
        self.cells, self.head = kind(CHANNELS, hidden, batch_first=True), nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


def ours(length, hidden, silos):
    """Private: Poisson batches, per-example clip, noise; all silos at once."""
    task = Task(lambda: Classifier(nn.LSTM, hidden), "cross-entropy", (length, CHANNELS), CLASSES)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(silos, SIZE, length, CHANNELS, generator=generator)
    y = torch.randint(0, CLASSES, (silos, SIZE), generator=generator)
    examples = Examples(tuple(f"s{k}" for k in range(silos)), (SIZE,) * silos, x, y, 1.0)
    full = torch.ones(1, silos)
    cohort = Cohort(task, examples, (Work(SIZE, BATCH, STEPS),) * silos, Settings(0.1 * full, full, full))
    streams = SeededStreams(((0, 0),))
    state = {"w": task.initial(0).expand(1, silos, -1), "round": 0}

    def run():
        state["w"] = descend(cohort, state["w"], streams, state["round"], 0)
        state["round"] += 1

    return run


def opacus(length, hidden, silos):
    """Private: per-example clip and noise by Opacus' own layer and optimizer, one silo after the other.

    Batches are ready-made tensors of the expected size: loaders and sampling cost it nothing.
    """
    from opacus import GradSampleModule
    from opacus.layers import DPLSTM
    from opacus.optimizers import DPOptimizer

    parties = []
    for _ in range(silos):
        module = GradSampleModule(Classifier(DPLSTM, hidden))
        sgd = torch.optim.SGD(module.parameters(), lr=0.1)
        optimizer = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH)
        parties.append((module, optimizer))
    x, y = torch.rand(BATCH, length, CHANNELS), torch.randint(0, CLASSES, (BATCH,))

    def run():
        for module, optimizer in parties:
            for _ in range(STEPS):
                optimizer.zero_grad()
                F.cross_entropy(module(x), y).backward()
                optimizer.step()

    return run


def measure(length, hidden, silos):
    """Return examples a second of both, and the median of ratios."""
    parties = {"coterie": ours(length, hidden, silos), "opacus": opacus(length, hidden, silos)}
    for run in parties.values():
        run()
    took: dict[str, list[float]] = {name: [] for name in parties}
    for _ in range(REPEATS):
        for name, run in parties.items():
            began = time.perf_counter()
            run()
            took[name].append(time.perf_counter() - began)
    rates = {name: silos * STEPS * BATCH / statistics.median(times) for name, times in took.items()}
    return rates, statistics.median(o / c for o, c in zip(took["opacus"], took["coterie"], strict=True))


def report() -> list[str]:
    lines = [
        "## An LSTM classifier",
        "",
        f"Examples a second: series of {CHANNELS} channels, batches of {BATCH}. Both clip each example's gradient"
        " and add noise. Coterie draws Poisson batches, Opacus' DPLSTM gets ready-made ones of the expected size.",
        "",
        "| steps | hidden | silos | Coterie | Opacus, silo by silo | Coterie : Opacus (goal 1) |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for length, hidden, silos in ((32, 32, 1), (32, 64, 1), (128, 64, 1), (32, 32, 10)):
        rates, ratio = measure(length, hidden, silos)
        lines.append(
            f"| {length} | {hidden} | {silos} | {rates['coterie']:,.0f} | {rates['opacus']:,.0f} | {ratio:.2f} |"
        )
    return lines
