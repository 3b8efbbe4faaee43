"""Turn Python arguments into a study, described as a configuration file would describe it.

Arguments are checked by the rules of the file's tables, and all problems of a call are reported together.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from ..data.federation import Federation
from ..errors import Problem, nearest, shown
from ..methods import AUTO, METHODS, MRMTL, MRMTLAuto, Then, Tune
from ..planning.schedule import Participation
from ..privacy.budget import NOT_GIVEN, PerSilo, Privacy, Swept
from ..protocol.method import Method
from ..protocol.settings import settings_of
from ..tasks.models import Factory
from ..tasks.settings import loss_settings
from ..tasks.task import Task, make_task
from .config.files import find_beside
from .config.methods import method_problems
from .config.schema import Config, Data, Model, PrivacyTable, Report, Train, Tuning, sentence
from .experiment import experiments
from .from_config import adaptation_of, load_data, methods_of, training_of
from .metrics import Function, metrics_of, written_metrics
from .study import Study

LOSS_OPTIONS = ("class_weights", "huber_delta")
ModelLike = str | Callable[..., nn.Module] | nn.Module | Task
MetricLike = str | Function
LossLike = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
MethodLike = Method | type[Method] | str | Mapping[str, Any]
NEEDS_ANOTHER = (
    "'tune' trains on what silos learned together: use Then(first=FedAvg(), second=Tune(), share=0.6); alone"
    " it would hold them near an untrained model"
)


class TrainingOptions(TypedDict, total=False):
    """How long and how fast silos train: the keys of a configuration's [train] table.

    `docs/configuration.md` explains each.
    """

    rounds: int
    epochs: float | None
    steps: int | None
    batch: int
    sampling: str
    lr: Swept
    optimizer: str
    momentum: float | None
    weight_decay: float
    schedule: str
    warmup: int
    seeds: int | Sequence[int]
    participation: float | Mapping[str, float] | None
    drop: PerSilo
    recover: float | None
    uneven: float
    memory: int | str
    device: str
    checkpoint: int | None
    only: Sequence[str] | None


def make_study(
    federation: Any,
    methods: Any,
    privacy: Any,
    options: Mapping[str, Any],
    *,
    model: Any = "linear",
    loss: Any = "auto",
    model_options: Any = None,
    loss_options: Any = None,
    tuning: Mapping[str, Any] | None = None,
    metrics: Any = None,
) -> Study:
    """Check the arguments of a call and return its study; `options` are those of [train]."""
    problems: list[str] = []
    if not isinstance(federation, Federation):
        problems.append(
            f"the data must be a federation, got {_kind(federation)}: load it first, as in"
            " load(data, silo_column=..., target_column=...)"
        )
    if not isinstance(privacy, Privacy):
        bare = "; to train without privacy, say so: Privacy(epsilon=math.inf)" if privacy is None else ""
        problems.append(f"privacy must be Privacy(epsilon=..., delta=...), got {shown(privacy)}{bare}")
    pairs = read_methods(methods, problems)
    train = _table(problems, Train, "train", options or {"epochs": 1.0})
    if options.get("steps") is not None and options.get("epochs") is not None:
        problems.append("train: expected either epochs or steps, not both")
    chosen = None if tuning is None else _table(problems, Tuning, "tuning", tuning)
    budgets: Any = None
    task: Any = None
    if isinstance(privacy, Privacy):
        budgets = _table(problems, PrivacyTable, "privacy", _privacy(privacy))
    if isinstance(federation, Federation):
        own = (model_options, loss_options, getattr(train, "only", None))
        task = _checked(problems, lambda: task_of(model, federation, loss, *own))
    measures = _checked(problems, lambda: metrics_of(metrics, task)) if isinstance(task, Task) else ()
    _refuse(problems)
    training = training_of(train, len(federation))
    config = Config(
        data=_data(federation),
        model=_model(task, model, loss, federation.classes),
        train=train,
        privacy=budgets,
        tuning=chosen,
        report=Report(metrics=written_metrics(metrics)) if measures else None,
        method=[method_table(method, how) for method, how in pairs],
    )
    made = experiments(federation, task, pairs, privacy, training, measures)
    return Study(config, tuple(made))


def _checked(problems: list[str], make: Callable[[], Any]) -> Any:
    """Return what a function returns; if it raises a Problem, append that to `problems`."""
    try:
        return make()
    except Problem as problem:
        problems += str(problem).split("\n")
        return None


def _refuse(problems: Iterable[str]) -> None:
    """Raise one `Problem` that lists all problems."""
    lines = list(dict.fromkeys(problems))
    if len(lines) == 1:
        raise Problem(lines[0])
    if lines:
        raise Problem(f"{len(lines)} problems:" + "".join(f"\n  {line}" for line in lines))


def _table(problems: list[str], kind: type[Any], name: str, values: Mapping[str, Any]) -> Any:
    """Return a table of a configuration from arguments; append what is wrong with them to `problems`."""
    try:
        return kind.model_validate(plain(values))
    except ValidationError as error:
        wrongs = [sentence({**wrong, "loc": (name, *wrong["loc"])}) for wrong in error.errors()]
        problems += [line for wrong in wrongs for line in wrong.split("\n")]
        return None


def plain(value: Any) -> Any:
    """Return plain numbers, text, lists and dicts in place of equivalent values such as arrays and paths.

    >>> plain({"lr": (np.float64(0.5), 1)})
    {'lr': [0.5, 1]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Participation):
        return {"poisson": value.share} if value.sampler == "poisson" else value.share
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, torch.device):
        return str(value)
    if hasattr(value, "to_dict") and hasattr(value, "index") and not isinstance(value, Sequence):
        return plain(value.to_dict())  # a pandas Series, indexed by silo
    if isinstance(value, tuple | range | list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def load_source(
    source: Any, values: Mapping[str, Any], *, name: Any = None, data_dir: str | Path | None = None
) -> Federation:
    """Check the arguments of `load` as a [data] table, and return the data, described by that table."""
    problems: list[str] = []
    if name is not None and not isinstance(name, str):
        problems.append(f"name: expected a text, got {shown(name)}")
    named = isinstance(source, str | Path)
    content: dict[str, Any] = {"data": {"source": str(source) if named else "in memory", **values}}
    find_beside(content, Path())
    data = _table(problems, Data, "data", content["data"])
    _refuse(problems)
    federation = load_data(data, source, data_dir, name)
    return replace(federation, recipe=data.model_dump()) if named else federation


def task_of(
    model: Any, federation: Federation, loss: Any, options: Any, loss_options: Any = None, only: Any = None
) -> Task:
    """Return the task of a model for the examples of a federation."""
    if isinstance(model, Task):
        if only:
            raise Problem(
                "train.only: the task is made already; make it with adaptation=Adaptation(only=...)"
            )
        return model
    if not isinstance(loss, str) and not callable(loss):
        raise Problem(f"model.loss: expected the name of a loss or a function, got {shown(loss)}")
    for name, given in (("model_options", options), ("loss_options", loss_options)):
        if given is not None and not isinstance(given, Mapping):
            raise Problem(f"{name}: expected a dict of settings, got {shown(given)}")
    known = dict(loss_options or {})
    if unknown := [key for key in known if key not in LOSS_OPTIONS]:
        raise Problem(f"loss_options: unknown setting '{unknown[0]}'; {nearest(unknown[0], LOSS_OPTIONS)}")
    factory_options, adaptation = adaptation_of(options, only)
    return make_task(
        model,
        shape=federation.shape,
        classes=len(federation.classes),
        loss=loss,
        targets=len(federation.targets),
        options=factory_options,
        adaptation=adaptation,
        inputs=federation.inputs,
        settings=loss_settings(**plain(known), classes=federation.classes),
        ids=federation.ids,
    )


def read_methods(given: Any, problems: list[str]) -> list[tuple[Method, str]]:
    """Return methods from objects, classes, names or tables, each with how it uses silos' budgets.

    Whatever is wrong with them is appended to `problems`.
    """
    several = isinstance(given, Sequence) and not isinstance(given, str)
    listed = given if several else [given]
    if given is None or not len(listed):
        problems.append("methods: expected at least one method, such as 'mr-mtl' or MRMTL(lam=0.5)")
        return []
    found = [_checked(problems, functools.partial(_read_method, each)) or [] for each in listed]
    return [pair for pairs in found for pair in pairs]


def _read_method(given: Any) -> list[tuple[Method, str]]:
    if isinstance(given, str):
        given = {"name": given}
    if isinstance(given, Mapping):
        table = plain(given)
        name = table.get("name")
        if not isinstance(name, str):
            raise Problem(
                f"methods: a table needs the name of a method, such as {{'name': 'ditto'}}, got {given!r}"
            )
        if name not in METHODS:
            raise Problem(f"methods: unknown method '{name}'; {_method_hint(name)}")
        problems = [problem.replace("method[0].", f"{name}: ", 1) for problem in method_problems(0, table)]
        if problems:
            raise Problem("\n".join(problems))
        if name == Tune.name and "after" not in table:
            raise Problem(NEEDS_ANOTHER)
        return [(method, table.get("budgets", "own")) for method in methods_of(table)]
    if inspect.isclass(given) and issubclass(given, Method):
        given = given()
    if not isinstance(given, Method):
        raise Problem(f"methods: expected methods, such as 'ditto' or Ditto(lam=0.2), got {shown(given)}")
    if isinstance(given, Tune):
        raise Problem(NEEDS_ANOTHER)
    return [(method, "own") for method in expanded(given)]


def _method_hint(name: str) -> str:
    """Return how to write a method that is not known by this name."""
    first, *settings = name.replace(",", " ").split() or [""]
    kind = METHODS.get(first.lower())
    if kind is not None and settings:
        return f"write methods.{kind.__name__}({', '.join(settings)})"
    return nearest(name, METHODS)


def expanded(method: Method) -> list[Method]:
    """Return the methods that a method stands for: MR-MTL with lam "auto" is a separate method."""
    if isinstance(method, Then):
        chains = [replace(method, second=second) for second in expanded(method.second)]
        return [replace(chain, first=first) for chain in chains for first in expanded(chain.first)]
    if not isinstance(method, MRMTL):
        return [method]
    values: tuple[Any, ...] = method.lam if isinstance(method.lam, tuple) else (method.lam,)
    if AUTO not in values:
        return [method]
    fixed = tuple(value for value in values if value != AUTO)
    lam = fixed[0] if len(fixed) == 1 else fixed
    return [*([replace(method, lam=lam)] if fixed else []), MRMTLAuto()]


def method_table(method: Method, budgets: str = "own") -> dict[str, Any]:
    """Return a method as a [[method]] table: its name, and the settings that differ from the default."""
    if type(method) is Then:
        first = {**method_table(method.first), "share": method.share}
        return {**method_table(method.second, budgets), "after": first}
    settings = {
        name: plain(getattr(method, name))
        for name, field in settings_of(method).items()
        if getattr(method, name) != field.default
    }
    how = {} if budgets == "own" else {"budgets": budgets}
    return {"name": method.name} | {key: _written(value) for key, value in settings.items()} | how


def _written(value: Any) -> Any:
    """Return a setting as a file can hold it."""
    return value if isinstance(value, bool | int | float | str | list | dict) else str(value)


def _privacy(privacy: Privacy) -> dict[str, Any]:
    """Return budgets as a [privacy] table."""
    table = {field.name: getattr(privacy, field.name) for field in fields(privacy)}
    if table["epsilon"] == NOT_GIVEN:
        del table["epsilon"]
    return {key: value for key, value in table.items() if value is not None}


def _data(federation: Federation) -> Data:
    """Describe data as a [data] table."""
    recipe = dict(federation.recipe or {"source": f"{federation.name} (in memory)"})
    return Data.model_validate(recipe)


def _model(task: Task, model: ModelLike, loss: LossLike, classes: Sequence[str]) -> Model:
    """Return a model and its loss as a [model] table."""
    settings = task.settings
    by_name = isinstance(model, str) and isinstance(loss, str)
    table: dict[str, Any] = {"loss": loss if by_name else task.loss, "huber_delta": settings.huber_delta}
    if settings.class_weights:
        table["class_weights"] = dict(zip(classes, settings.class_weights, strict=True))
    if task.adaptation.start is not None:
        table["start"] = str(task.adaptation.start.path)
    if task.adaptation.lora:
        table["lora"] = task.adaptation.lora
    if isinstance(model, str):
        options = plain(task.build.settings) if isinstance(task.build, Factory) else {}
        return Model.model_validate({"name": model, **table, **options})
    name = task.build.name if isinstance(task.build, Factory) else "made in Python"
    return Model.model_validate({"name": name, **table})


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
