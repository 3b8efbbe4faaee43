"""Private selection for a whole cohort: choose the candidate that fits a silo's examples best."""

from __future__ import annotations

import torch
from torch import Tensor

from ..protocol.streams import Streams
from .dp_sgd import Cohort
from .score import bounded_total


def select(
    cohort: Cohort,
    candidates: Tensor,
    streams: Streams,
    round_: int,
    call: int,
    present: Tensor | None = None,
) -> Tensor:
    """Return one of the candidates `[runs, candidates, P]` for each run and silo, as `[runs, silos]` indices.

    This is the exponential mechanism: the chance of a candidate is proportional to exp(-errors / scale), with
    the scale `cohort.settings.choice`. Absent silos get the first candidate.
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
            penalties = errors[run, k].cpu()
            if scale[run, k] > 0:
                dice = streams.dice(run, name, round_, call)
                chosen[run, k] = dice.choose(penalties.numpy(), float(scale[run, k]))
            else:
                chosen[run, k] = torch.argmin(penalties)
    return chosen.to(candidates.device)


def mistakes(cohort: Cohort, vectors: Tensor) -> Tensor:
    """Return the number of errors of vectors `[runs, silos, P]` on each silo's training examples.

    One example changes a number by at most 1.
    """
    task = cohort.task
    sizes = torch.tensor(cohort.examples.sizes, dtype=torch.float64, device=vectors.device)
    total = bounded_total(task, cohort.examples, vectors, cohort.memory)
    return sizes - total if task.higher_is_better else total
