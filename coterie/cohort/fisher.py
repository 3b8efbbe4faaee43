"""The empirical Fisher information: how much each parameter of a model matters to a silo's examples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .dp_sgd import Cohort
from .gradients.choose import recorder
from .gradients.clipping import rows_within
from .sampling import WIDE, rows_of


def fisher(cohort: Cohort, vectors: Tensor, present: Tensor | None = None) -> Tensor:
    """Return the mean squared gradient of each silo's examples, by parameter: `[runs, silos, P]`.

    The result has no privacy protection, so it must stay in the silo. Silos that are not present get zeros.
    """
    runs, silos, size = vectors.shape
    active = np.ones(runs * silos, dtype=bool)
    if present is not None:
        active = present.reshape(-1).cpu().numpy()
    sizes = np.where(active, np.tile(cohort.examples.sizes, runs), 0)
    pair = np.repeat(np.arange(runs * silos), sizes)
    example = np.concatenate([np.arange(count) for count in sizes])
    flat = vectors.reshape(runs * silos, size)
    total = torch.zeros_like(flat, dtype=torch.float64)
    task, rows = cohort.task, rows_of(pair, pair, pair % silos, example, WIDE)[0].to(cohort.device)
    chunk = rows_within(task, cohort.memory)
    for start in range(0, len(rows), chunk):
        part = rows.part(start, start + chunk)
        x, y = cohort.examples.gather(part.silo[:, None], part.example)
        tape = recorder(task)(task.layout.unflatten(flat[part.pair]), x, y)
        squares = task.layout.flatten(tape.squared_sums(part.real.float()))
        total.index_add_(0, part.pair, squares.double())
    counts = torch.from_numpy(np.maximum(sizes, 1)).to(total.device).unsqueeze(1)
    return (total / counts).float().reshape(runs, silos, size)
