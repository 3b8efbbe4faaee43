"""Short ways to make experiments in tests."""

from __future__ import annotations

import torch

from coterie.experiment import Experiment, Training
from coterie.federation import Federation
from coterie.method import Method
from coterie.privacy.budget import Privacy
from coterie.reference import Terms, run_reference
from coterie.simulate import personal_vectors, simulate
from coterie.streams import SeededStreams
from coterie.task import Task, make_task


def task_for(federation: Federation, model: str = "linear", **options) -> Task:
    return make_task(model, shape=federation.shape, classes=len(federation.classes), options=options)


def experiment(
    federation: Federation,
    method: Method,
    *,
    task: Task | None = None,
    epsilon=4.0,
    clip=1.0,
    delta=1e-3,
    **training,
) -> Experiment:
    training = {"rounds": 3, "batch": 8, "lr": 0.2} | training
    made = Experiment(
        federation,
        task or task_for(federation),
        method,
        Privacy(epsilon=epsilon, delta=delta, clip=clip),
        Training(**training),
    )
    made.check()
    return made


def vectors(made: Experiment) -> torch.Tensor:
    """Train and give the personal vectors [runs, silos, P]."""
    plan = made.plan()
    seeds = [seed for seed, _ in made.keys]
    states = simulate(made.running, made.cohort(plan), plan, made.roster, seeds, SeededStreams(made.keys))
    *_, last = states
    return personal_vectors(made.running, last, len(made.federation))


def reference_vectors(made: Experiment, run: int) -> torch.Tensor:
    """Train one run with the slow engine and give the personal vectors [silos, P]."""
    plan = made.plan()
    terms = [
        Terms(work, float(made.lr[run, k]), float(made.clip[run, k]), float(plan.noise()[run, k]))
        for k, work in enumerate(made.work)
    ]
    seed = made.keys[run][0]
    return run_reference(
        made.running,
        made.task,
        made.federation,
        plan,
        made.roster,
        terms,
        seed,
        SeededStreams(made.keys),
        run,
    )
