"""SGD of a whole cohort with the compiled kernels: pairs are independent and divided among the cores."""

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
from .kernels import BatchArrays, ExampleArrays, StepArrays, advance
from .program import Stages

if TYPE_CHECKING:
    from ..step import StepRule

# Bytes of the values of a block of examples; with more, they no longer stay in the processor's cache.
NEAR = 2**22


def can_step(stages: Stages, examples: Examples, vectors: Tensor, rule: StepRule) -> bool:
    """Return whether the kernels accept these inputs.

    The kernels themselves check nothing: wrong inputs would make them read and write anywhere.
    """
    classes, shape = int(stages.table["channels"][-1]), (len(vectors), stages.parameters)
    tensors, width = ([vectors], 1) if rule.pull is None else ([vectors, rule.pull[0]], rule.pull[1].shape[1])
    return (
        rule.optimizer.is_plain
        and examples.x.dtype in (torch.uint8, torch.float32)
        and examples.y.dtype == torch.int64
        and examples.x.shape[2:].numel() == stages.features
        and examples.x.shape[:2] == examples.y.shape
        and all(tensor.dtype == torch.float32 and tensor.shape == shape for tensor in tensors)
        and width in (1, stages.parameters)
        and bool(((examples.y >= 0) & (examples.y < classes)).all())
    )


def walk_compiled(
    stages: Stages,
    examples: Examples,
    vectors: Tensor,
    silo: np.ndarray,
    steps: np.ndarray,
    rule: StepRule,
    batches: Iterable[Batches],
    memory: int,
) -> Tensor:
    """Take the steps of all pairs, as `sgd.walk` does, with about `memory` bytes for intermediate values."""
    packed = stages.packed(vectors)
    arrays, step_arrays = _example_arrays(examples), _step_arrays(stages, rule)
    # the block does not depend on the number of cores, so the sums do not either
    block = max(1, min(NEAR, memory) // stages.bytes_of_an_example)
    table, size = stages.laid_out(block)
    cores = max(1, min(torch.get_num_threads(), len(silo), memory // (4 * size)))
    spare = [(np.zeros(size, np.float32), np.zeros(packed.shape[1], np.float32)) for _ in range(cores)]
    library = one_core_sgemm() or of_scipy()

    def take(drawn: Batches, pairs: np.ndarray) -> None:
        buffers, batch = spare.pop(), BatchArrays(silo, drawn.example, drawn.start, drawn.length)
        models = packed.numpy()
        advance(library, table, stages.orders, arrays, batch, step_arrays, models, pairs, *buffers, block)
        spare.append(buffers)

    with one_thread(), at_once(cores) as map_parts:
        for step, drawn in enumerate(batches):
            pairs = np.flatnonzero(steps > step)
            parts = shares(pairs[np.argsort(-drawn.length[pairs], kind="stable")], cores)
            for _ in map_parts(functools.partial(take, drawn), parts):
                pass
    return stages.unpacked(packed)


def _example_arrays(examples: Examples) -> ExampleArrays:
    x, none = examples.x.detach().flatten(2).contiguous().numpy(), np.zeros((0, 0, 0))
    pixels, numbers = (x, none) if x.dtype == np.uint8 else (none, x)
    classes, scale = examples.y.contiguous().numpy(), np.float32(examples.scale)
    return ExampleArrays(
        pixels.astype(np.uint8, copy=False), numbers.astype(np.float32, copy=False), classes, scale
    )


def _step_arrays(stages: Stages, rule: StepRule) -> StepArrays:
    rate = (rule.lr / rule.expected).float().flatten()
    share, target = torch.zeros(len(rate), 1), torch.zeros(0, 0)
    if rule.pull is not None:
        share, target = (rule.lr * rule.pull[1]).float().contiguous(), stages.packed(rule.pull[0])
        share = stages.packed(share) if share.shape[1] > 1 else share
    return StepArrays(rate.numpy(), share.numpy(), target.numpy())


def sum_compiled(stages: Stages, vectors: Tensor, x: Tensor, y: Tensor, memory: int = NEAR) -> Tensor:
    """Return the summed gradients of examples `[pairs, examples, ...]`: what a step of size 1 subtracts."""
    from ..step import StepRule

    pairs, count = y.shape
    ones = torch.ones(pairs, 1)
    numbers = np.arange(pairs)
    everyone = Batches(np.tile(np.arange(count), pairs), count * numbers, np.full(pairs, count))
    examples = Examples(tuple(map(str, numbers)), (count,) * pairs, x, y, 1.0)
    moved = walk_compiled(
        stages, examples, vectors, numbers, np.ones(pairs), StepRule(ones, ones), [everyone], memory
    )
    return vectors - moved


def shares(pairs: np.ndarray, cores: int) -> list[np.ndarray]:
    """Cut pairs into parts of decreasing size, so that all cores finish at about the same time."""
    if cores == 1:
        return [pairs]
    parts, first = [], 0
    while first < len(pairs):
        last = first + -(-(len(pairs) - first) // (2 * cores))
        parts.append(pairs[first:last])
        first = last
    return parts
