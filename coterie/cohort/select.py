"""Private choices of a whole cohort: which candidate fits a silo's examples best."""

from __future__ import annotations

import torch
from torch import Tensor

from ..protocol.streams import Streams
from .dp_sgd import Cohort
from .score import score


def select(
    cohort: Cohort,
    candidates: Tensor,
    streams: Streams,
    round_: int,
    call: int,
    present: Tensor | None = None,
) -> Tensor:
    """Choose for each run and silo among candidates `[runs, candidates, P]`: `[runs, silos]`.

    The exponential mechanism by Gumbel noise on the number of errors, each example's in [0, 1]: one
    example changes a number by at most 1, the noise has scale `cohort.settings.choice`. Silos that are
    not present choose the first.
    """
    runs, count, size = candidates.shape
    silos = len(cohort.work)
    errors = torch.stack(
        [mistakes(cohort, candidates[:, c : c + 1].expand(runs, silos, size)) for c in range(count)], dim=2
    )
    if cohort.settings.choice is None:
        raise ValueError("choices need a scale of noise")
    scale = cohort.settings.choice.double().cpu()
    chosen = torch.zeros(runs, silos, dtype=torch.int64)
    for run in range(runs):
        for k, name in enumerate(cohort.examples.names):
            if present is not None and not present[run, k]:
                continue
            noise = torch.zeros(count, dtype=torch.float64)
            if scale[run, k] > 0:
                drawn = streams.generators(run, name, round_, call)[1].gumbel(size=count)
                noise = scale[run, k] * torch.from_numpy(drawn)
            chosen[run, k] = torch.argmax(noise - errors[run, k].cpu())
    return chosen.to(candidates.device)


def mistakes(cohort: Cohort, vectors: Tensor) -> Tensor:
    """Give the number of errors of vectors `[runs, silos, P]` on each silo's training examples."""
    task = cohort.task
    sizes = torch.tensor(cohort.examples.sizes, dtype=torch.float64, device=vectors.device)
    means = score(task, cohort.examples, vectors, cohort.memory, bounded=True)
    return sizes * (1 - means if task.higher_is_better else means)
