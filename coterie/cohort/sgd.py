"""SGD of a whole cohort without clipping: only the sum of each batch's gradients is computed.

A step is cut into parts: groups of pairs whose batches have about the same length. A part is small enough
for its tensors to stay in the processor's cache. Parts run in parallel, one core each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._threads import at_once
from ..tasks.task import Task
from .derived import derived
from .examples import Examples, flat_rows
from .gradients.choose import stages, summer
from .gradients.clipping import allocated, zeros_of
from .masks import MaskKeys
from .sampling import WIDE, Batches
from .step import StepRule

# Bytes of all tensors that a part creates; with more, they no longer stay in the processor's cache.
NEAR = 2**26


@dataclass(frozen=True)
class Chunking:
    """How the work of a step is cut up: bytes per part, per pair and per example, and cores to use."""

    part_bytes: int
    pair_bytes: int
    example_bytes: int
    cores: int

    def cut(self, length: np.ndarray, pairs: np.ndarray) -> list[np.ndarray]:
        """Cut pairs into parts, longest batches first; pairs with empty batches form one part."""
        order = pairs[np.argsort(-length[pairs], kind="stable")]
        busy = int(np.count_nonzero(length[order]))
        share = float(self.part_bytes)
        if self.cores > 1:  # the same number of parts for every core
            cost = self.pair_bytes * busy + self.example_bytes * int(length[order].sum())
            turns = max(1, -(-cost // (self.part_bytes * self.cores)))
            share = min(share, cost / (turns * self.cores) + self.pair_bytes)
        parts, first = [order[busy:]] if busy < len(order) else [], 0
        while first < busy:
            each = self.pair_bytes + self.example_bytes * int(length[order[first]])
            last = min(busy, first + max(1, int(share // each)))
            parts.append(order[first:last])
            first = last
        return parts

    @property
    def widest(self) -> int:
        """The most examples of one pair that are processed at once."""
        return max(1, (self.part_bytes - self.pair_bytes) // self.example_bytes)


def chunking_for(task: Task, memory: int, expected: np.ndarray, each: int = 1) -> Chunking:
    """Choose how to cut up a step; several cores pay off only if there is enough work to share.

    `each` is the number of rows that belong to one of those who are drawn.
    """
    row, example = bytes_of_sums(task)
    example *= each
    cores = max(1, min(torch.get_num_threads(), memory // (row + example)))
    much = row * len(expected) + example * float(expected.sum()) > NEAR
    if task.device.type != "cpu" or cores == 1 or len(expected) < 2 * cores or not much:
        return Chunking(memory, row, example, 1)
    return Chunking(min(NEAR, memory // cores), row, example, cores)


@derived
def bytes_of_sums(task: Task) -> tuple[int, int]:
    """Return bounds on the bytes that a pair and each of its examples take, measured on zeros."""

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
    rule: StepRule,
    batches: Iterable[Batches],
    chunking: Chunking,
    masks: MaskKeys | None = None,
) -> Tensor:
    """Take the steps of all pairs, overwriting their `vectors` `[pairs, P]`.

    Pair k belongs to silo `silo[k]` and takes `steps[k]` steps. `batches` has one entry for each step of
    the pair that takes the most.
    """
    program = stages(task) if examples.persons is None else None
    if program is not None:
        from .compiled.walk import can_step, walk_compiled

        if can_step(program, examples, vectors, rule):
            return walk_compiled(
                program, examples, vectors, silo, steps, rule, batches, chunking.cores * chunking.part_bytes
            )
    summer(task)
    moments = rule.begin(vectors)

    def advance(work: tuple[int, Batches, np.ndarray]) -> None:
        step, drawn, part = work
        pairs = torch.from_numpy(part).to(vectors.device)
        models = vectors[pairs]
        keys = None if masks is None else functools.partial(masks.at, step, pairs)
        sums = _sums(task, examples, models, silo[part], drawn, part, chunking.widest, keys)
        own = None if moments is None else moments.at(pairs)
        vectors[pairs] = rule.at(pairs).moved_by_parts(models, task.layout, sums, own)
        if moments is not None and own is not None:
            moments.put(pairs, own)

    with at_once(chunking.cores) as map_parts:
        for step, drawn in enumerate(batches):
            parts = chunking.cut(drawn.length, np.flatnonzero(steps > step))
            for _ in map_parts(advance, [(step, drawn, part) for part in parts]):
                pass
    return vectors


def _sums(
    task: Task,
    examples: Examples,
    models: Tensor,
    silo: np.ndarray,
    drawn: Batches,
    part: np.ndarray,
    widest: int,
    keys: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """Sum the gradients of a part's batches, longest batch first; return {} if all batches are empty."""
    total: dict[str, Tensor] = {}
    longest = int(drawn.length[part[0]])
    place = torch.from_numpy(silo).to(models.device)[:, None]
    width = longest if len(part) > 1 else widest
    for first in range(0, longest, width or 1):
        taken, real = (
            each.to(models.device) for each in drawn.rectangle(part, first, min(first + width, longest))
        )
        x, y = flat_rows(examples, examples.gather(place, taken))
        own = None if keys is None else keys(examples.numbers(place, taken))
        weight = examples.weights(place, taken, real).flatten(1)
        sums = summer(task)(task.layout.unflatten(models), x, y, weight, own)
        total = {name: total[name] + value for name, value in sums.items()} if total else sums
    return total
