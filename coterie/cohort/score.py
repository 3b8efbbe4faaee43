"""Score personal models on each silo's test examples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..tasks.task import Task
from .derived import derived
from .examples import Examples, flat_rows
from .gradients.clipping import rows_within
from .rowwise import over_rows
from .sampling import WIDE, rows_of

WIDEST = 4 * WIDE
FINENESS = 2.0**20  # bounded scores are multiples of one over it


@derived
def _score_function(task: Task):  # type: ignore[no-untyped-def]
    return over_rows(task.scores)


def score(
    task: Task,
    examples: Examples,
    vectors: Tensor,
    memory: int = 2**30,
    losses: bool = False,
) -> Tensor:
    """Return the mean score of `vectors` `[runs, silos, P]` on each silo's examples: `[runs, silos]`.

    A model with a value that is not finite scores NaN. With `losses`, return the mean loss instead.
    """
    total = _totals(task, examples, vectors, memory, losses=losses)
    means = total / torch.tensor(examples.sizes, device=vectors.device)
    return torch.where(torch.isfinite(vectors).all(-1), means, torch.nan)


def bounded_total(task: Task, examples: Examples, vectors: Tensor, memory: int = 2**30) -> Tensor:
    """Return the sum of scores of `vectors` `[runs, silos, P]` on each silo's examples: `[runs, silos]`.

    Formal guarantee: one example moves a sum by at most 1. The score of an example is forced into [0, 1] (NaN
    becomes 1) and rounded to a multiple of 2^-20, so sums are exact in float64 and in any order. The score of
    a person is the mean over that person's rows, rounded in the same way, so one person moves a sum by at
    most 1.
    """
    return _totals(task, examples, vectors, memory, bounded=True)


def _totals(
    task: Task,
    examples: Examples,
    vectors: Tensor,
    memory: int,
    bounded: bool = False,
    losses: bool = False,
) -> Tensor:
    measure = over_rows(task.losses) if losses else _score_function(task)
    runs, silos, size = vectors.shape
    sizes = np.array(examples.sizes)
    pair = np.repeat(np.arange(runs * silos), np.tile(sizes, runs))
    example = np.concatenate([np.arange(n) for n in np.tile(sizes, runs)])
    rows = rows_of(pair, pair, pair % silos, example, WIDEST)[0].to(str(examples.x.device))
    flat = vectors.reshape(runs * silos, size)
    total = torch.zeros(runs * silos, dtype=torch.float64, device=vectors.device)
    chunk = max(1, rows_within(task, memory, examples.each) * WIDE // WIDEST)
    with torch.no_grad():
        for start in range(0, len(rows), chunk):
            part = rows.part(start, start + chunk)
            silo = part.silo[:, None]
            x, y = flat_rows(examples, examples.gather(silo, part.example))
            points = measure(task.layout.unflatten(flat[part.pair]), x, y)
            if bounded:
                points = points.nan_to_num(nan=1.0).clamp(0, 1).double()
            if examples.persons is not None:
                weight = examples.weights(silo, part.example, part.real)
                points = (points.unflatten(1, weight.shape[1:]) * weight).sum(-1)
            if bounded:
                points = (points.clamp(0, 1) * FINENESS).round() / FINENESS
            total.index_add_(0, part.pair, (points * part.real).double().sum(1))
    return total.reshape(runs, silos)
