"""The job that all do, in one file that needs nothing but numpy and torch.

Every silo has as many rows as it takes steps of a whole batch, in the order in which they are taken. Pixels are
numbers already, and nothing is sampled: loading data costs the peers nothing.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 62


@dataclass(frozen=True)
class Job:
    """Silos of images and labels; who takes part in each round; how they train and are merged."""

    silos: list[tuple[torch.Tensor, torch.Tensor]]
    cohorts: list[list[int]]
    channels: int
    batch: int
    rate: float
    clip: float
    noise: float


def model(channels: int) -> nn.Sequential:
    """The built-in CNN of Coterie for images of 28 x 28."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, channels, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(32 * channels, 32),
        nn.ReLU(),
        nn.Linear(32, CLASSES),
    )


def write(
    path: Path, x: np.ndarray, y: np.ndarray, starts: list[int], cohorts: np.ndarray, **settings: float
):
    """Write a job; silo k has the rows from starts[k] to starts[k + 1]."""
    np.savez(path, x=x, y=y, starts=starts, cohorts=cohorts, settings=json.dumps(settings))


def read(path: str | Path) -> Job:
    with np.load(path) as found:
        x, y = torch.from_numpy(found["x"]).float() / 255, torch.from_numpy(found["y"]).long()
        starts, cohorts = found["starts"].tolist(), found["cohorts"].tolist()
        settings = json.loads(str(found["settings"]))
    silos = [(x[a:b], y[a:b]) for a, b in zip(starts[:-1], starts[1:], strict=True)]
    return Job(silos, cohorts, **settings)


@functools.cache
def read_once(path: str) -> Job:
    """Read a job, once a process."""
    return read(path)


def train(module: nn.Module, x: torch.Tensor, y: torch.Tensor, job: Job) -> None:
    """One local epoch of plain SGD."""
    optimizer = torch.optim.SGD(module.parameters(), lr=job.rate)
    for at in range(0, len(y), job.batch):
        optimizer.zero_grad()
        F.cross_entropy(module(x[at : at + job.batch]), y[at : at + job.batch]).backward()
        optimizer.step()


class Clock:
    """Notes time and processor time at the beginning of every round and at the end of the last.

    Processor time is that of the process `root` (this one, unless given) and of all that it started.
    """

    def __init__(self, root: int | None = None) -> None:
        self.root = root or os.getpid()
        self.ticks: list[tuple[float, float]] = []

    def tick(self) -> None:
        self.ticks.append((time.perf_counter(), processor_seconds(self.root)))

    def tell(self, versions: str) -> None:
        """Print what was measured, as the last line, for whoever started this; the first round warmed up."""
        spans = [
            (after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(self.ticks)
        ]
        seconds, processor = zip(*spans[1:], strict=True)
        print(json.dumps({"seconds": seconds, "processor": processor, "versions": versions}))


def processor_seconds(root: int) -> float:
    """Processor time of a process and of all that it started, directly or not (Linux)."""
    parents, spent = {}, {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = place.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        number = int(place.parent.name)
        parents[number], spent[number] = int(words[1]), int(words[11]) + int(words[12])

    def mine(number: int) -> bool:
        while number and number != root:
            number = parents.get(number, 0)
        return number == root

    return sum(ticks for number, ticks in spent.items() if mine(number)) / os.sysconf("SC_CLK_TCK")
