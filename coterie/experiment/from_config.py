"""Turn a configuration into a study: data, model, methods, budgets and training, all checked."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.federation import Federation, load
from ..errors import Problem
from ..measures.catalogue import Metric
from ..methods import AUTO, METHODS, MRMTL, MRMTLAuto, Then, Tune
from ..planning.schedule import Dropping, Participation
from ..planning.training import Training
from ..privacy.budget import NOT_GIVEN, Privacy
from ..protocol.method import Method
from ..protocol.optimizer import Optimizer
from ..protocol.settings import settings_of
from ..tasks.adaptation import Adaptation
from ..tasks.losses import LOSSES, NUMBERS
from ..tasks.settings import loss_settings
from ..tasks.start import Start
from ..tasks.task import Task, make_task
from .config.schema import Config, Data, PrivacyTable, Train
from .experiment import Experiment, experiments
from .metrics import metrics_of
from .study import Study


def study_of(config: Config, data_dir: str | Path | None = None) -> Study:
    """Load the data of a configuration, and return a study with a checked experiment for each method."""
    return Study(config, tuple(make_experiments(config, data_dir)))


def load_federation(config: Config, data_dir: str | Path | None = None) -> Federation:
    """Load the data of a configuration."""
    data = config.data
    if data.kind == "auto" and config.model.loss in LOSSES:
        kind = "regression" if config.model.loss in NUMBERS else "classification"
        data = data.model_copy(update={"kind": kind})
    return replace(load_data(data, data.source, data_dir), recipe=config.data.model_dump())


def load_data(
    data: Data, source: Any, data_dir: str | Path | None = None, name: str | None = None
) -> Federation:
    """Load a source with the settings of a [data] table; `name` is that of data in memory."""
    return load(source, data_dir=data_dir, name=name, **data.model_dump(exclude={"source"}))


def make_methods(config: Config) -> list[tuple[Method, str]]:
    """Return the methods of a configuration, each with how it uses silos' budgets.

    A list of values for a fixed setting becomes one method per value.
    """
    for table in config.method:
        if table["name"] == Tune.name and "after" not in table:
            raise Problem(
                "method: 'tune' trains on what silos learned together: give it `after` another method, as"
                ' after = { name = "fedavg", share = 0.6 }; alone it would hold them near an untrained model'
            )
    return [(method, table.get("budgets", "own")) for table in config.method for method in methods_of(table)]


def methods_of(table: dict[str, Any]) -> list[Method]:
    """Return the methods of one table."""
    if table["name"] == MRMTL.name and AUTO in _listed(table.get("lam")):
        rest = [lam for lam in _listed(table["lam"]) if lam != AUTO]
        fixed = methods_of({**table, "lam": rest}) if rest else []
        own = {key: value for key, value in table.items() if key != "lam"}
        return [*fixed, *methods_of({**own, "name": MRMTLAuto.name})]
    kind = METHODS[table["name"]]
    axes: dict[str, list[Any]] = {}
    each_run: dict[str, tuple[float, ...]] = {}
    for key, field in settings_of(kind).items():
        value = table.get(key)
        if isinstance(value, list) and not field.metadata.get("fixed") and "after" not in table:
            each_run[key] = tuple(map(float, value))
        elif value is not None:
            axes[key] = _listed(value)
            if "read" in field.metadata:
                axes[key] = [field.metadata["read"](value) for value in axes[key]]
    picks = [dict(zip(axes, picked, strict=True)) for picked in itertools.product(*axes.values())]
    made = [kind(**picked, **each_run) for picked in picks]
    if "after" not in table:
        return made
    first = {key: value for key, value in table["after"].items() if key != "share"}
    (before,) = methods_of(first)
    return [Then(first=before, second=method, share=table["after"].get("share", 0.1)) for method in made]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def make_experiments(config: Config, data_dir: str | Path | None = None) -> list[Experiment]:
    """Return the checked experiments of a configuration, one for each method."""
    privacy = privacy_of(config.privacy)
    federation = load_federation(config, data_dir)
    training = training_of(config.train, len(federation))
    task = task_of(config, federation)
    metrics = report_metrics(config, task)
    return experiments(federation, task, make_methods(config), privacy, training, metrics)


def report_metrics(config: Config, task: Task) -> tuple[Metric, ...]:
    """Return the measures that a configuration asks for; none if it does not say."""
    return () if config.report is None else metrics_of(config.report.metrics, task, config.allowed)


def task_of(config: Config, federation: Federation) -> Task:
    """Return the task of a configuration for the examples of a federation."""
    model = config.model
    given = {"start": model.start, "lora": model.lora, **(model.model_extra or {})}
    options, adaptation = adaptation_of(given, config.train.only)
    return make_task(
        model.name,
        shape=federation.shape,
        classes=len(federation.classes),
        loss=model.loss,
        options=options,
        allowed=config.allowed,
        targets=len(federation.targets),
        settings=loss_settings(model.class_weights, model.huber_delta, federation.classes),
        ids=federation.ids,
        adaptation=adaptation,
        inputs=federation.inputs,
    )


def adaptation_of(options: Any, only: Any) -> tuple[dict[str, Any], Adaptation]:
    """Return the settings of a factory and what of its module is trained, from the keys of [model]."""
    rest, problems = dict(options or {}), []
    start, lora = rest.pop("start", None), rest.pop("lora", None)
    if start is not None and not isinstance(start, str | Path):
        problems.append(f"model.start: expected the path of a safetensors file, got {start!r}")
    if lora is not None and (isinstance(lora, bool) or not isinstance(lora, int) or lora < 1):
        problems.append(f"model.lora: expected a whole number >= 1, got {lora!r}")
    if problems:
        raise Problem("\n".join(problems))
    begin = None if start is None else Start(Path(start).expanduser())
    return rest, Adaptation(begin, tuple(only or ()), lora or 0)


def privacy_of(table: PrivacyTable) -> Privacy:
    """Return the privacy settings of a [privacy] table."""
    epsilon = NOT_GIVEN if table.epsilon is None else table.epsilon
    where = (table.unit, table.budget_seed, table.noise_by, table.noise, table.sensitivity, table.quantile)
    return Privacy(epsilon, table.delta, table.clip, *where, table.dropouts, table.colluding)


def training_of(train: Train, silos: int) -> Training:
    """Return the training settings of a [train] table, for a federation with this many silos."""
    return Training(
        rounds=train.rounds,
        epochs=train.epochs or 1.0,
        steps=train.steps,
        batch=train.batch,
        lr=train.lr,
        seeds=tuple(train.seeds),
        participation=_participation(train.participation, silos),
        memory=train.memory,
        device=train.device,
        dropping=dropping_of(train),
        sampling=train.sampling,
        optimizer=Optimizer(
            train.optimizer, train.momentum, train.weight_decay, train.schedule, train.warmup
        ),
    )


def dropping_of(train: Train) -> Dropping | None:
    """Return how silos drop out; None if they do not."""
    if train.drop == 0 and train.uneven == 0:
        if train.recover is not None:
            raise Problem("train.recover: no silo drops out, so none comes back; set train.drop too")
        return None
    return Dropping(train.drop, train.recover, train.uneven)


def _participation(value: Any, silos: int) -> Participation | None:
    if isinstance(value, dict) and "cohort" in value:
        count = value["cohort"]
        if count > silos:
            raise Problem(
                f"train.participation: a cohort of {count} is larger than the federation, which has {silos}"
            )
        value = count / silos
    if value is None or value == 1:
        return None
    return Participation(value["poisson"], "poisson") if isinstance(value, dict) else Participation(value)
