"""Clip and sum the per-example gradients of each (run, silo) pair."""

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
from ..examples import Examples, flat_rows
from ..imitation import Teacher
from ..sampling import WIDE, Rows
from .choose import recorder
from .tape import Tape

# The share of the clip that pays for float32 (the package's docstring adds it up).
ROUNDING = 1e-5


def clipped_sums(
    task: Task,
    examples: Examples,
    vectors: Tensor,
    rows: Rows,
    clip: Tensor,
    chunk: int,
    teacher: Teacher | None = None,
    keys: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the sum of the clipped gradients of each pair's batch: `[pairs, P]`, in float64.

    (In float32, one example could change how the sum of all the others is rounded.)

    Formal guarantee: with a finite clip, replacing any one example by a null example moves a pair's sum by
    at most `clip[pair]` in Euclidean norm, whatever the example contains. A gradient that is not finite
    counts as zero. An infinite clip means no clipping and no guarantee. If the examples are those of persons,
    all this is true of a person: the mean gradient over a person's rows is clipped, not that of a row.

    At most `chunk` rows are processed at a time. With a `teacher`, examples also imitate it. `keys`
    are those by which rows of pairs drop numbers (`cohort.masks`).
    """
    task = task if teacher is None else teacher.task
    sums = torch.zeros_like(vectors, dtype=torch.float64)
    for start in range(0, len(rows), chunk):
        part = rows.part(start, start + chunk)
        silo = part.silo[:, None]
        x, y = flat_rows(examples, examples.gather(silo, part.example))
        if teacher is not None:
            y = teacher.targets(part.pair, x, y)
        own = None if keys is None else keys(part.pair, examples.numbers(silo, part.example))
        tape = recorder(task)(task.layout.unflatten(vectors[part.pair]), x, y, own)
        if examples.persons is not None:
            tape = tape.of_persons(examples.weights(silo, part.example, part.real))
        rowwise = task.layout.flatten(clipped(tape, part.real, clip[part.pair]))
        sums.index_add_(0, part.pair, rowwise.double())
    return sums


def clipped(tape: Tape, real: Tensor, clip: Tensor) -> dict[str, Tensor]:
    """Return the sum of each row's clipped gradients, by parameter name; padding does not count."""
    norms = tape.squared_norms().sqrt()
    limit = clip.unsqueeze(-1)
    bounded = torch.isfinite(limit)
    broken = ~torch.isfinite(norms) & (bounded | ~real)
    if broken.any():  # 0 x inf is not 0, so the tape itself must be cleared
        tape, norms = tape.without(broken), norms.masked_fill(broken, 0)
    factor = (limit / (norms * (1 + ROUNDING))).clamp(max=1)
    # below the smallest normal number, rounding to float32 is no longer a share of the factor
    factor = torch.where(factor < torch.finfo(torch.float32).tiny, 0.0, factor)
    return tape.weighted_sums((torch.where(bounded, factor, 1.0) * real).float())


class _Allocations(TorchDispatchMode):
    """Add up the bytes of every tensor created; this exceeds the peak, because nothing is freed.

    A view of an existing tensor does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled here, and asking the compiler imports for over a second."""
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
    """Return the bytes of all tensors that some work creates."""
    seen = _Allocations()
    with seen:
        work()
    return seen.bytes


def zeros_of(task: Task, rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Return examples and labels `[rows, width, ...]` that are all zero."""
    x = torch.zeros(rows, width, *task.shape, dtype=task.dtype, device=task.device)
    return x, task.blank_targets(rows, width)


@derived
def bytes_of_a_row(task: Task, each: int = 1) -> int:
    """Return a bound on the bytes that one row of a step takes, measured on zeros.

    `each` is the number of rows that belong to one person, if persons are protected.
    """
    rows, record = 2, recorder(task)

    def trial() -> None:
        vectors = torch.zeros(rows, task.layout.size, device=task.device)
        x, y = zeros_of(task, rows, WIDE * each)
        tape = record(task.layout.unflatten(vectors), x, y)
        if each > 1:
            tape = tape.of_persons(torch.ones(rows, WIDE, each, device=task.device))
        real = torch.ones(rows, WIDE, dtype=torch.bool, device=task.device)
        task.layout.flatten(clipped(tape, real, torch.ones(rows, device=task.device)))

    return math.ceil(allocated(trial) / rows)


def rows_within(task: Task, memory: int, each: int = 1) -> int:
    """Return how many rows fit into `memory` bytes; `each` is the number of rows of one person."""
    needed = int(bytes_of_a_row(task, each))
    if memory < needed:
        what = f"{WIDE} examples" if each == 1 else f"{WIDE} persons with {each} rows each"
        raise Problem(
            f"train.memory: {what} take {needed / 1024:,.0f} kB with this model, but the limit is"
            f" {memory / 1024:,.0f} kB; raise the limit or use a smaller model"
        )
    return int(memory // needed)
