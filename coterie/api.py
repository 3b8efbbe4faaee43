"""What people call from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .data.federation import Federation
from .errors import Problem
from .experiment.experiment import experiments
from .experiment.result import Result
from .guard.meter import make_meter
from .guard.session import Keeper
from .planning.training import Training
from .privacy.budget import Privacy
from .protocol.method import Method
from .tasks.task import Task, make_task


def run(
    federation: Federation,
    methods: Method | Sequence[Method],
    privacy: Privacy,
    *,
    model: str | Task = "linear",
    loss: str = "auto",
    model_options: dict[str, Any] | None = None,
    on_round: Callable[[str, int, float | None], None] | None = None,
    ledger: str | Path | None = None,
    **training: Any,
) -> Result:
    """Train methods on a federation; further keywords are those of `Training`.

    `model` is a built-in name, "package.module:function", or a `Task`. `ledger` is a folder of ledgers,
    made before with `open_ledgers(folder, federation, budgets)` (and `unit="silo"`, to
    protect whole silos): every run is charged to them before it happens, and its noise comes from the
    system's entropy.
    """
    if isinstance(methods, Method):
        methods = [methods]
    if not methods:
        raise Problem("run needs at least one method")
    task = model
    if not isinstance(task, Task):
        classes = len(federation.classes)
        task = make_task(task, shape=federation.shape, classes=classes, loss=loss, options=model_options)
    if isinstance(training.get("seeds"), int):
        training["seeds"] = tuple(range(training["seeds"]))
    if isinstance(training.get("seeds"), list):
        training["seeds"] = tuple(training["seeds"])
    result = Result(task, federation.names)
    pairs = [(method, "own") for method in methods]
    for experiment in experiments(federation, task, pairs, privacy, Training(**training)):
        name = experiment.method.name
        heard = None if on_round is None else (lambda n, s, name=name: on_round(name, n, s))
        if ledger is None:
            result.add(experiment.train(on_round=heard))
            continue
        meter = make_meter(Path(ledger), federation, [None] * len(federation))
        try:
            result.add(experiment.train(on_round=heard, keeper=Keeper(meter=meter)))
        finally:
            meter.close()
    return result
