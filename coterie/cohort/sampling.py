"""Draw the batches of a whole cohort and lay them out in short rows.

Batches are Poisson samples, or the steps of passes in which every example is in exactly one step, drawn on
its own (`Work.sampler`). Both differ in length, so padding them to `[silos, longest batch]` would waste about
half the work. Instead, each batch is cut into short rows of examples. A row belongs to one (run, silo) pair.
In a simulation the examples of a batch lie one after the other, and only its last row is padded.

**A metered batch** gives nothing away by its shape. It has a public number of slots (`slots_for`), however
many examples were drawn. A batch that needs more is drawn again; the examples get random distinct slots.
So the shape and the place of everything that a step computes depend on public facts only. The guarantee of a
sampled sum follows. Take example i, and fix which other examples were drawn and the slots they got; neither
depends on the data. If there is a free slot, example i is in the batch with probability `rate`; if not, with
probability 0. The slots of the others are distributed the same way in both cases, because any part of a
random injection is a random injection. If i was not drawn, or is a null example, its slot is blank: the same
inputs, at the same places, through the same operations, so the same bits. If it was drawn, it stands in one
slot, and the sum moves by at most the clip (`coterie.cohort.gradients`). This is the Gaussian mechanism
sampled at `rate` at most, and a smaller rate is never worse. Conditioning on small batches therefore costs no
privacy. It costs some work (blank slots) and makes the mean batch a little smaller than expected.

**A metered pass** has slots, too, but drawing a single batch of it again would be wrong: given the others, an
example must be in each step of the pass with the same probability. So there are enough slots for nearly all
passes, and a pass of which one batch is too large is drawn again as a whole. The accountant's delta pays for
that (`coterie.privacy.pld.allocation`, which has the proof). The rest of the argument is as above.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from ..noise.places import put_in_slots
from ..privacy.pld.allocation import REDRAWN
from ..protocol.doors import ALLOCATION, Work
from ..protocol.streams import Dice

WIDTH = 4
WIDE = 8
LARGEST_BATCH = 40_000  # slots of a metered batch: `coterie.cohort.gradients` pays for so many


def width_for(work: Sequence[Work]) -> int:
    """Return the row width: narrow for small batches, which would otherwise be mostly padding."""
    return WIDTH if sum(w.expected for w in work) < 2 * WIDE * len(work) else WIDE


def slots_for(work: Work) -> int:
    """Return how many slots a metered batch has, in whole rows.

    A Poisson batch has one standard deviation more than expected, a batch of a pass nearly as many as ever.
    """
    if work.sampler == ALLOCATION:
        return _slots_in_pass(work)
    spread = math.sqrt(work.expected * (1 - work.rate))
    width = width_for((work,))
    return width * math.ceil(min(work.size, work.expected + spread) / width)


@functools.lru_cache(maxsize=1024)
def _slots_in_pass(work: Work) -> int:
    """Return the fewest slots, in whole rows, of which every batch of a pass leaves one free.

    The exception has half the probability `REDRAWN`; the other half is left for rounding in the tail of the
    binomial distribution.
    """
    width = width_for((work,))
    for slots in range(width * math.ceil(work.expected / width), work.size, width):
        reached = betainc(slots, work.size - slots + 1, work.rate)  # a batch has this many or more
        if work.per_pass * reached <= REDRAWN / 2:
            return slots
    return width * math.ceil(work.size / width)


@dataclass(frozen=True, eq=False)
class Rows:
    """The batches of one step, as rows.

    `pair` and `silo` are `[rows]`; `example` and `real` are `[rows, width]`. `real` is False for padding.
    """

    pair: Tensor
    silo: Tensor
    example: Tensor
    real: Tensor

    def __len__(self) -> int:
        return len(self.pair)

    def part(self, start: int, stop: int) -> Rows:
        """Return the rows from `start` up to `stop`."""
        cut = slice(start, stop)
        return Rows(self.pair[cut], self.silo[cut], self.example[cut], self.real[cut])

    def to(self, device: str) -> Rows:
        """Return the rows on a device."""
        parts = (self.pair, self.silo, self.example, self.real)
        return Rows(*(part.to(device) for part in parts))


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of one step, end to end: pair k has `length[k]` examples, starting at `start[k]`."""

    example: np.ndarray
    start: np.ndarray
    length: np.ndarray

    def rectangle(self, pairs: np.ndarray, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return examples `first` to `last` of some pairs' batches, and which of them are real.

        Both results are `[pairs, last - first]`. A shorter batch is padded with one of its own examples,
        so an example with a broken gradient affects only the batches that contain it. No batch may be
        empty.
        """
        place = np.arange(first, last)
        length = self.length[pairs, None]
        taken = self.example[self.start[pairs, None] + np.minimum(place, length - 1)]
        return torch.from_numpy(taken), torch.from_numpy(place < length)


def end_to_end(
    hits: np.ndarray, counts: np.ndarray, columns: np.ndarray, steps: int, pairs: int
) -> list[Batches]:
    """Return the batches of all pairs end to end, one `Batches` per step."""
    step, owner, example = by_step(hits, counts, columns, steps)
    bounds = np.searchsorted(step, np.arange(steps + 1))
    pair = columns[0][owner]
    per_step = []
    for a, b in zip(bounds[:-1], bounds[1:], strict=True):
        length = np.bincount(pair[a:b], minlength=pairs)
        per_step.append(Batches(example[a:b], np.cumsum(length) - length, length))
    return per_step


class Draws:
    """What one (run, silo) pair draws in one call, step after step.

    It keeps the pass at hand, so batches do not depend on how many steps are drawn at a time.
    """

    def __init__(self, dice: Dice, work: Work) -> None:
        self.dice, self.work = dice, work
        self._step, self._pass = 0, np.empty(0, dtype=np.int64)

    def fill(self, hits: np.ndarray, slots: int) -> None:
        """Draw the next batches into booleans `[steps, size]`."""
        if self.work.sampler != ALLOCATION:
            self.dice.toss_batches(self.work.rate, hits, slots)
            return
        for batch in hits:
            step = self._step % self.work.per_pass
            if step == 0:
                self._pass = self.dice.allocate(self.work.size, self.work.per_pass, slots)
            np.equal(self._pass, step, out=batch)
            self._step += 1


def coins(dice: Dice, work: Work, steps: int) -> np.ndarray:
    """Draw the batches of a call; return which examples are in which step, booleans `[steps, size]`."""
    hits = np.empty((steps, work.size), dtype=bool)
    Draws(dice, work).fill(hits, slots_for(work))
    return hits


class CoinSegment(NamedTuple):
    """Where the `steps * size` coins of one (run, silo) pair lie in the array of all coins.

    `pair` counts only the pairs that take part. `slots` is the number of slots of a metered batch.
    """

    pair: int
    silo: int
    size: int
    steps: int
    start: int
    end: int
    slots: int


def toss_segment(segment: CoinSegment, draws: Draws, hits: np.ndarray) -> int:
    """Toss the coins of one segment into their place in `hits`; return the number of hits."""
    batches = hits[segment.start : segment.end].reshape(segment.steps, segment.size)
    draws.fill(batches, segment.slots)
    return int(np.count_nonzero(batches))


def slots_of_segment(segment: CoinSegment, dice: Dice, hits: np.ndarray) -> np.ndarray | None:
    """Return the slots of each step's hits, `[steps, slots]`; None if hits have no slots."""
    return dice.slots(hits[segment.start : segment.end].reshape(segment.steps, segment.size), segment.slots)


@functools.lru_cache(maxsize=256)
def coin_segments(
    work: tuple[Work, ...], runs: int, first: int, last: int, who: bytes
) -> tuple[list[CoinSegment], np.ndarray]:
    """Return a segment for every pair that steps between `first` and `last`, also as integer columns.

    `who` has one byte per pair: 0 if the pair does not take part.
    """
    segments, end = [], 0
    taking_part = [place for place in range(runs * len(work)) if who[place]]
    for pair, place in enumerate(taking_part):
        silo = place % len(work)
        silo_work = work[silo]
        steps = min(silo_work.steps, last) - first
        if steps > 0:
            start, end = end, end + steps * silo_work.size
            slots = slots_for(silo_work)
            segments.append(CoinSegment(pair, silo, silo_work.size, steps, start, end, slots))
    return segments, np.array([segment[:5] for segment in segments], dtype=np.int64).reshape(-1, 5).T


def by_step(
    hits: np.ndarray, counts: np.ndarray, columns: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return step, segment and example of every hit, sorted by step.

    Within a step, the hits of a segment stay together and in order.
    """
    _, _, size, _, start = columns
    owner = np.repeat(np.arange(len(size)), counts)
    step, example = np.divmod(np.flatnonzero(hits) - start[owner], size[owner])
    short = step.astype(np.int16 if steps < 2**15 else np.int64)  # short integers sort faster
    order = np.argsort(short, kind="stable")
    return step[order], owner[order], example[order]


def lay_out(hits: np.ndarray, counts: np.ndarray, columns: np.ndarray, steps: int, width: int) -> list[Rows]:
    """Return the batches of all pairs as rows, one `Rows` per step; `counts` are the hits per segment."""
    step, owner, example = by_step(hits, counts, columns, steps)
    pair, silo = columns[:2]
    rows, first = rows_of(step * len(pair) + owner, pair[owner], silo[owner], example, width)
    bounds = np.searchsorted(step[first], np.arange(steps + 1))
    return [rows.part(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def lay_out_in_slots(
    hits: np.ndarray, slots: list[np.ndarray], segments: list[CoinSegment], steps: int, width: int
) -> list[Rows]:
    """Return the batches of all pairs as rows, one `Rows` per step, with each hit in its own slot.

    A pair has the same rows in every step that it takes, whatever was drawn.
    """
    columns = np.array([segment[:5] for segment in segments], dtype=np.int64).reshape(-1, 5).T
    pair, silo, _, taken, _ = columns
    each = np.array([-(-segment.slots // width) for segment in segments], dtype=np.int64)
    rows = np.where(np.arange(steps)[:, None] < taken, each, 0)
    first = (np.cumsum(rows) - rows.reshape(-1)).reshape(rows.shape)
    examples = np.zeros((int(rows.sum()), width), dtype=np.int64)
    real = np.zeros(examples.shape, dtype=bool)
    for place, (segment, dealt) in enumerate(zip(segments, slots, strict=True)):
        batches = hits[segment.start : segment.end].reshape(segment.steps, segment.size)
        put_in_slots(batches, dealt, width * first[:, place], examples.reshape(-1), real.reshape(-1))
    owners = (np.repeat(np.tile(each_pair, steps), rows.reshape(-1)) for each_pair in (pair, silo))
    whole = Rows(*(torch.from_numpy(array) for array in (*owners, examples, real)))
    bounds = np.cumsum([0, *rows.sum(1).tolist()]).tolist()
    return [whole.part(a, b) for a, b in itertools.pairwise(bounds)]


def rows_of(
    group: np.ndarray, pair: np.ndarray, silo: np.ndarray, example: np.ndarray, width: int
) -> tuple[Rows, np.ndarray]:
    """Cut examples, sorted by group, into rows; also return the position of each row's first example."""
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
