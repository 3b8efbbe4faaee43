"""(DP-)SGD of a whole cohort: every run and silo takes its own steps, all at once."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..streams import Pair, Streams
from ..task import Task
from .allocator import keep_freed_memory
from .examples import Examples
from .gradients import clipped_sums, rows_within
from .sampling import Hand, Rows, Work, deal, lay_out, width_for

# How many numbers a pair must draw for a thread to pay.
WORTH_A_THREAD = 20_000


@dataclass(frozen=True, eq=False)
class Settings:
    """What each run and silo trains with, all `[runs, silos]`.

    `noise` is the multiplier: noise of deviation `noise * clip` is added to the *sum* of
    a batch. An infinite clip goes with noise 0: no privacy. `choice` is the scale of the
    noise on the numbers that private choices compare, if there are any.
    """

    lr: Tensor
    clip: Tensor
    noise: Tensor
    choice: Tensor | None = None

    def __post_init__(self) -> None:
        if bool((torch.isinf(self.clip) & (self.noise != 0)).any()):
            raise ValueError("noise needs a finite clip")


@dataclass(frozen=True, eq=False)
class Cohort:
    """Silos that train together: their examples, their work, their settings."""

    task: Task
    examples: Examples
    work: tuple[Work, ...]
    settings: Settings
    memory: int = 2**30

    @property
    def runs(self) -> int:
        """How many runs train together."""
        return self.settings.lr.shape[0]

    @property
    def device(self) -> str:
        """Where the examples are."""
        return str(self.examples.x.device)


def descend(
    cohort: Cohort,
    start: Tensor,
    streams: Streams,
    round_: int,
    call: int,
    toward: Tensor | None = None,
    strength: Tensor | None = None,
    present: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """Take each silo's steps from `start` `[runs, silos, P]`, with a pull toward another vector.

    A step is `w - lr * (noisy mean gradient + strength * (w - toward))`. The pull is
    outside the clip: it costs nothing as long as its target and strength are released.
    Silos that are not `present` `[runs, silos]` take no step; others those of their work, or the first
    so many of them that `steps` `[runs, silos]` says.
    """
    keep_freed_memory()
    runs, silos, size = start.shape
    active = np.ones(runs * silos, dtype=bool)
    if present is not None:
        active = present.reshape(-1).cpu().numpy()
    here = torch.from_numpy(np.flatnonzero(active)).to(start.device)
    whole = start.reshape(runs * silos, size)
    vectors = whole[here]
    lr = cohort.settings.lr.reshape(-1, 1)[here]
    clip, noise = cohort.settings.clip.reshape(-1)[here], cohort.settings.noise.reshape(-1)[here]
    deviation = torch.where(noise == 0, 0.0, noise * clip).reshape(-1, 1)
    expected = torch.tensor([w.expected for w in cohort.work]).repeat(runs).reshape(-1, 1).to(start.device)
    expected = expected[here]
    counts = np.tile([w.steps for w in cohort.work], runs)[active]
    if steps is not None:
        counts = np.minimum(counts, steps.reshape(-1).cpu().numpy()[active])
    steps_left, fewest = torch.from_numpy(counts).to(start.device), min(counts, default=0)
    pull = None
    if toward is not None and strength is not None:
        pull = (
            toward.expand_as(start).reshape(runs * silos, size)[here],
            strength.expand(runs, silos, 1).reshape(-1, 1)[here],
        )
    noisy = [bool(flag) for flag in (noise > 0).tolist()]
    chunk = rows_within(cohort.task, cohort.memory)
    names = cohort.examples.names
    dice = [streams.generators(pair // silos, names[pair % silos], round_, call) for pair in here.tolist()]
    who = active.tobytes()
    blocks = (_draw(cohort, dice, noisy, size, who, *block) for block in _blocks(cohort, len(dice), size))
    for step, (rows, drawn) in enumerate(itertools.chain.from_iterable(blocks)):
        if step >= max(counts, default=0):
            break
        gradient = clipped_sums(cohort.task, cohort.examples, vectors, rows.to(cohort.device), clip, chunk)
        gradient += deviation * drawn.to(start.device)
        gradient /= expected
        if pull is not None:
            gradient += pull[1] * (vectors - pull[0])
        moved = vectors - lr * gradient.float()
        vectors = moved if step < fewest else torch.where((steps_left > step).unsqueeze(1), moved, vectors)
    return whole.index_copy(0, here, vectors).reshape(runs, silos, size)


def _draw(
    cohort: Cohort,
    dice: list[Pair],
    noisy: list[bool],
    size: int,
    who: bytes,
    first: int,
    last: int,
) -> list[tuple[Rows, Tensor]]:
    """Draw the batches and the noise of the steps from `first` to `last`, a pair for each step."""
    hands, columns = deal(cohort.work, cohort.runs, first, last, who)
    tossed = np.empty(hands[-1].end if hands else 0, dtype=bool)
    noises = np.zeros((len(noisy), last - first, size), dtype=np.float32)

    def fill(hand: Hand) -> int:
        sampler, noise = dice[hand.pair]
        own = tossed[hand.start : hand.end]
        np.less(sampler.random(hand.end - hand.start), hand.threshold, out=own)
        if noisy[hand.pair]:
            noise.standard_normal(dtype=np.float32, out=noises[hand.pair, : hand.steps])
        return int(np.count_nonzero(own))

    if size * (last - first) < WORTH_A_THREAD:
        drawn = [fill(hand) for hand in hands]
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            drawn = list(pool.map(fill, hands))
    rows = lay_out(tossed, np.array(drawn, dtype=np.int64), columns, last - first, width_for(cohort.work))
    return [(rows[step], torch.from_numpy(noises[:, step])) for step in range(last - first)]


def _blocks(cohort: Cohort, pairs: int, size: int) -> list[tuple[int, int]]:
    """Cut the steps into blocks, so that what is drawn at once stays within a quarter of the memory."""
    longest = max(work.steps for work in cohort.work)
    largest = max(work.size for work in cohort.work)
    coin_bytes = 16 * largest + 24 * sum(w.expected for w in cohort.work) * cohort.runs
    length = max(1, int(cohort.memory / 4 / (4 * pairs * size + coin_bytes)))
    return [(first, min(first + length, longest)) for first in range(0, longest, length)]
