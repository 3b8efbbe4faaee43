"""(DP-)SGD of a whole cohort: every run and silo takes its own steps, all at once."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..protocol.doors import Work
from ..protocol.streams import Pair, Streams
from ..tasks.task import Task
from .examples import Examples
from .gradients.clipping import clipped_sums, rows_within
from .imitation import Teacher, imitating
from .sampling import Batches, Hand, Rows, deal, end_to_end, lay_out, toss, width_for
from .sgd import room_for, walk
from .step import Pace

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

    def pick(self, places: list[int]) -> Cohort:
        """Give some of the silos."""
        own, work = self.settings, tuple(self.work[k] for k in places)
        choice = None if own.choice is None else own.choice[:, places]
        settings = Settings(own.lr[:, places], own.clip[:, places], own.noise[:, places], choice)
        return replace(self, examples=self.examples.pick(places), work=work, settings=settings)


def descend(
    cohort: Cohort,
    start: Tensor,
    streams: Streams,
    round_: int,
    call: int,
    toward: Tensor | None = None,
    strength: Tensor | None = None,
    present: Tensor | None = None,
    imitate: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """Take each silo's steps from `start` `[runs, silos, P]`, with a pull toward another vector.

    A step is `w - lr * (noisy mean gradient + strength * (w - toward))`. The pull is
    outside the clip: it costs nothing as long as its target and strength are released.
    Silos that are not `present` `[runs, silos]` take no step; others those of their work, or the first
    so many of them that `steps` `[runs, silos]` says. With `imitate` the strength is not that of a
    pull, but of imitating these vectors' predictions, in the loss of each example (see `imitation`).
    """
    runs, silos, size = start.shape
    active = np.ones(runs * silos, dtype=bool)
    if present is not None:
        active = present.reshape(-1).cpu().numpy()
    here = torch.from_numpy(np.flatnonzero(active)).to(start.device)
    whole = start.reshape(runs * silos, size)
    expected = torch.tensor([w.expected for w in cohort.work]).repeat(runs).reshape(-1, 1).to(start.device)
    counts = np.tile([w.steps for w in cohort.work], runs)[active]
    if steps is not None:
        counts = np.minimum(counts, steps.reshape(-1).cpu().numpy()[active])
    pull, teacher = None, None
    given = toward if imitate is None else imitate
    if given is not None and strength is not None:
        target = given.expand_as(start).reshape(runs * silos, size)[here]
        force = strength.expand(runs, silos, -1).reshape(runs * silos, -1)[here]
        if imitate is None:
            pull = target, force
        else:
            teacher = Teacher(imitating(cohort.task), target, force)
    pace = Pace(cohort.settings.lr.reshape(-1, 1)[here], expected[here], pull)
    names = cohort.examples.names
    dice = [streams.generators(pair // silos, names[pair % silos], round_, call) for pair in here.tolist()]
    if teacher is None and bool(torch.isinf(cohort.settings.clip.reshape(-1)[here]).all()):
        vectors = _without_clips(cohort, whole[here], active, counts, pace, dice)
    else:
        vectors = _with_clips(cohort, whole[here], active, counts, pace, dice, teacher)
    if active.all():
        return vectors.reshape(runs, silos, size)
    return whole.index_copy(0, here, vectors).reshape(runs, silos, size)


def _without_clips(
    cohort: Cohort, vectors: Tensor, active: np.ndarray, counts: np.ndarray, pace: Pace, dice: list[Pair]
) -> Tensor:
    """Take steps without privacy of examples, from sums of gradients of whole batches."""
    silo, who = np.flatnonzero(active) % len(cohort.work), active.tobytes()
    expected = np.array([w.expected for w in cohort.work])
    room = room_for(cohort.task, cohort.memory, expected[silo])
    batches = (_toss(cohort, dice, who, *block) for block in _blocks(cohort, len(dice), 0))
    drawn = itertools.chain.from_iterable(batches)
    return walk(cohort.task, cohort.examples, vectors, silo, counts, pace, drawn, room)


def _with_clips(
    cohort: Cohort,
    vectors: Tensor,
    active: np.ndarray,
    counts: np.ndarray,
    pace: Pace,
    dice: list[Pair],
    teacher: Teacher | None,
) -> Tensor:
    """Take steps from noised sums of clipped gradients."""
    here = torch.from_numpy(active).to(vectors.device)
    clip, noise = cohort.settings.clip.reshape(-1)[here], cohort.settings.noise.reshape(-1)[here]
    deviation = torch.where(noise == 0, 0.0, noise * clip).reshape(-1, 1)
    steps_left, fewest = torch.from_numpy(counts).to(vectors.device), min(counts, default=0)
    noisy = [bool(flag) for flag in (noise > 0).tolist()]
    chunk = rows_within(cohort.task if teacher is None else teacher.task, cohort.memory)
    size, who = vectors.shape[1], active.tobytes()
    blocks = (_draw(cohort, dice, noisy, size, who, *block) for block in _blocks(cohort, len(dice), size))
    for step, (rows, drawn) in enumerate(itertools.chain.from_iterable(blocks)):
        if step >= max(counts, default=0):
            break
        rows = rows.to(cohort.device)
        gradient = clipped_sums(cohort.task, cohort.examples, vectors, rows, clip, chunk, teacher)
        gradient += deviation * drawn.to(vectors.device)
        moved = pace.moved(vectors, gradient)
        vectors = moved if step < fewest else torch.where((steps_left > step).unsqueeze(1), moved, vectors)
    return vectors


def _toss(cohort: Cohort, dice: list[Pair], who: bytes, first: int, last: int) -> list[Batches]:
    """Draw the batches of the steps from `first` to `last`."""
    hands, columns = deal(cohort.work, cohort.runs, first, last, who)
    tossed = np.empty(hands[-1].end if hands else 0, dtype=bool)
    hits = np.array([toss(hand, dice[hand.pair][0], tossed) for hand in hands], dtype=np.int64)
    return end_to_end(tossed, hits, columns, last - first, len(dice))


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
        if noisy[hand.pair]:
            noise.standard_normal(dtype=np.float32, out=noises[hand.pair, : hand.steps])
        return toss(hand, sampler, tossed)

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
