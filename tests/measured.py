"""What a training does, measured from outside: its noise, its batches, how far one example reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy import stats

from coterie.data.federation import Federation, Silo
from coterie.engines.reference import Terms, run_reference
from coterie.experiment.experiment import Experiment
from coterie.guard.claims import claims_of
from coterie.methods import Local
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import Task
from tests.helpers import experiment, reference_vectors, task_for, vectors

CHANCE = 1e-7  # of a false alarm, in each comparison of a sample with what was stated
SIZE, BATCH, LR = 20, 10, 0.2


def federation_of(x: Sequence[torch.Tensor], y: Sequence[torch.Tensor] | None = None) -> Federation:
    """Silos with the examples `x[k]` [examples, features]; targets are 0 unless given."""
    y = [torch.zeros(len(part)) for part in x] if y is None else y
    silos = (Silo(f"s{k}", *one, one[0][:1], one[1][:1]) for k, one in enumerate(zip(x, y, strict=True)))
    return Federation("made", tuple(silos))


def alone(federation: Federation, task: Task | None = None, **more) -> Experiment:
    """Every silo trains alone; a null example (all zeros) has no gradient."""
    more = {"rounds": 1, "steps": 1, "batch": BATCH, "lr": LR} | more
    return experiment(federation, Local(), task=task or task_for(federation, bias=False), **more)


def silent(silos: int = 3, size: int = SIZE, features: int = 2000, **more) -> Experiment:
    """Silos whose examples are all null: whatever moves a model is noise."""
    return alone(federation_of(torch.zeros(silos, size, features)), **more)


def reference_of(made: Experiment, run: int, streams=None) -> torch.Tensor:
    """Train one run of the unit 'silo' with the slow engine: silos add no noise to their steps."""
    plan = made.plan()
    terms = [
        Terms(silo.work, float(made.lr[run, k]), math.inf, 0.0, optimizer=made.training.optimizer)
        for k, silo in enumerate(plan.silos[run])
    ]
    seed = made.keys[run][0]
    streams = streams or SeededStreams(made.keys)
    return run_reference(
        made.running, made.task, made.federation, plan, made.roster, terms, seed, streams, run
    )


def noise_is_as_charged(made: Experiment, found: torch.Tensor | None = None) -> bool:
    """Whether models without gradients moved as the clips, the batches and the events charged say."""
    plan, moved = made.plan(), []
    for k, vector in enumerate(vectors(made)[0] if found is None else found):
        (asked,) = claims_of(made.method.name, plan, k)
        square = sum(event.releases * event.noise**2 for event in asked.events(0, asked.rounds))
        stated = LR * math.sqrt(square) * float(made.clip[0, k]) / made.work[k].expected
        moved.append(vector.double().numpy() / stated)
    return stats.kstest(np.concatenate(moved), "norm").pvalue > CHANCE


def reach(task: Task | None = None) -> float:
    """How far one example moves a model, over what the clip allows: it is replaced by a null one.

    Both trainings draw the same coins and the same noise, so what differs is the example; it pulls
    against all others.
    """
    x = 30 + torch.randn(8, SIZE, 3, generator=torch.Generator().manual_seed(0))
    y = torch.full((8, SIZE), 500.0)
    y[:, 0] = -500.0
    with_it = vectors(alone(federation_of(x, y), task))
    x[:, 0], y[:, 0] = 0, 0
    without_it = vectors(alone(federation_of(x, y), task))
    return float((with_it - without_it).norm(dim=-1).max()) * BATCH / LR


def engines_agree(made: Experiment) -> bool:
    """Whether the engine gives what the slow one gives, one example at a time."""
    return torch.allclose(vectors(made)[0], reference_vectors(made, 0), atol=1e-4, rtol=1e-4)


def batch_sizes(silos: int = 300) -> np.ndarray:
    """How many examples each silo drew: all have the same gradient, nothing is clipped or noised."""
    federation = federation_of(torch.ones(silos, SIZE, 1), torch.full((silos, SIZE), 0.25))
    return np.rint(vectors(alone(federation, epsilon=math.inf))[0, :, 0].numpy() * BATCH / (0.5 * LR))


def is_poisson(drawn: np.ndarray, rate: float) -> bool:
    """Whether batches have the mean and the spread of so many coins at a rate."""
    mean, variance = SIZE * rate, SIZE * rate * (1 - rate)
    total = stats.binomtest(int(drawn.sum()), SIZE * len(drawn), rate).pvalue
    spread = stats.chi2(len(drawn)).cdf(((drawn - mean) ** 2).sum() / variance)
    return bool(total > CHANCE and CHANCE < spread < 1 - CHANCE)
