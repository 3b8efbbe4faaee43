"""How long a training will take, estimated by a trial on zeros; no example is touched."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from ..cohort.dp_sgd import Cohort, Settings, descend
from ..cohort.dual.sampled import DualRequest, solve_apart
from ..cohort.dual.sdca import solve_in_turn
from ..cohort.examples import Examples
from ..planning.plan import Plan
from ..protocol.doors import SOLVE_DUAL
from ..protocol.streams import SeededStreams
from .experiment import Experiment

SOME = 6  # steps of a trial


def seconds(experiment: Experiment, plan: Plan) -> float:
    """Return an estimate of the seconds that all runs of an experiment take."""
    federation, task = experiment.federation, experiment.task
    runs, silos = experiment.epsilon.shape
    longest = max(federation.sizes)
    dtype = federation.silos[0].x.dtype
    x = torch.zeros(silos, longest, *federation.shape, dtype=dtype)
    y = torch.zeros(silos, longest, dtype=federation.silos[0].y.dtype)
    device = experiment.training.device
    examples = Examples(federation.names, federation.sizes, x.to(device), y.to(device), federation.scale)
    clip = experiment.clip if plan.unit.noise_in_doors else torch.full_like(experiment.clip, torch.inf)
    numbers = (experiment.lr, clip, plan.noise())
    settings = Settings(*(value.float().to(device) for value in numbers))
    start = torch.zeros(runs, silos, task.layout.size, device=device)
    streams = SeededStreams(experiment.keys)
    calls = sum(map(len, plan.counts.calls))
    mean_steps = sum(w.steps for w in experiment.work) / silos
    tried = sorted({1, min(SOME, round(mean_steps))})  # a call has a fixed cost and a cost per step
    took = []
    for steps in tried:
        work = tuple(replace(w, steps=steps) for w in experiment.work)
        cohort = Cohort(task, examples, work, settings, experiment.training.memory)
        took.append(min(_once(experiment, plan, cohort, start, streams, trial) for trial in range(3)))
    step = max(took[-1] - took[0], 0.0) / (tried[-1] - 1) if len(tried) > 1 else took[0]
    share = 1.0 if plan.present is None else float(plan.present.double().mean())
    return (took[0] + step * (mean_steps - 1)) * calls * share


def _once(
    experiment: Experiment, plan: Plan, cohort: Cohort, start: Tensor, streams: SeededStreams, trial: int
) -> float:
    """Return the seconds that one call of a door takes."""
    began = time.perf_counter()
    if experiment.method.linear:
        _move_duals(cohort, start, plan, streams, trial)
    else:
        descend(cohort, start, streams, trial, 0)
    return time.perf_counter() - began


def _move_duals(cohort: Cohort, start: Tensor, plan: Plan, streams: SeededStreams, trial: int) -> None:
    """Call the door of duals once."""
    ones = torch.ones(start.shape[:2], device=start.device)
    duals = torch.zeros(*ones.shape, max(cohort.examples.sizes), cohort.task.outputs, device=start.device)
    solve = solve_apart if plan.counts.calls[0] == (SOLVE_DUAL,) else solve_in_turn
    solve(cohort, DualRequest(start, duals, ones, ones), streams, trial, 0)
