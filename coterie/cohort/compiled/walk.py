"""SGD of a whole cohort by the compiled kernels: every pair by itself, pairs shared out among the cores."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..._threads import at_once, one_thread
from ..examples import Examples
from ..sampling import Batches
from .blas import of_scipy, one_core_sgemm
from .kernels import Course, Drawn, Given, advance
from .program import Stages

if TYPE_CHECKING:
    from ..step import Pace

# Bytes of what a block of examples makes; more, and they no longer stay near the processor.
NEAR = 2**22


def can_step(stages: Stages, examples: Examples, vectors: Tensor, pace: Pace) -> bool:
    """Whether the kernels can take this: they check nothing, and would read and write anywhere."""
    classes, whole = int(stages.table["channels"][-1]), (len(vectors), stages.parameters)
    given, width = ([vectors], 1) if pace.pull is None else ([vectors, pace.pull[0]], pace.pull[1].shape[1])
    return (
        examples.x.dtype in (torch.uint8, torch.float32)
        and examples.y.dtype == torch.int64
        and examples.x.shape[2:].numel() == stages.features
        and examples.x.shape[:2] == examples.y.shape
        and all(one.dtype == torch.float32 and one.shape == whole for one in given)
        and width in (1, stages.parameters)
        and bool(((examples.y >= 0) & (examples.y < classes)).all())
    )


def walk_compiled(
    stages: Stages,
    examples: Examples,
    vectors: Tensor,
    silo: np.ndarray,
    steps: np.ndarray,
    pace: Pace,
    batches: Iterable[Batches],
    memory: int,
) -> Tensor:
    """Take the steps of all pairs, as `plain.walk` does, with about `memory` bytes for what is in between."""
    packed = stages.packed(vectors)
    given, course = _given(examples), _course(stages, pace)
    block = max(1, min(NEAR, memory) // stages.bytes_of_an_example)  # whoever works: the same sums
    table, size = stages.laid_out(block)
    cores = max(1, min(torch.get_num_threads(), len(silo), memory // (4 * size)))
    spare = [(np.zeros(size, np.float32), np.zeros(packed.shape[1], np.float32)) for _ in range(cores)]
    library = one_core_sgemm() or of_scipy()

    def take(drawn: Batches, pairs: np.ndarray) -> None:
        own, what = spare.pop(), Drawn(silo, drawn.example, drawn.start, drawn.length)
        advance(library, table, stages.orders, given, what, course, packed.numpy(), pairs, *own, block)
        spare.append(own)

    with one_thread(), at_once(cores) as each:
        for step, drawn in enumerate(batches):
            pairs = np.flatnonzero(steps > step)
            parts = shares(pairs[np.argsort(-drawn.length[pairs], kind="stable")], cores)
            for _ in each(functools.partial(take, drawn), parts):
                pass
    return stages.unpacked(packed)


def _given(examples: Examples) -> Given:
    x, none = examples.x.detach().flatten(2).contiguous().numpy(), np.zeros((0, 0, 0))
    pixels, numbers = (x, none) if x.dtype == np.uint8 else (none, x)
    classes, scale = examples.y.contiguous().numpy(), np.float32(examples.scale)
    return Given(pixels.astype(np.uint8, copy=False), numbers.astype(np.float32, copy=False), classes, scale)


def _course(stages: Stages, pace: Pace) -> Course:
    rate = (pace.lr / pace.expected).float().flatten()
    share, target = torch.zeros(len(rate), 1), torch.zeros(0, 0)
    if pace.pull is not None:
        share, target = (pace.lr * pace.pull[1]).float().contiguous(), stages.packed(pace.pull[0])
        share = stages.packed(share) if share.shape[1] > 1 else share
    return Course(rate.numpy(), share.numpy(), target.numpy())


def sum_compiled(stages: Stages, vectors: Tensor, x: Tensor, y: Tensor, memory: int = NEAR) -> Tensor:
    """Sum the gradients of examples `[pairs, examples, ...]`: what a step of 1 takes away."""
    from ..step import Pace

    pairs, count = y.shape
    ones = torch.ones(pairs, 1)
    numbers = np.arange(pairs)
    everyone = Batches(np.tile(np.arange(count), pairs), count * numbers, np.full(pairs, count))
    examples = Examples(tuple(map(str, numbers)), (count,) * pairs, x, y, 1.0)
    moved = walk_compiled(
        stages, examples, vectors, numbers, np.ones(pairs), Pace(ones, ones), [everyone], memory
    )
    return vectors - moved


def shares(pairs: np.ndarray, cores: int) -> list[np.ndarray]:
    """Cut pairs into parts that get smaller, so that all cores end at about the same time."""
    if cores == 1:
        return [pairs]
    parts, first = [], 0
    while first < len(pairs):
        last = first + -(-(len(pairs) - first) // (2 * cores))
        parts.append(pairs[first:last])
        first = last
    return parts
