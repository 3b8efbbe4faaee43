"""Doors: the operations through which a method may touch examples, and what each of them releases.

This is the only place that decides what a call of a door releases; plans, ledgers and statements all use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import Problem, Refused
from ..privacy.events import Event, grouped

POISSON, ALLOCATION = "poisson", "allocation"  # samplers, as events name them
SAMPLES, WHOLE, CHOICE, HOME = "samples", "whole", "choice", "home"
ONE_NOISE = "a method releases both sampled sums and whole uploads, but one noise cannot fit both"


@dataclass(frozen=True)
class Work:
    """One silo's local work in one call of a door: `steps` batches, each with an example at `rate`.

    The `sampler` says how batches are drawn: "poisson" draws every example on its own in every step. With
    "allocation" the steps are whole passes, and in each pass every example is in exactly one of the
    `per_pass` steps: drawn uniformly, and on its own, so batches differ in size.

    The batches and the privacy event are both derived from this record, so they always agree.
    `size` is the declared number of examples. Sums are divided by `expected`, never by the size of the
    batch that was drawn.
    """

    size: int
    batch: int
    steps: int
    sampler: str = POISSON

    def __post_init__(self) -> None:
        if self.sampler not in (POISSON, ALLOCATION):
            raise Problem(f"batches are drawn by '{POISSON}' or '{ALLOCATION}', got '{self.sampler}'")
        if self.sampler == ALLOCATION:
            self.releases(1.0, self.steps)

    @property
    def per_pass(self) -> int:
        """The number of steps in a pass: the fewest that hold all examples in batches of this size."""
        return math.ceil(self.size / self.batch)

    @property
    def rate(self) -> float:
        """The probability that an example is in a batch."""
        return 1 / self.per_pass if self.sampler == ALLOCATION else min(1.0, self.batch / self.size)

    @property
    def expected(self) -> float:
        """The expected size of a batch."""
        return self.size / self.per_pass if self.sampler == ALLOCATION else float(min(self.batch, self.size))

    def releases(self, noise: float, steps: int) -> Event:
        """Return what noisy sums over this many batches release; raise `Refused` for a part of a pass."""
        if self.sampler == POISSON:
            return Event("gaussian", noise, self.rate, steps)
        passes, rest = divmod(steps, self.per_pass)
        if rest:
            raise Refused(
                f"{steps} steps are not whole passes over {self.size} examples, which take {self.per_pass}"
                " steps each"
            )
        return Event("gaussian", noise, self.rate, passes, ALLOCATION)


def epochs_of_work(size: int, batch: int, epochs: float, sampler: str = POISSON) -> Work:
    """Return the work of a number of passes over a silo's examples: expected ones, or whole ones."""
    batch = min(batch, size)
    if sampler == ALLOCATION:
        return Work(size, batch, round(epochs) * math.ceil(size / batch), sampler)
    return Work(size, batch, max(1, round(epochs * size / batch)), sampler)


class Noise(NamedTuple):
    """The noise of a silo's doors: the multiplier of its noisy sums, and the scale of its private choices."""

    sums: float = 1.0
    choices: float = 1.0


@dataclass(frozen=True, order=True)
class Door:
    """An operation through which a method may touch examples.

    The `kind` determines what a call releases under the unit 'example'. A "samples" door releases a noisy
    sum over a sample of the examples in each step; a "whole" door, one noisy upload that depends on all
    examples at once; a "choice" door, one private choice. A "home" door releases nothing: its result is raw
    and stays in the silo. All choices together may spend `share` of epsilon. A door that is not `proven` adds
    a paper's noise, which certifies nothing. The steps of a door may be whole `passes` over the examples only
    if that is proven for it.
    """

    name: str
    kind: str
    share: float = 0.0
    proven: bool = True
    passes: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.share:g}" if self.kind == CHOICE else self.name

    def sums_per_call(self, steps: int) -> int:
        """Return how many noisy sums one call with this many steps releases."""
        return steps if self.kind == SAMPLES else 1

    def releases(self, work: Work, noise: Noise, calls: int = 1, steps: int | None = None) -> Event | None:
        """Return what `calls` calls with `steps` steps in total release, or None if nothing is released.

        If `steps` is None, each call takes all steps of the work.
        """
        steps = calls * work.steps if steps is None else steps
        count = steps if self.kind == SAMPLES else calls
        if self.kind == HOME or count == 0:
            return None
        if self.kind == CHOICE:
            return Event("selection", noise.choices, 1.0, count)
        if work.sampler != POISSON and not self.passes:
            raise Refused(f"'{self.name}' is proven for Poisson samples only: use train.sampling = 'poisson'")
        if self.kind == SAMPLES:
            return work.releases(noise.sums, count)
        return Event("gaussian", noise.sums, 1.0, count)


DESCEND = Door("descend", SAMPLES, passes=True)
DESCEND_AT_HOME = Door("home", HOME)
FISHER = Door("fisher", HOME)
SOLVE_DUAL = Door("solve_dual", SAMPLES)
SOLVE_DUAL_WHOLE = Door("solve_dual whole", WHOLE)
SOLVE_DUAL_UNPROVEN = Door("solve_dual unproven", WHOLE, proven=False)


def select_door(share: float) -> Door:
    """Return the door of private choices that together may spend `share` of epsilon."""
    return Door("select", CHOICE, share)


def solve_dual_door(whole: bool, unproven: bool) -> Door:
    """Return the door that moves duals: sampled, or whole, or with noise that certifies nothing."""
    if unproven:
        return SOLVE_DUAL_UNPROVEN
    return SOLVE_DUAL_WHOLE if whole else SOLVE_DUAL


class Calls(NamedTuple):
    """How a silo uses one door: the number of calls, and their total number of steps."""

    door: Door
    calls: int
    steps: int


def released(used: Iterable[Calls], work: Work, noise: Noise) -> tuple[Event, ...]:
    """Return everything that calls of doors release: choices, and noisy sums with one noise and one rate.

    Raise `Refused` if both sampled sums and whole uploads are released.
    """
    used = tuple(used)
    if len({door.kind for door, calls, _ in used if calls and door.kind in (SAMPLES, WHOLE)}) > 1:
        raise Refused(ONE_NOISE)
    events = (door.releases(work, noise, calls, steps) for door, calls, steps in used)
    return grouped(event for event in events if event is not None)
