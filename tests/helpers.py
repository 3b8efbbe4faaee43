"""Short ways to make experiments and tables, to call the command, and to expect refusals, in tests."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.cli import main as cli
from coterie.data.federation import Federation
from coterie.data.sources.table import Table
from coterie.engines.reference import Terms, run_reference
from coterie.engines.simulation import personal_vectors, simulate
from coterie.errors import Problem
from coterie.experiment.experiment import Experiment
from coterie.methods import (
    IFCA,
    METHODS,
    MRMTL,
    PFA,
    FedAvg,
    FineTune,
    Local,
    PFAPlus,
    RandomProjection,
    Then,
)
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.protocol.method import Method
from coterie.protocol.settings import described
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import Task, make_task

ROWS = 200
LABELS = np.random.default_rng(0).permutation(np.arange(ROWS) % 10)

# Methods that are refused where whole silos are protected, and why.
UNSOUND_FOR_SILOS = {
    "mocha": "merge looks into raw uploads",
    "mr-mtl-auto": "merge looks into raw uploads",
    "ifca": "a silo's choice is raw",
    "dual": "dual coordinates are noised in the silos",
    "weiavg": "the mean is uniform over all",
    "pfa": "the mean is uniform over all",
    "pfa+": "a silo sends one real vector",
    "random-projection": "the mean is uniform over all",
    "then": "a silo's choice is raw",
}


def every_method() -> list[Method]:
    """Every method, and chains of them, with settings for three silos of differing budgets."""
    wide = {"divide": "top", "top": 0.7}
    special = {
        "ifca": IFCA(clusters=2, choosing=0.7),
        "pfa": PFA(**wide),
        "pfa+": PFAPlus(**wide),
        "random-projection": RandomProjection(**wide),
    }
    single = [special.get(name) or kind() for name, kind in METHODS.items()]
    clusters = IFCA(clusters=2, choosing=0.7)
    after = [Then(first=clusters, second=m, share=0.4) for m in (MRMTL(), FedAvg(), Local(), FineTune())]
    return [*single, PFA(**wide, centre="none"), PFAPlus(**wide, centre="none"), *after]


def shortened(federation: Federation) -> Federation:
    """Divide the features by a bound on their norm, for methods that need features of norm 1 at most."""
    bound = max(float(silo.x.flatten(1).float().norm(dim=1).max()) for silo in federation.silos)
    return replace(federation, scale=1 / (1.001 * bound))


def title(method: Method) -> str:
    return described(method).replace(" ", "_")


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
    if method.linear:
        federation = shortened(federation)
        loss = "one-against-rest" if federation.classes else "squared"
        classes = len(federation.classes)
        task = task or make_task("linear", shape=federation.shape, classes=classes, loss=loss)
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


def vectors(made: Experiment, streams=None) -> torch.Tensor:
    """Train and give the personal vectors [runs, silos, P]."""
    plan = made.plan()
    seeds = [seed for seed, _ in made.keys]
    states = simulate(
        made.running, made.cohort(plan), plan, made.roster, seeds, streams or SeededStreams(made.keys)
    )
    *_, last = states
    return personal_vectors(made.running, last, len(made.federation))


def reference_vectors(made: Experiment, run: int, streams=None) -> torch.Tensor:
    """Train one run with the slow engine and give the personal vectors [silos, P]."""
    plan = made.plan()
    settings = made.settings(plan)
    terms = [
        Terms(
            silo.work,
            float(made.lr[run, k] if made.lr[run, k] > 0 else settings.lr[run, k]),
            float(made.clip[run, k]),
            silo.noise,
            silo.choice_noise,
            made.training.optimizer,
            settings.proximal is not None and bool(settings.proximal[run, k]),
        )
        for k, silo in enumerate(plan.silos[run])
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
        streams or SeededStreams(made.keys),
        run,
    )


def images(kind=np.uint8) -> np.ndarray:
    """Different images of 6 x 6 pixels, none of them white anywhere."""
    pixels = np.random.default_rng(1).integers(0, 250, size=(ROWS, 6, 6))
    return pixels.astype(np.uint8) if kind == np.uint8 else (pixels / 256).astype(np.float32)


def numbered(sizes=(20, 7, 2, 50)) -> Table:
    """Rows that carry their own number, two classes."""
    rows = sum(sizes)
    x = np.stack([np.arange(rows), np.zeros(rows)], 1)
    return Table("made", x, np.arange(rows) % 2, np.repeat(list("abcdefg"[: len(sizes)]), sizes))


def refused(match: str):
    """Expect one sentence that contains the words given."""
    return pytest.raises(Problem, match=r"\A[^\n]*" + re.escape(match) + r"[^\n]*\Z")


def call(monkeypatch, capsys, *arguments, columns=120) -> tuple[int, str, str]:
    """Run a command in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["coterie", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", str(columns))
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    said = capsys.readouterr()
    return code, said.out, said.err
