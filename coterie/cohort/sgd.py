"""SGD of a whole cohort without clips: only the sum of each batch's gradients is made.

A step is cut into parts, each of some pairs with batches of about the same length, small enough that what
it makes stays near the processor. Parts are worked on at once, a core each.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._threads import at_once
from ..tasks.task import Task
from .derived import derived
from .examples import Examples
from .gradients.choose import stages, summer
from .gradients.clipping import allocated, zeros_of
from .sampling import WIDE, Batches
from .step import Pace

# Bytes of all tensors that a part makes; more, and they no longer stay near the processor.
NEAR = 2**26


@dataclass(frozen=True)
class Room:
    """How much is worked on at once: bytes of a part, of which each row and each example take some."""

    part: int
    row: int
    example: int
    cores: int

    def cut(self, length: np.ndarray, pairs: np.ndarray) -> list[np.ndarray]:
        """Cut pairs into parts, the longest batches first; those with nothing to do are one part."""
        order = pairs[np.argsort(-length[pairs], kind="stable")]
        busy = int(np.count_nonzero(length[order]))
        share = float(self.part)
        if self.cores > 1:  # as many parts for every core
            cost = self.row * busy + self.example * int(length[order].sum())
            turns = max(1, -(-cost // (self.part * self.cores)))
            share = min(share, cost / (turns * self.cores) + self.row)
        parts, first = [order[busy:]] if busy < len(order) else [], 0
        while first < busy:
            each = self.row + self.example * int(length[order[first]])
            last = min(busy, first + max(1, int(share // each)))
            parts.append(order[first:last])
            first = last
        return parts

    @property
    def widest(self) -> int:
        """How many examples of one pair are taken at once."""
        return max(1, (self.part - self.row) // self.example)


def room_for(task: Task, memory: int, expected: np.ndarray) -> Room:
    """Choose how much is worked on at once; a core each pays only where there is much to do and to share."""
    row, example = bytes_of_sums(task)
    cores = max(1, min(torch.get_num_threads(), memory // (row + example)))
    much = row * len(expected) + example * float(expected.sum()) > NEAR
    if task.device.type != "cpu" or cores == 1 or len(expected) < 2 * cores or not much:
        return Room(memory, row, example, 1)
    return Room(min(NEAR, memory // cores), row, example, cores)


@derived
def bytes_of_sums(task: Task) -> tuple[int, int]:
    """Bound the memory that a pair takes and that each of its examples takes, by trials on zeros."""

    sums = summer(task)

    def trial(width: int) -> None:
        vectors = torch.zeros(1, task.layout.size, device=task.device)
        x, y = zeros_of(task, 1, width)
        real = torch.ones(1, width, device=task.device)
        task.layout.flatten(sums(task.layout.unflatten(vectors), x, y, real))

    narrow, wide = (allocated(functools.partial(trial, width)) for width in (1, 1 + WIDE))
    example = max(1, -(-(wide - narrow) // WIDE))
    return max(1, narrow - example), example


def walk(
    task: Task,
    examples: Examples,
    vectors: Tensor,
    silo: np.ndarray,
    steps: np.ndarray,
    pace: Pace,
    batches: Iterable[Batches],
    room: Room,
) -> Tensor:
    """Take the steps of all pairs, writing over their `vectors` `[pairs, P]`; pair k is of silo `silo[k]`.

    Pair k takes `steps[k]` steps; `batches` has one entry for each step of the longest.
    """
    known = stages(task)
    if known is not None:
        from .compiled.walk import can_step, walk_compiled

        if can_step(known, examples, vectors, pace):
            return walk_compiled(known, examples, vectors, silo, steps, pace, batches, room.cores * room.part)
    summer(task)

    def advance(given: tuple[Batches, np.ndarray]) -> None:
        drawn, part = given
        here = torch.from_numpy(part).to(vectors.device)
        own = vectors[here]
        sums = _sums(task, examples, own, silo[part], drawn, part, room.widest)
        vectors[here] = pace.at(here).moved_by_parts(own, task.layout, sums)

    with at_once(room.cores) as each:
        for step, drawn in enumerate(batches):
            parts = room.cut(drawn.length, np.flatnonzero(steps > step))
            for _ in each(advance, [(drawn, part) for part in parts]):
                pass
    return vectors


def _sums(
    task: Task,
    examples: Examples,
    own: Tensor,
    silo: np.ndarray,
    drawn: Batches,
    part: np.ndarray,
    widest: int,
) -> dict[str, Tensor]:
    """Sum the gradients of the batches of a part, the longest batch first; nothing, if all are empty."""
    total: dict[str, Tensor] = {}
    longest = int(drawn.length[part[0]])
    place = torch.from_numpy(silo).to(own.device)[:, None]
    width = longest if len(part) > 1 else widest
    for first in range(0, longest, width or 1):
        taken, real = drawn.rectangle(part, first, min(first + width, longest))
        x, y = examples.gather(place, taken.to(own.device))
        found = summer(task)(task.layout.unflatten(own), x, y, real.to(own.device).float())
        total = {name: total[name] + value for name, value in found.items()} if total else found
    return total
