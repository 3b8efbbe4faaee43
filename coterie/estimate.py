"""How long a training will take: a trial on zeros, no example is touched."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from .cohort.descend import Cohort, Settings, descend
from .cohort.duals import Asked, solve_apart
from .cohort.examples import Examples
from .cohort.in_turn import solve_in_turn
from .doors import DUAL
from .experiment import Experiment
from .plan import Plan
from .streams import SeededStreams


def seconds(experiment: Experiment, plan: Plan) -> float:
    """Estimate the seconds of all runs of an experiment."""
    federation, task = experiment.federation, experiment.task
    runs, silos = experiment.epsilon.shape
    longest = max(federation.sizes)
    dtype = federation.silos[0].x.dtype
    x = torch.zeros(silos, longest, *federation.shape, dtype=dtype)
    y = torch.zeros(silos, longest, dtype=federation.silos[0].y.dtype)
    device = experiment.training.device
    examples = Examples(federation.names, federation.sizes, x.to(device), y.to(device), federation.scale)
    clip = experiment.clip if plan.merge is None else torch.full_like(experiment.clip, torch.inf)
    numbers = (experiment.lr, clip, plan.noise())
    settings = Settings(*(value.float().to(device) for value in numbers))
    work = tuple(replace(w, steps=1) for w in experiment.work)
    cohort = Cohort(task, examples, work, settings, experiment.training.memory)
    start = torch.zeros(runs, silos, task.layout.size, device=device)
    streams = SeededStreams(experiment.keys)
    took = []
    for trial in range(3):
        began = time.perf_counter()
        if experiment.method.linear:
            _move_duals(cohort, start, plan, streams, trial)
        else:
            descend(cohort, start, streams, trial, 0)
        took.append(time.perf_counter() - began)
    calls = sum(len(made) for made in plan.counts.calls)
    mean_steps = sum(w.steps for w in experiment.work) / silos
    return min(took) * calls * mean_steps


def _move_duals(cohort: Cohort, start: Tensor, plan: Plan, streams: SeededStreams, trial: int) -> None:
    """Ask the door of duals once."""
    one = torch.ones(start.shape[:2], device=start.device)
    duals = torch.zeros(*one.shape, max(cohort.examples.sizes), cohort.task.outputs, device=start.device)
    solve = solve_apart if plan.counts.calls[0] == (DUAL,) else solve_in_turn
    solve(cohort, Asked(start, duals, one, one), streams, trial, 0)
