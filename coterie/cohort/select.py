"""Private selection for a whole cohort: choose the candidate that fits a silo's examples best."""

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
    """Return one of the candidates `[runs, candidates, P]` for each run and silo, as `[runs, silos]` indices.

    This is the exponential mechanism, implemented by adding Gumbel noise of scale `cohort.settings.choice` to
    each candidate's error count. The error of an example is in [0, 1], so one example changes a count by at
    most 1. Absent silos get the first candidate.
    """
    runs, count, size = candidates.shape
    silos = len(cohort.work)
    errors = torch.stack(
        [mistakes(cohort, candidates[:, c : c + 1].expand(runs, silos, size)) for c in range(count)], dim=2
    )
    if cohort.settings.choice is None:
        raise ValueError("a private choice needs a noise scale")
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
    """Return the error count of vectors `[runs, silos, P]` on each silo's training examples."""
    task = cohort.task
    sizes = torch.tensor(cohort.examples.sizes, dtype=torch.float64, device=vectors.device)
    means = score(task, cohort.examples, vectors, cohort.memory, bounded=True)
    return sizes * (1 - means if task.higher_is_better else means)
