"""Trials on zeros: how long a training will take, and whether its module runs; no example is touched."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from ..cohort.dp_sgd import Cohort, descend
from ..cohort.dual.sampled import DualRequest, solve_apart
from ..cohort.dual.sdca import solve_in_turn
from ..cohort.examples import Examples, Persons
from ..cohort.score import WIDEST, score
from ..errors import Problem, first_line
from ..planning.plan import Plan
from ..protocol.doors import POISSON, SOLVE_DUAL
from ..protocol.streams import SeededStreams
from .experiment import Experiment

SOME = 6  # steps of a trial


def seconds(experiment: Experiment, plan: Plan) -> float:
    """Return an estimate of the seconds that all runs of an experiment take."""
    calls = sum(map(len, plan.counts.calls))
    mean_steps = sum(w.steps for w in experiment.work) / len(experiment.work)
    tried = sorted({1, min(SOME, round(mean_steps))})  # a call has a fixed cost and a cost per step
    took = []
    for steps in tried:
        cohort = _made_up(experiment, plan, steps)
        took.append(min(_once(experiment, plan, cohort, trial) for trial in range(3)))
    step = max(took[-1] - took[0], 0.0) / (tried[-1] - 1) if len(tried) > 1 else took[0]
    share = 1.0 if plan.present is None else float(plan.present.double().mean())
    return (took[0] + step * (mean_steps - 1)) * calls * share


def rehearse(experiment: Experiment, plan: Plan) -> None:
    """Raise `Problem` if the module fails on batches as large as training and scoring use.

    One step and one scoring run on zeros, so this can be known before a ledger is charged.
    """
    try:
        cohort = _made_up(experiment, plan, 1)
        _once(experiment, plan, cohort, 0)
        sizes = tuple(min(len(silo.test_y), 2 * WIDEST) for silo in experiment.federation.silos)
        examples = cohort.examples
        x, y = (part[:, :1].expand(-1, max(sizes), *part.shape[2:]) for part in (examples.x, examples.y))
        test = Examples(examples.names, sizes, x, y, examples.scale, examples.ids)
        score(experiment.task, test, _zeros(cohort), experiment.training.memory)
    except Problem:
        raise
    except Exception as error:  # a user's module may raise anything
        raise Problem(
            f"model: the module fails on batches of the size that training uses ({first_line(error)});"
            " nothing was charged"
        ) from error


def _made_up(experiment: Experiment, plan: Plan, steps: int) -> Cohort:
    """Return the silos with zeros for examples, and so many steps per call of a door, on Poisson samples."""
    federation, device = experiment.federation, experiment.training.device
    shape = (len(federation), max(federation.sizes))
    x = torch.zeros(*shape, *federation.shape, dtype=federation.silos[0].x.dtype)
    y = torch.zeros(*shape, *federation.silos[0].y.shape[1:], dtype=federation.silos[0].y.dtype)
    persons = _nobody(experiment.sizes, experiment.rows_each, device)
    about = (federation.scale, federation.ids, persons)
    examples = Examples(federation.names, experiment.sizes, x.to(device), y.to(device), *about)
    settings = replace(experiment.settings(plan), choice=None)
    work = tuple(replace(w, steps=steps, sampler=POISSON) for w in experiment.work)
    return Cohort(experiment.task, examples, work, settings, experiment.training.memory)


def _nobody(sizes: tuple[int, ...], each: int | None, device: str) -> Persons | None:
    """Return made-up persons with so many rows each; None if rows need not be told apart."""
    if each is None:
        return None
    shape = (len(sizes), max(sizes), each)
    rows, weight = torch.zeros(shape, dtype=torch.int64), torch.full(shape, 1 / each)
    return Persons(rows.to(device), weight.to(device))


def _zeros(cohort: Cohort) -> Tensor:
    """Return a vector of zeros for each run and silo."""
    return torch.zeros(*cohort.settings.lr.shape, cohort.task.layout.size, device=cohort.device)


def _once(experiment: Experiment, plan: Plan, cohort: Cohort, trial: int) -> float:
    """Return the seconds that one call of a door takes."""
    start, streams = _zeros(cohort), SeededStreams(experiment.keys)
    began = time.perf_counter()
    if experiment.method.linear:
        _move_duals(cohort, start, plan, streams, trial)
    else:
        descend(cohort, start, streams, trial, 0)
    return time.perf_counter() - began


def _move_duals(cohort: Cohort, start: Tensor, plan: Plan, streams: SeededStreams, trial: int) -> None:
    """Call the door of duals once."""
    ones = torch.ones(start.shape[:2], device=start.device)
    longest = max(cohort.examples.sizes) * cohort.examples.each
    duals = torch.zeros(*ones.shape, longest, cohort.task.outputs, device=start.device)
    solve = solve_apart if plan.counts.calls[0] == (SOLVE_DUAL,) else solve_in_turn
    solve(cohort, DualRequest(start, duals, ones, ones), streams, trial, 0)
