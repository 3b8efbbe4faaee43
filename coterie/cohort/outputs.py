"""What the silos' models compute for all their test rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..tasks.task import Task
from .derived import derived
from .examples import Examples
from .gradients.clipping import rows_within
from .rowwise import over_rows
from .sampling import WIDE, rows_of
from .score import WIDEST


@derived
def _predict(task: Task):  # type: ignore[no-untyped-def]
    return over_rows(task.predict)


def outputs_of(task: Task, examples: Examples, vectors: Tensor, memory: int = 2**30) -> Tensor:
    """Return the outputs of `vectors` `[runs, silos, P]` for their silos' examples: `[runs, rows, ...]`.

    The rows of the first silo come first; there is no padding.
    """
    runs, silos, size = vectors.shape
    sizes = np.array(examples.sizes)
    pair = np.repeat(np.arange(runs * silos), np.tile(sizes, runs))
    example = np.concatenate([np.arange(n) for n in np.tile(sizes, runs)])
    rows = rows_of(pair, pair, pair % silos, example, WIDEST)[0].to(str(examples.x.device))
    flat = vectors.reshape(runs * silos, size)
    chunk, parts = max(1, rows_within(task, memory) * WIDE // WIDEST), []
    with torch.no_grad():
        for start in range(0, len(rows), chunk):
            part = rows.part(start, start + chunk)
            x, _ = examples.gather(part.silo[:, None], part.example)
            parts.append(_predict(task)(task.layout.unflatten(flat[part.pair]), x)[part.real])
    if not parts:
        return vectors.new_zeros(runs, 0, task.outputs)
    flat_outputs = torch.cat(parts)
    return flat_outputs.reshape(runs, int(sizes.sum()), *flat_outputs.shape[1:])
