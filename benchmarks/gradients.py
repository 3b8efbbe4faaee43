"""A small CNN on ten silos: Coterie's cohort, Opacus silo by silo, plain SGD silo by silo."""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F

from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.examples import Examples
from coterie.protocol.doors import Work
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import make_task

SILOS, SIZE, STEPS, REPEATS = 10, 640, 10, 9


def ours(task, batch):
    """Private: Poisson batches, per-example clip, noise; all silos at once."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(SILOS, SIZE, 28, 28, generator=generator)
    y = torch.randint(0, 10, (SILOS, SIZE), generator=generator)
    examples = Examples(tuple(f"s{k}" for k in range(SILOS)), (SIZE,) * SILOS, x, y, 1.0)
    full = torch.ones(1, SILOS)
    cohort = Cohort(task, examples, (Work(SIZE, batch, STEPS),) * SILOS, Settings(0.1 * full, full, full))
    streams = SeededStreams(((0, 0),))
    state = {"w": task.initial(0).expand(1, SILOS, -1), "round": 0}

    def run():
        state["w"] = descend(cohort, state["w"], streams, state["round"], 0)
        state["round"] += 1

    return run


def opacus(task, batch):
    """Private: per-example clip and noise by Opacus's own optimizer, one silo after the other.

    Batches are ready-made tensors of the expected size: loaders and sampling cost it nothing.
    """
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    silos = []
    for _ in range(SILOS):
        module = GradSampleModule(task.build())
        sgd = torch.optim.SGD(module.parameters(), lr=0.1)
        optimizer = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch)
        silos.append((module, optimizer))
    return lambda: silo_by_silo(silos, batch)


def plain(task, batch):
    """Without privacy: plain SGD, one silo after the other, ready-made batches."""
    silos = []
    for _ in range(SILOS):
        module = task.build()
        silos.append((module, torch.optim.SGD(module.parameters(), lr=0.1)))
    return lambda: silo_by_silo(silos, batch)


def silo_by_silo(silos, batch):
    x, y = torch.rand(batch, 28, 28), torch.randint(0, 10, (batch,))
    for module, optimizer in silos:
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimizer.step()


def measure(batch):
    """Give examples a second of each party, and its medians of ratios to ours."""
    task = make_task("cnn", shape=(28, 28), classes=10)
    parties = {"coterie": ours(task, batch), "opacus": opacus(task, batch), "plain": plain(task, batch)}
    for run in parties.values():
        run()
    took: dict[str, list[float]] = {name: [] for name in parties}
    for _ in range(REPEATS):
        for name, run in parties.items():
            began = time.perf_counter()
            run()
            took[name].append(time.perf_counter() - began)
    rates = {name: SILOS * STEPS * batch / statistics.median(times) for name, times in took.items()}
    ratios = {
        name: statistics.median(t / o for t, o in zip(times, took["coterie"], strict=True))
        for name, times in took.items()
    }
    return task.layout.size, rates, ratios


def report() -> list[str]:
    lines = [
        "## A small CNN, ten silos",
        "",
        "Examples a second. Coterie and Opacus clip each example's gradient and add noise; plain SGD does"
        " neither. Coterie draws Poisson batches, the peers get ready-made batches of the expected size.",
        "",
        "| batch | parameters | Coterie | Opacus, silo by silo | plain SGD, silo by silo | Coterie : Opacus | Coterie : plain |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for batch, goals in ((8, (4, 1.2)), (32, (2.5, None))):
        size, rates, ratios = measure(batch)
        goal = f" (goal {goals[1]})" if goals[1] else ""
        lines.append(
            f"| {batch} | {size:,} | {rates['coterie']:,.0f} | {rates['opacus']:,.0f} | {rates['plain']:,.0f} |"
            f" {ratios['opacus']:.2f} (goal {goals[0]}) | {ratios['plain']:.2f}{goal} |"
        )
    return lines
