"""Doors: the operations through which a method may touch examples, and what each of them releases.

Plans, ledgers and statements all read from here what a call of a door releases, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import Refused
from ..privacy.events import Event, grouped

SAMPLES, WHOLE, CHOICE, HOME = "samples", "whole", "choice", "home"
ONE_NOISE = "a method releases sampled sums and whole uploads: one noise fits only one of them"


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


def epochs_of_work(size: int, batch: int, epochs: float) -> Work:
    """Return the work of `epochs` expected passes over a silo's examples."""
    return Work(size, min(batch, size), max(1, round(epochs * size / min(batch, size))))


class Noise(NamedTuple):
    """The noise of a silo's doors: the multiplier of its noisy sums, and the scale of its private choices."""

    sums: float = 1.0
    choices: float = 1.0


@dataclass(frozen=True, order=True)
class Door:
    """An operation through which a method may touch examples.

    What `kind` of door it is says what a call releases under the unit 'example': "samples" releases a noisy
    sum over a Poisson sample in each step, "whole" one noisy upload that depends on all examples at once,
    "choice" one private choice, "home" nothing: its result is raw and stays in the silo.
    All choices together may take `share` of epsilon. A door that is not `proven` adds a paper's noise, which
    certifies nothing.
    """

    name: str
    kind: str
    share: float = 0.0
    proven: bool = True

    def __str__(self) -> str:
        return f"{self.name} {self.share:g}" if self.kind == CHOICE else self.name

    def sums_per_call(self, steps: int) -> int:
        """Return how many noisy sums a call of `steps` steps releases."""
        return steps if self.kind == SAMPLES else 1

    def rate(self, work: Work) -> float:
        """Return the chance of each example to be in what one noisy sum adds up."""
        return work.rate if self.kind == SAMPLES else 1.0

    def releases(self, work: Work, noise: Noise, calls: int = 1, steps: int | None = None) -> Event | None:
        """Return what `calls` calls release, which take `steps` steps in all (None: all steps of the work).

        None if nothing is released.
        """
        steps = calls * work.steps if steps is None else steps
        count = steps if self.kind == SAMPLES else calls
        if self.kind == HOME or count == 0:
            return None
        if self.kind == CHOICE:
            return Event("selection", noise.choices, 1.0, count)
        return Event("gaussian", noise.sums, self.rate(work), count)


DESCEND = Door("descend", SAMPLES)
DESCEND_AT_HOME = Door("home", HOME)
FISHER = Door("fisher", HOME)
SOLVE_DUAL = Door("solve_dual", SAMPLES)
SOLVE_DUAL_WHOLE = Door("solve_dual whole", WHOLE)
SOLVE_DUAL_UNPROVEN = Door("solve_dual unproven", WHOLE, proven=False)


def select_door(share: float) -> Door:
    """Return the door of private choices that together may take `share` of epsilon."""
    return Door("select", CHOICE, share)


def solve_dual_door(whole: bool, unproven: bool) -> Door:
    """Return the door that moves duals: sampled, or whole, or with noise that certifies nothing."""
    if unproven:
        return SOLVE_DUAL_UNPROVEN
    return SOLVE_DUAL_WHOLE if whole else SOLVE_DUAL


class Calls(NamedTuple):
    """How a silo uses one door: the number of calls, and the steps of all of them."""

    door: Door
    calls: int
    steps: int


def released(used: Iterable[Calls], work: Work, noise: Noise) -> tuple[Event, ...]:
    """Return everything that calls of doors release: noisy sums, which share one noise and rate, and choices.

    Raise `Refused` if sampled sums and whole uploads come together.
    """
    used = tuple(used)
    if len({door.kind for door, calls, _ in used if calls and door.kind in (SAMPLES, WHOLE)}) > 1:
        raise Refused(ONE_NOISE)
    events = (door.releases(work, noise, calls, steps) for door, calls, steps in used)
    return grouped(event for event in events if event is not None)
