"""What people call from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .data.federation import Federation
from .errors import Problem
from .experiment.config.schema import Config, read
from .experiment.experiment import experiments
from .experiment.from_config import make_experiments
from .experiment.result import Result
from .experiment.run import Listener, Study, train_study
from .experiment.run import plan_study as plan_study
from .experiment.run_sweep import sweep_study
from .guard.meter import make_meter
from .guard.meter import open_ledgers as guard_ledgers
from .guard.session import Session
from .planning.training import Training
from .privacy.budget import PerSilo, Privacy, per_silo
from .privacy.ledger.verify import Report, check_ledger
from .protocol.method import Method
from .report.folder import Folder
from .tasks.task import Task, make_task


def read_study(
    config: Config | str | Path, *, changes: Sequence[str] = (), data_dir: str | Path | None = None
) -> Study:
    """Read a configuration file, apply `key=value` changes, load its data and check all of it."""
    if not isinstance(config, Config):
        config = read(config, changes)
    return Study(config, tuple(make_experiments(config, data_dir)))


def train(study: Study, *, out: Path | None = None, listener: Listener | None = None) -> Result:
    """Train a study; with `out`, keep it in that folder."""
    if study.config.tuning is not None and study.config.tuning.trials != "all":
        raise Problem("the configuration has a [tuning] table: use `coterie sweep`, or remove it")
    return train_study(study, None, listener, None if out is None else Folder(out))


def train_sweep(study: Study, *, out: Path | None = None, listener: Listener | None = None) -> Result:
    """Run a sweep; with `out`, keep it in that folder."""
    return sweep_study(study, listener, None if out is None else Folder(out))


def open_ledgers(
    folder: str | Path,
    federation: Federation,
    epsilon: PerSilo,
    delta: PerSilo,
    *,
    unit: str = "example",
    filter: str = "basic",
) -> list[Report]:
    """Make a ledger for each silo, with the budget that all its runs together may spend.

    Epsilon and delta are one number, or one for each silo: `{"north": 1, "default": 4}`. `filter` is how
    runs add up: "basic", or "rdp".
    """
    folder, names = Path(folder), federation.names
    present = [who.silo for who in federation.identities if (folder / f"{who.fingerprint}.sqlite").exists()]
    if present:
        raise Problem(
            f"there are ledgers already, as of '{present[0]}': `coterie ledger show` shows them,"
            " `coterie ledger budget` changes their budget"
        )
    numbers = per_silo("epsilon", epsilon, names), per_silo("delta", delta, names)
    ledgers = guard_ledgers(folder, federation, list(zip(*numbers, strict=True)), filter, unit)
    for ledger in ledgers:
        ledger.close()
    return [check_ledger(ledger.path) for ledger in ledgers]


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
            result.add(experiment.train(on_round=heard, session=Session(meter=meter)))
        finally:
            meter.close()
    return result
