"""SGD and DP-SGD of a whole cohort: all runs and silos take their own steps, together."""

from __future__ import annotations

import functools
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..errors import Refused
from ..protocol.doors import ALLOCATION, Work
from ..protocol.optimizer import Optimizer
from ..protocol.streams import Streams
from ..tasks.task import Task
from .examples import Examples
from .gradients.clipping import clipped_sums, rows_within
from .imitation import Teacher, imitating
from .masks import MaskKeys, mask_keys
from .noise import add_noise, drawn_for, material_bytes
from .noise import fill as fill_noise
from .sampling import (
    Batches,
    CoinSegment,
    Draws,
    Rows,
    coin_segments,
    end_to_end,
    lay_out,
    lay_out_in_slots,
    slots_for,
    slots_of_segment,
    toss_segment,
    width_for,
)
from .sgd import chunking_for, walk
from .step import StepRule, damped

# How many numbers a pair must draw for a thread to pay off.
WORTH_A_THREAD = 20_000


@dataclass(frozen=True, eq=False)
class Settings:
    """What each run and silo trains with; all tensors are `[runs, silos]`.

    `noise` is the noise multiplier: noise of standard deviation `noise * clip` is added to the *sum* of a
    batch. An infinite clip requires noise 0 and means no privacy. `choice` is the scale of the noise that
    private choices add to the numbers they compare; None if there are no such choices. The `optimizer` is
    how all of them step. Where `proximal`, a step balances gradient and pull (see `step.damped`).
    """

    lr: Tensor
    clip: Tensor
    noise: Tensor
    choice: Tensor | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    proximal: Tensor | None = None

    def __post_init__(self) -> None:
        if bool((torch.isinf(self.clip) & (self.noise != 0)).any()):
            raise ValueError("noise needs a finite clip")

    def pick(self, places: list[int]) -> Settings:
        """Return the settings of some of the silos."""
        choice = None if self.choice is None else self.choice[:, places]
        proximal = None if self.proximal is None else self.proximal[:, places]
        lr, clip, noise = (value[:, places] for value in (self.lr, self.clip, self.noise))
        return Settings(lr, clip, noise, choice, self.optimizer, proximal)


@dataclass(frozen=True, eq=False)
class Cohort:
    """Silos that train together: their examples, work and settings."""

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
        """The device that holds the examples."""
        return str(self.examples.x.device)

    def pick(self, places: list[int]) -> Cohort:
        """Return the cohort of some of the silos."""
        work, settings = tuple(self.work[k] for k in places), self.settings.pick(places)
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
    rounds: int = 1,
) -> Tensor:
    """Take each silo's steps from `start` `[runs, silos, P]`, optionally pulled toward another vector.

    A step is `w - lr * (noisy mean gradient + strength * (w - toward))`. The pull acts outside the clip, so
    it costs no privacy as long as its target and strength have been released.

    Silos that are not `present` `[runs, silos]` take no step. The others take the steps of their work, or
    only the first `steps` `[runs, silos]` of them. With `imitate`, `strength` weighs the imitation of these
    vectors' predictions in the loss of each example (see `imitation`); there is no pull then. The learning
    rate may depend on the round, of `rounds`.
    """
    runs, silos, size = start.shape
    active = np.ones(runs * silos, dtype=bool)
    if present is not None:
        active = present.reshape(-1).cpu().numpy()
    pairs = torch.from_numpy(np.flatnonzero(active)).to(start.device)
    all_vectors = start.reshape(runs * silos, size)
    expected = torch.tensor([w.expected for w in cohort.work]).repeat(runs).reshape(-1, 1).to(start.device)
    counts = np.tile([w.steps for w in cohort.work], runs)[active]
    if steps is not None:
        if any(work.sampler == ALLOCATION for work in cohort.work):
            raise Refused("steps: passes are whole, so no silo may take only some of their steps")
        counts = np.minimum(counts, steps.reshape(-1).cpu().numpy()[active])
    pull, teacher = None, None
    model = toward if imitate is None else imitate
    if model is not None and strength is not None:
        target = model.expand_as(start).reshape(runs * silos, size)[pairs]
        force = strength.expand(runs, silos, -1).reshape(runs * silos, -1)[pairs]
        if imitate is None:
            pull = target, force
        else:
            teacher = Teacher(imitating(cohort.task), target, force)
    optimizer, lr = cohort.settings.optimizer, cohort.settings.lr.reshape(-1, 1)[pairs]
    if (factor := optimizer.factor(round_, rounds)) != 1:
        lr = lr * factor
    if pull is not None:
        balanced = cohort.settings.proximal
        lr = damped(lr, pull[1], None if balanced is None else balanced.reshape(-1, 1)[pairs])
    rule = StepRule(lr, expected[pairs], pull, optimizer)
    names = cohort.examples.names
    draws = [
        Draws(streams.dice(pair // silos, names[pair % silos], round_, call), cohort.work[pair % silos])
        for pair in pairs.tolist()
    ]
    masks = mask_keys(cohort.task, [pair.dice for pair in draws], start.device)
    if teacher is None and bool(torch.isinf(cohort.settings.clip.reshape(-1)[pairs]).all()):
        vectors = _without_clips(cohort, all_vectors[pairs], active, counts, rule, draws, masks)
    else:
        vectors = _with_clips(cohort, all_vectors[pairs], active, counts, rule, draws, masks, teacher)
    if active.all():
        return vectors.reshape(runs, silos, size)
    return all_vectors.index_copy(0, pairs, vectors).reshape(runs, silos, size)


def _without_clips(
    cohort: Cohort,
    vectors: Tensor,
    active: np.ndarray,
    counts: np.ndarray,
    rule: StepRule,
    draws: list[Draws],
    masks: MaskKeys | None,
) -> Tensor:
    """Take steps without privacy for examples, from the summed gradients of whole batches."""
    silo, who = np.flatnonzero(active) % len(cohort.work), active.tobytes()
    expected = np.array([w.expected for w in cohort.work])
    chunking = chunking_for(cohort.task, cohort.memory, expected[silo], cohort.examples.each)
    batches = (_draw_batches(cohort, draws, who, *block) for block in _blocks(cohort, draws, 0))
    drawn = itertools.chain.from_iterable(batches)
    return walk(cohort.task, cohort.examples, vectors, silo, counts, rule, drawn, chunking, masks)


def _with_clips(
    cohort: Cohort,
    vectors: Tensor,
    active: np.ndarray,
    counts: np.ndarray,
    rule: StepRule,
    draws: list[Draws],
    masks: MaskKeys | None,
    teacher: Teacher | None,
) -> Tensor:
    """Take steps from noisy sums of clipped gradients."""
    mask = torch.from_numpy(active).to(vectors.device)
    clip, noise = cohort.settings.clip.reshape(-1)[mask], cohort.settings.noise.reshape(-1)[mask]
    deviation = torch.where(noise == 0, 0.0, noise * clip).reshape(-1, 1)
    steps_left, fewest = torch.from_numpy(counts).to(vectors.device), min(counts, default=0)
    noisy = [bool(flag) for flag in (noise > 0).tolist()]
    task, each = cohort.task if teacher is None else teacher.task, cohort.examples.each
    chunk = rows_within(task, cohort.memory, each)
    size, who, dice = vectors.shape[1], active.tobytes(), [pair.dice for pair in draws]
    moments = rule.begin(vectors)
    blocks = (_draw(cohort, draws, noisy, size, who, *block) for block in _blocks(cohort, draws, size))
    for step, (rows, drawn) in enumerate(itertools.chain.from_iterable(blocks)):
        if step >= max(counts, default=0):
            break
        rows = rows.to(cohort.device)
        keys = None if masks is None else functools.partial(masks.at, step)
        gradient = clipped_sums(cohort.task, cohort.examples, vectors, rows, clip, chunk, teacher, keys)
        stepping = (steps_left > step).unsqueeze(1)
        noise_now = deviation if step < fewest else torch.where(stepping, deviation, 0.0)
        moved = rule.moved(vectors, add_noise(gradient, noise_now, drawn, dice), moments)
        vectors = moved if step < fewest else torch.where(stepping, moved, vectors)
    return vectors


def _draw_batches(cohort: Cohort, draws: list[Draws], who: bytes, first: int, last: int) -> list[Batches]:
    """Draw the batches of the steps from `first` up to `last`."""
    segments, columns = coin_segments(cohort.work, cohort.runs, first, last, who)
    hits = np.empty(segments[-1].end if segments else 0, dtype=bool)
    counts = np.array(
        [toss_segment(segment, draws[segment.pair], hits) for segment in segments], dtype=np.int64
    )
    return end_to_end(hits, counts, columns, last - first, len(draws))


def _draw(
    cohort: Cohort,
    draws: list[Draws],
    noisy: list[bool],
    size: int,
    who: bytes,
    first: int,
    last: int,
) -> list[tuple[Rows, np.ndarray]]:
    """Draw batches and the material of noise, from step `first` up to `last`; return one tuple per step."""
    segments, columns = coin_segments(cohort.work, cohort.runs, first, last, who)
    hits = np.empty(segments[-1].end if segments else 0, dtype=bool)
    dice = [pair.dice for pair in draws]
    noises = drawn_for(dice, last - first, size)

    def fill(segment: CoinSegment) -> tuple[int, np.ndarray | None]:
        if noisy[segment.pair]:
            fill_noise(dice[segment.pair], noises[segment.pair, : segment.steps])
        count = toss_segment(segment, draws[segment.pair], hits)
        return count, slots_of_segment(segment, dice[segment.pair], hits)

    if size * (last - first) < WORTH_A_THREAD:
        drawn = [fill(segment) for segment in segments]
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            drawn = list(pool.map(fill, segments))
    slots = [part for _, part in drawn if part is not None]
    if slots:
        rows = lay_out_in_slots(hits, slots, segments, last - first, width_for(cohort.work))
    else:
        counts = np.array([count for count, _ in drawn], dtype=np.int64)
        rows = lay_out(hits, counts, columns, last - first, width_for(cohort.work))
    return [(rows[step], noises[:, step]) for step in range(last - first)]


def _blocks(cohort: Cohort, draws: list[Draws], size: int) -> list[tuple[int, int]]:
    """Cut the steps into blocks whose draws fit into a quarter of the memory."""
    longest = max(work.steps for work in cohort.work)
    largest = max(work.size for work in cohort.work)
    places = sum(slots_for(w) if w.sampler == ALLOCATION else w.expected for w in cohort.work)
    coin_bytes = 16 * largest + 24 * places * cohort.runs
    noise_bytes = material_bytes([pair.dice for pair in draws]) * len(draws) * size
    length = max(1, int(cohort.memory / 4 / (noise_bytes + coin_bytes)))
    return [(first, min(first + length, longest)) for first in range(0, longest, length)]
