"""Per-example gradients of a cohort, clipped and summed for each (run, silo) pair."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import Problem
from ...tasks.task import Task
from ..derived import derived
from ..examples import Examples
from ..imitation import Teacher
from ..sampling import WIDE, Rows
from .choose import recorder
from .tape import Tape

# Gradients, clips and noise are float32, as are sums of up to eight; this share of the clip
# pays for their rounding.
ROUNDING = 1e-5


def clipped_sums(
    task: Task,
    examples: Examples,
    vectors: Tensor,
    rows: Rows,
    clip: Tensor,
    chunk: int,
    teacher: Teacher | None = None,
) -> Tensor:
    """Sum the clipped gradients of each pair's batch: `[pairs, P]`, in float64.

    (In float32 one example could move the rounding of all the others' sum.)

    Formal guarantee: with a finite clip, putting a null example in the place of any one
    example moves a pair's sum by at most `clip[pair]` in Euclidean norm, whatever the
    example holds; a gradient that is not finite counts as zero. An infinite clip means
    no clipping and no guarantee.

    At most `chunk` rows are worked on at a time. With a `teacher` examples also imitate it.
    """
    task = task if teacher is None else teacher.task
    sums = torch.zeros_like(vectors, dtype=torch.float64)
    for start in range(0, len(rows), chunk):
        part = rows.part(start, start + chunk)
        x, y = examples.gather(part.silo[:, None], part.example)
        if teacher is not None:
            y = teacher.targets(part.pair, x, y)
        tape = recorder(task)(task.layout.unflatten(vectors[part.pair]), x, y)
        rowwise = task.layout.flatten(clipped(tape, part.real, clip[part.pair]))
        sums.index_add_(0, part.pair, rowwise.double())
    return sums


def clipped(tape: Tape, real: Tensor, clip: Tensor) -> dict[str, Tensor]:
    """Sum each row's clipped gradients, by parameter name; padding counts as nothing."""
    norms = tape.squared_norms().sqrt()
    limit = clip.unsqueeze(-1)
    bounded = torch.isfinite(limit)
    broken = ~torch.isfinite(norms) & (bounded | ~real)
    if broken.any():  # 0 x inf is not 0: they must go from the tape itself
        tape, norms = tape.without(broken), norms.masked_fill(broken, 0)
    factor = (limit / (norms * (1 + ROUNDING))).clamp(max=1)
    return tape.weighted_sums((torch.where(bounded, factor, 1.0) * real).float())


class _Allocations(TorchDispatchMode):
    """Adds up the bytes of every tensor made; more than the peak, since none is given back.

    What lies in the memory of a tensor that was given, as a view of it does, is not made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and to say so to the compiler takes more than a second of imports."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        given = {_memory(value) for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
        for value in tree_leaves(out):
            if isinstance(value, Tensor) and _memory(value) not in given:
                self.bytes += value.numel() * value.element_size()
        return out


def _memory(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def allocated(work: Callable[[], object]) -> int:
    """Give the bytes of every tensor made by some work."""
    seen = _Allocations()
    with seen:
        work()
    return seen.bytes


def zeros_of(task: Task, rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Give examples and labels `[rows, width, ...]` that are all zero."""
    x = torch.zeros(rows, width, *task.shape, device=task.device)
    return x, task.blank_targets(rows, width)


@derived
def bytes_of_a_row(task: Task) -> int:
    """Bound the memory one row of a step takes, by a trial on zeros."""
    rows, record = 2, recorder(task)

    def trial() -> None:
        vectors = torch.zeros(rows, task.layout.size, device=task.device)
        x, y = zeros_of(task, rows, WIDE)
        tape = record(task.layout.unflatten(vectors), x, y)
        real = torch.ones(rows, WIDE, dtype=torch.bool, device=task.device)
        task.layout.flatten(clipped(tape, real, torch.ones(rows, device=task.device)))

    return math.ceil(allocated(trial) / rows)


def rows_within(task: Task, memory: int) -> int:
    """Give how many rows fit into so many bytes."""
    each = int(bytes_of_a_row(task))
    if memory < each:
        raise Problem(
            f"train.memory: a row of {WIDE} examples of this model takes {each / 1024:,.0f} kB, the limit is"
            f" {memory / 1024:,.0f} kB: allow more or take a smaller model"
        )
    return int(memory // each)
