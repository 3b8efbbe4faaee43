"""Poisson batches of a whole cohort, laid out in short rows.

Poisson batches differ in length, so a padded `[silos, longest batch]` would waste half its
work. Instead a batch is cut into short rows of examples, each row owned by one
(run, silo) pair; only the last row of a batch is padded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..protocol.doors import Work

WIDTH = 4
WIDE = 8


def width_for(work: Sequence[Work]) -> int:
    """Choose the width of rows: short for small batches, which would be mostly padding."""
    return WIDTH if sum(w.expected for w in work) < 2 * WIDE * len(work) else WIDE


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


@dataclass(frozen=True, eq=False)
class Batches:
    """One step's batches end to end: pair k has `length[k]` examples, from `start[k]` on."""

    example: np.ndarray
    start: np.ndarray
    length: np.ndarray

    def rectangle(self, pairs: np.ndarray, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Give the examples from `first` to `last` of the batches of some pairs, and which are real.

        Both are `[pairs, last - first]`. Batches that are shorter repeat an example of their own, so that
        one that breaks a gradient breaks no batch that it is not in; none may be empty.
        """
        place = np.arange(first, last)
        length = self.length[pairs, None]
        taken = self.example[self.start[pairs, None] + np.minimum(place, length - 1)]
        return torch.from_numpy(taken), torch.from_numpy(place < length)


def end_to_end(
    hits: np.ndarray, counts: np.ndarray, columns: np.ndarray, steps: int, pairs: int
) -> list[Batches]:
    """Lay out the batches of all pairs end to end, one `Batches` a step."""
    step, owner, example = by_step(hits, counts, columns, steps)
    bounds = np.searchsorted(step, np.arange(steps + 1))
    pair = columns[0][owner]
    per_step = []
    for a, b in zip(bounds[:-1], bounds[1:], strict=True):
        length = np.bincount(pair[a:b], minlength=pairs)
        per_step.append(Batches(example[a:b], np.cumsum(length) - length, length))
    return per_step


def threshold(rate: float) -> float:
    """Give what a draw from [0, 1) must lie below to be a hit.

    The rate that runs is never above the one that is charged: draws are multiples of 2^-53,
    and the threshold lies just below the rate.
    """
    return 1.0 if rate >= 1 else math.nextafter(rate, 0)


def coins(generator: np.random.Generator, work: Work, steps: int) -> np.ndarray:
    """Toss a coin for every step and example: `[steps, size]` booleans."""
    return generator.random((steps, work.size)) < threshold(work.rate)


class CoinSegment(NamedTuple):
    """The coins of one (run, silo) pair among the coins of all: `steps * size` of them.

    `pair` counts those that take part.
    """

    pair: int
    silo: int
    size: int
    steps: int
    start: int
    end: int
    threshold: float


def toss_segment(segment: CoinSegment, sampler: np.random.Generator, hits: np.ndarray) -> int:
    """Toss the coins of a segment, to their place among the coins of all; give the number of hits."""
    coins_of_pair = hits[segment.start : segment.end]
    np.less(sampler.random(segment.end - segment.start), segment.threshold, out=coins_of_pair)
    return int(np.count_nonzero(coins_of_pair))


@functools.lru_cache(maxsize=256)
def coin_segments(
    work: tuple[Work, ...], runs: int, first: int, last: int, who: bytes
) -> tuple[list[CoinSegment], np.ndarray]:
    """Give the segments that have steps from `first` to `last`; their numbers also as columns.

    `who` has a byte for each pair, 0 for one that takes no part.
    """
    segments, end = [], 0
    taking_part = [place for place in range(runs * len(work)) if who[place]]
    for pair, place in enumerate(taking_part):
        silo = place % len(work)
        silo_work = work[silo]
        steps = min(silo_work.steps, last) - first
        if steps > 0:
            start, end = end, end + steps * silo_work.size
            segments.append(
                CoinSegment(pair, silo, silo_work.size, steps, start, end, threshold(silo_work.rate))
            )
    return segments, np.array([segment[:5] for segment in segments], dtype=np.int64).reshape(-1, 5).T


def by_step(
    hits: np.ndarray, counts: np.ndarray, columns: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give step, segment and example of every hit, by step; those of a segment stay together, in order."""
    _, _, size, _, start = columns
    owner = np.repeat(np.arange(len(size)), counts)
    step, example = np.divmod(np.flatnonzero(hits) - start[owner], size[owner])
    short = step.astype(np.int16 if steps < 2**15 else np.int64)  # short numbers are sorted faster
    order = np.argsort(short, kind="stable")
    return step[order], owner[order], example[order]


def lay_out(hits: np.ndarray, counts: np.ndarray, columns: np.ndarray, steps: int, width: int) -> list[Rows]:
    """Lay out the batches of all pairs as rows, one `Rows` per step; `counts` are the hits per segment."""
    step, owner, example = by_step(hits, counts, columns, steps)
    pair, silo = columns[:2]
    rows, first = rows_of(step * len(pair) + owner, pair[owner], silo[owner], example, width)
    bounds = np.searchsorted(step[first], np.arange(steps + 1))
    return [rows.part(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def rows_of(
    group: np.ndarray, pair: np.ndarray, silo: np.ndarray, example: np.ndarray, width: int
) -> tuple[Rows, np.ndarray]:
    """Cut examples, those of a group together, into rows; also give the first example of each row."""
    count = len(group)
    new = np.ones(count, dtype=bool)
    new[1:] = group[1:] != group[:-1]
    starts = np.flatnonzero(new)
    place = np.arange(count) - np.repeat(starts, np.diff(starts, append=count))
    slot = place % width
    first = np.flatnonzero(slot == 0)
    row = np.repeat(np.arange(len(first)), np.diff(first, append=count))
    examples = np.zeros((len(first), width), dtype=np.int64)
    real = np.zeros((len(first), width), dtype=bool)
    examples[row, slot] = example
    real[row, slot] = True
    arrays = (pair[first], silo[first], examples, real)
    return Rows(*(torch.from_numpy(a) for a in arrays)), first
