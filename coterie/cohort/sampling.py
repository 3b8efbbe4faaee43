"""Poisson batches of a whole cohort, laid out in short rows.

Poisson batches differ in length, so a padded `[silos, longest batch]` would waste half its
work. Instead a batch is cut into short rows of examples, each row owned by one
(run, silo) pair; only the last row of a batch is padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

WIDTH = 4
WIDE = 8


@dataclass(frozen=True)
class Work:
    """One silo's local work in one call of a door: `steps` Poisson batches at `rate`.

    The sampler and the privacy event are both made from this record, so they agree.
    `size` is the declared number of examples; sums are divided by `expected`, never by
    the batch that happened to be drawn.
    """

    size: int
    batch: int
    steps: int

    @property
    def rate(self) -> float:
        """Chance of each example to be in a batch."""
        return min(1.0, self.batch / self.size)

    @property
    def expected(self) -> float:
        """Expected size of a batch."""
        return float(min(self.batch, self.size))


def width_for(work: Sequence[Work]) -> int:
    """Choose the width of rows: short for small batches, which would be mostly padding."""
    return WIDTH if sum(w.expected for w in work) < 2 * WIDE * len(work) else WIDE


def epochs_of_work(size: int, batch: int, epochs: float) -> Work:
    """Give the work of so many expected passes over the silo's examples."""
    return Work(size, min(batch, size), max(1, round(epochs * size / min(batch, size))))


@dataclass(frozen=True, eq=False)
class Rows:
    """One step's batches: `pair`, `silo` are `[rows]`; `example`, `real` are `[rows, width]`."""

    pair: Tensor
    silo: Tensor
    example: Tensor
    real: Tensor

    def __len__(self) -> int:
        return len(self.pair)

    def part(self, start: int, stop: int) -> Rows:
        """Give some of the rows."""
        cut = slice(start, stop)
        return Rows(self.pair[cut], self.silo[cut], self.example[cut], self.real[cut])

    def to(self, device: str) -> Rows:
        """Move the rows to a device."""
        parts = (self.pair, self.silo, self.example, self.real)
        return Rows(*(part.to(device) for part in parts))


def toss(generator: np.random.Generator, work: Work, steps: int, out: np.ndarray) -> None:
    """Toss a coin for every step and example, into `steps * size` booleans.

    The rate that runs is never above the one that is charged: a draw is a multiple of
    2^-53, and the threshold lies just below the rate.
    """
    if work.rate >= 1:
        out[:] = True
        return
    draws = generator.random(steps * work.size)
    np.less(draws, math.nextafter(work.rate, 0), out=out)


def coins(generator: np.random.Generator, work: Work, steps: int) -> np.ndarray:
    """Toss a coin for every step and example: `[steps, size]` booleans."""
    tossed = np.empty(steps * work.size, dtype=bool)
    toss(generator, work, steps, tossed)
    return tossed.reshape(steps, work.size)


@dataclass(frozen=True)
class Hand:
    """Where the coins of one (run, silo) pair lie among the coins of all: `steps * size` from `start`."""

    pair: int
    silo: int
    size: int
    steps: int
    start: int

    @property
    def end(self) -> int:
        """Where they end."""
        return self.start + self.steps * self.size


def lay_out(tossed: np.ndarray, hands: Sequence[Hand], steps: int, width: int = WIDTH) -> list[Rows]:
    """Lay out the batches of all pairs as rows, one `Rows` a step."""
    hits = np.flatnonzero(tossed)
    facts = np.array([(hand.pair, hand.silo, hand.size, hand.start) for hand in hands]).T
    drawn = np.add.reduceat(tossed, facts[3], dtype=np.int64)
    pair_of, silo_of, size_of, start_of = (np.repeat(fact, drawn) for fact in facts)
    step_of, example_of = np.divmod(hits - start_of, size_of)
    kind = np.int16 if steps < 2**15 else np.int64  # short numbers are sorted faster
    order = np.argsort(step_of.astype(kind), kind="stable")  # by step; pairs stay together, in order
    pair_of, silo_of, step_of, example_of = (a[order] for a in (pair_of, silo_of, step_of, example_of))
    bounds = np.searchsorted(step_of, np.arange(steps + 1))
    return [
        rows_of(pair_of[a:b], silo_of[a:b], example_of[a:b], width)
        for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ]


def rows_of(pair: np.ndarray, silo: np.ndarray, example: np.ndarray, width: int = WIDTH) -> Rows:
    """Cut one step's examples, grouped by pair, into rows."""
    count = len(pair)
    new = np.ones(count, dtype=bool)
    new[1:] = pair[1:] != pair[:-1]
    start = np.maximum.accumulate(np.where(new, np.arange(count), 0)) if count else np.zeros(0, int)
    place = np.arange(count) - start
    row = np.cumsum(place % width == 0) - 1
    rows = int(row[-1]) + 1 if count else 0
    examples = np.zeros((rows, width), dtype=np.int64)
    real = np.zeros((rows, width), dtype=bool)
    examples[row, place % width] = example
    real[row, place % width] = True
    first = np.flatnonzero(place % width == 0)
    arrays = (pair[first].astype(np.int64), silo[first].astype(np.int64), examples, real)
    return Rows(*(torch.from_numpy(a) for a in arrays))
