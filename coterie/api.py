"""The functions people call from Python: load, plan, run, sweep and open ledgers.

Commands call the same functions, so a study has the same result, ledgers and statements either way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, cast

from .data.federation import Federation
from .data.partition import Partition
from .data.preprocess import Ranges
from .data.sources.catalogue import FILES
from .errors import Function, Problem, as_path, check_call, plainly
from .experiment.config.schema import Config, Train, Tuning, read
from .experiment.from_arguments import (
    LossLike,
    MethodLike,
    MetricLike,
    ModelLike,
    TrainingOptions,
    load_source,
    make_study,
)
from .experiment.from_config import study_of
from .experiment.ledger_coverage import covered
from .experiment.listener import Listener, OnRound, listener_of
from .experiment.result import Result
from .experiment.run import train_study
from .experiment.run_sweep import sweep_study
from .experiment.study import Study, StudyPlan, plan_study
from .guard.ledgers import check_new
from .guard.ledgers import open_ledgers as open_all
from .privacy.budget import PerSilo, Privacy, check_budgets, per_silo
from .privacy.ledger.custody import Custody
from .privacy.ledger.verify import Report, check_ledger
from .report.folder import Folder
from .report.views import Views


def _with_training_options(function: Function) -> Function:
    """Show the options of [train] in a function's signature, and refuse unknown arguments in a sentence."""
    signature = inspect.signature(function)
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    hints = {key: hint.__forward_arg__ for key, hint in TrainingOptions.__annotations__.items()}
    defaults = {key: Train.model_fields[key].default for key in hints} | {"seeds": 1, "memory": "1GB"}
    shown += [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=defaults[key], annotation=hint)
        for key, hint in hints.items()
    ]
    whole = signature.replace(parameters=shown)

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        check_call(function.__name__, whole, arguments, named)
        return function(*arguments, **named)

    called.__signature__ = whole  # type: ignore[attr-defined]
    return cast("Function", called)


@plainly
def load(
    source: Any = "digits",
    *,
    silo_column: str | None = None,
    target_column: str | Sequence[str] | None = None,
    drop: Sequence[str] = (),
    person_column: str | None = None,
    rows_per_person: int | None = None,
    keep: Sequence[str] = (),
    missing: str | float | Mapping[str, str | float] = "refuse",
    medians: Mapping[str, float] | None = None,
    categories: Mapping[str, Sequence[str | int]] | None = None,
    unknown: str = "other",
    dates: Sequence[str] | Mapping[str, Any] = (),
    name: str | None = None,
    silos: int | None = None,
    rows: int | None = None,
    partition: str | Partition | None = None,
    shards: int = 2,
    alpha: float = 0.5,
    rotations: int = 4,
    mask: float = 0.1,
    test: float | str = 0.2,
    seed: int = 0,
    features: str = "auto",
    feature_range: Ranges | None = None,
    norm: float | None = None,
    standardize: Mapping[str, tuple[float, float]] | None = None,
    positive: str | None = None,
    target_range: tuple[float, float] | None = None,
    kind: str = "auto",
    min_examples: int = 2,
    data_dir: str | Path | None = None,
) -> Federation:
    """Load a federation: silos with their examples.

    `source` is a CSV or Parquet file, a pandas DataFrame or a dict of columns (name the `silo_column` and the
    `target_column`, and columns to `drop`); a dict of the arrays x, y and silo; an .npz file or another
    format that `coterie data list` shows; or "digits". Data in memory needs a `name` to have ledgers.

    Columns become numbers by public rules. `missing` says what a missing value becomes: "refuse",
    "indicator", a value or "public-median" (the column's number in `medians`), or one of these per column.
    `categories` are public vocabularies of text columns, and `unknown` ("other" or "refuse") says what a
    value outside them becomes. `dates` are columns of dates, which become years since a day: a list, or a day
    for each column. Columns that look like ids are left out unless `keep` names them.

    The other arguments are the keys of a configuration's [data] table. `silos` and `partition` split data
    that has no silos ("iid", "shards", "dirichlet", "rotated", "rotated-masked"), and `test` is the share of
    examples held out. `features`, `feature_range`, `norm` and `target_range` prepare the numbers, `positive`
    sets one class against the rest, and `kind` says whether the target is a class or a number.

    `person_column` says whose row each is: all rows of a person in a silo are then either training or test
    rows. A training that protects persons (`unit="person"`) uses at most `rows_per_person` rows of each.

    >>> len(load("digits", silos=5))
    5
    """
    how = {"shards": shards, "alpha": alpha, "rotations": rotations, "mask": mask}
    if isinstance(partition, Partition):
        how = {key: getattr(partition, key) for key in how}
        partition = partition.name
    values = {
        "silo_column": silo_column,
        "target_column": list(target_column) if isinstance(target_column, list | tuple) else target_column,
        "drop": drop if isinstance(drop, str) or not isinstance(drop, Iterable) else list(drop),
        "person_column": person_column,
        "rows_per_person": rows_per_person,
        "keep": keep if isinstance(keep, str) or not isinstance(keep, Iterable) else list(keep),
        "missing": missing,
        "medians": medians or {},
        "categories": categories or {},
        "unknown": unknown,
        "dates": dates or {},
        "silos": silos,
        "rows": rows,
        "partition": partition,
        **how,
        "test": test,
        "seed": seed,
        "features": features,
        "feature_range": feature_range,
        "norm": norm,
        "standardize": standardize or {},
        "positive": positive,
        "target_range": target_range,
        "kind": kind,
        "min_examples": min_examples,
    }
    return load_source(source, values, name=name, data_dir=data_dir)


@_with_training_options
def plan(
    study: Federation | Study | Config | str | Path,
    methods: MethodLike | Sequence[MethodLike] | None = None,
    privacy: Privacy | None = None,
    *,
    ledger: str | Path | None = None,
    witness: str | Path | None = None,
    model: ModelLike = "linear",
    loss: LossLike = "auto",
    model_options: Mapping[str, Any] | None = None,
    loss_options: Mapping[str, Any] | None = None,
    metrics: MetricLike | Sequence[MetricLike] | None = None,
    data_dir: str | Path | None = None,
    changes: Sequence[str] = (),
    allow: Sequence[str] = (),
    **training: Unpack[TrainingOptions],
) -> StudyPlan:
    """Return what every silo would do, spend and send. Nothing is trained and no budget is touched.

    Pass a federation, methods and budgets, or the path of a configuration file. A method is an object
    (`methods.Ditto(lam=0.2)`), a name ("ditto") or a table (`{"name": "ditto", "lam": 0.2}`). `model` is a
    name ("linear", "mlp", "cnn"), a function or class that builds a torch module, or a module, whose
    parameters are then the start of every run. `loss` is a name, or a function of outputs and targets that
    returns one number per example; `loss_options` are `class_weights` and `huber_delta`. `metrics` are
    the measures of the result: names such as "auc" and "f1", or functions of predictions and targets. The
    other arguments are the keys of a configuration's [train] table. `changes` override keys of a
    configuration file: `changes=["train.rounds=10"]`. A model, loss or metric that a file names is imported
    only if its module lies beside the file, or if `allow` names it: `allow=["my_models"]`.

    With `ledger`, a folder of ledgers, `coverage` of the plan says what each silo's ledger has left and what
    the training would charge, and `refusal` why it would not begin. The ledgers are only read; keys are not
    needed. `run` of such a plan is metered by these ledgers.
    """
    how: dict[str, Any] = {"model": model, "loss": loss}
    how |= {"model_options": model_options, "loss_options": loss_options, "metrics": metrics}
    asked = _study(study, methods, privacy, training, how, data_dir, changes, allow)
    return covered(plan_study(asked.with_ledger(*_places(ledger, None, witness))))


@_with_training_options
def run(
    study: StudyPlan | Federation | Study | Config | str | Path,
    methods: MethodLike | Sequence[MethodLike] | None = None,
    privacy: Privacy | None = None,
    *,
    ledger: str | Path | None = None,
    keys: str | Path | None = None,
    witness: str | Path | None = None,
    out: str | Path | None = None,
    model: ModelLike = "linear",
    loss: LossLike = "auto",
    model_options: Mapping[str, Any] | None = None,
    loss_options: Mapping[str, Any] | None = None,
    metrics: MetricLike | Sequence[MetricLike] | None = None,
    data_dir: str | Path | None = None,
    changes: Sequence[str] = (),
    allow: Sequence[str] = (),
    on_round: OnRound | None = None,
    listener: Listener | None = None,
    **training: Unpack[TrainingOptions],
) -> Result:
    """Train methods on a federation and return the result; pass a plan, or the arguments of `plan`.

    `ledger` is a folder of ledgers. Every run is then charged to each silo before it happens, and its noise
    comes from the system's entropy. Nothing is trained unless the ledgers pay for all methods. In a folder
    without ledgers a single run makes them, each with the budget of the run; otherwise make them with
    `open_ledgers`. `keys` is the folder of the silos' keys; without it, each ledger has a key beside it.
    `witness` is a folder that keeps the ledgers' heads, so that an old copy is noticed (see `open_ledgers`).

    `out` is a folder for results, statements and models, like the one `coterie run` writes. If a run is
    interrupted, the same call resumes it. `on_round(method, round, score)` is called after every round.
    """
    heard = listener_of(listener, on_round)
    how: dict[str, Any] = {"model": model, "loss": loss}
    how |= {"model_options": model_options, "loss_options": loss_options, "metrics": metrics}
    planned = study if isinstance(study, StudyPlan) else None
    if planned is not None:
        _refuse_more(methods, privacy, training, how)
        asked = planned.study
    else:
        asked = _study(study, methods, privacy, training, how, data_dir, changes, allow)
    if asked.config.tuning is not None and asked.config.tuning.trials != "all":
        raise Problem("the configuration has a [tuning] table: use sweep, or remove it")
    asked = asked.with_ledger(*_places(ledger, keys, witness))
    result = train_study(asked, planned, heard, _folder(out))
    result.views = Views()
    return result


@_with_training_options
def sweep(
    study: Federation | Study | Config | str | Path,
    method: MethodLike | None = None,
    privacy: Privacy | None = None,
    *,
    trials: str = "geometric",
    mean: float | None = None,
    shape: float | None = None,
    most: int | None = None,
    score: str = "noised",
    metric: str | None = None,
    ledger: str | Path | None = None,
    keys: str | Path | None = None,
    witness: str | Path | None = None,
    out: str | Path | None = None,
    model: ModelLike = "linear",
    loss: LossLike = "auto",
    model_options: Mapping[str, Any] | None = None,
    loss_options: Mapping[str, Any] | None = None,
    metrics: MetricLike | Sequence[MetricLike] | None = None,
    data_dir: str | Path | None = None,
    changes: Sequence[str] = (),
    allow: Sequence[str] = (),
    on_round: OnRound | None = None,
    listener: Listener | None = None,
    **training: Unpack[TrainingOptions],
) -> Result:
    """Choose settings from lists by a random number of trials, charge for the choice, and return the result.

    The number of trials is drawn from `trials` ("geometric", "poisson" or "negative-binomial", with `mean`
    and `shape`), and is at most `most`. The best is chosen by its `score`: "noised", or "public" to use only
    silos without privacy. `metric` is what it measures, if not accuracy or mse: "auc", "brier" or "mae". With
    `trials="all"`, every setting is tried once, and the choice is not charged.
    `result.tuning` says what was tried and chosen, and what it costs.
    """
    heard = listener_of(listener, on_round)
    how: dict[str, Any] = {"model": model, "loss": loss}
    how |= {"model_options": model_options, "loss_options": loss_options, "metrics": metrics}
    asked = {"trials": trials, "mean": mean, "shape": shape, "most": most, "score": score, "metric": metric}
    given = {key: value for key, value in asked.items() if value != getattr(Tuning(), key)}
    if isinstance(study, Study | Config | str | Path):
        _refuse_more(method, privacy, given, {})
    else:
        how["tuning"] = given
    made = _study(study, method, privacy, training, how, data_dir, changes, allow)
    made = made.with_ledger(*_places(ledger, keys, witness))
    every = made.config.tuning is not None and made.config.tuning.trials == "all"
    store = _folder(out)
    result = train_study(made, None, heard, store) if every else sweep_study(made, heard, store)
    result.views = Views()
    return result


@plainly
def open_ledgers(
    folder: str | Path,
    federation: Federation,
    epsilon: PerSilo,
    delta: PerSilo,
    *,
    unit: str = "example",
    filter: str = "basic",
    another: bool = False,
    keys: str | Path | None = None,
    witness: str | Path | None = None,
) -> list[Report]:
    """Create a ledger for each silo, with the budget that all its runs together may spend.

    Epsilon and delta are one number each, or one per silo: `{"north": 1, "default": 4}`. `unit` is what is
    protected: "example", "person" or "silo". `filter` is how runs add up: "basic", "rdp" or "gdp".

    If the folder has ledgers of the same data already, with other silos, sizes or cuts, new ones would be a
    further budget. `another=True` says that they are for other examples; the ledgers record it.

    `keys` is a folder with a key for each silo (`new_key`), or one .key file; without it, a key is made
    beside each ledger. `witness` is the folder that keeps the heads of the ledgers: best on another disk or
    machine. Without it, it is that of the environment variable COTERIE_WITNESS or the user's own.
    """
    if not isinstance(federation, Federation):
        raise Problem(f"federation: expected what load returns, got a {type(federation).__name__}")
    folder, names = as_path("folder", folder), federation.names
    check_new(folder, federation, another)
    numbers = per_silo("epsilon", epsilon, names), per_silo("delta", delta, names)
    check_budgets(*numbers, ())
    budgets = list(zip(*numbers, strict=True))
    _, *places = _places(None, keys, witness)
    custody = Custody.of(*places)
    ledgers = open_all(folder, federation, budgets, filter, unit, custody, another=another)
    for ledger in ledgers:
        ledger.close()
    return [check_ledger(ledger.path, custody.witness) for ledger in ledgers]


def _places(*given: Any) -> list[Path | None]:
    """Return the arguments `ledger`, `keys` and `witness` as paths."""
    named = zip(("ledger", "keys", "witness"), given, strict=True)
    return [None if value is None else as_path(name, value) for name, value in named]


def _study(
    study: Any,
    methods: Any,
    privacy: Any,
    training: Mapping[str, Any],
    how: Mapping[str, Any],
    data_dir: str | Path | None,
    changes: Sequence[str],
    allow: Sequence[str],
) -> Study:
    """Return the study that a call asks for, from a configuration or from arguments."""
    if isinstance(study, StudyPlan):
        raise Problem("this is a plan already: give the federation, methods and budgets instead")
    from_file = isinstance(study, str | Path)
    if from_file and Path(study).suffix.lower() != ".toml" and (methods is not None or _is_data(study)):
        raise Problem(
            f"'{study}' is not a configuration (a .toml file); load data first, as in load('{study}', ...),"
            " and give what it returns"
        )
    if changes and not from_file:
        raise Problem("changes: only a configuration file can be changed; pass different arguments instead")
    if allow and not from_file:
        raise Problem("allow: only a configuration file names modules that must be allowed; leave it out")
    if not from_file and not isinstance(study, Study | Config):
        return make_study(study, methods, privacy, training, **how)
    _refuse_more(methods, privacy, training, how)
    if isinstance(study, Study):
        return study
    return study_of(read(study, changes, allow) if from_file else study, data_dir)


def _is_data(path: str | Path) -> bool:
    return Path(path).suffix.lower() in FILES


def _refuse_more(methods: Any, privacy: Any, training: Mapping[str, Any], how: Mapping[str, Any]) -> None:
    """Raise a Problem for arguments that the plan or configuration already sets."""
    plain = {"model": "linear", "loss": "auto"}
    more = [*training, *(key for key, value in how.items() if value is not None and value != plain.get(key))]
    more += [name for name, value in (("methods", methods), ("privacy", privacy)) if value is not None]
    if more:
        raise Problem(
            f"{more[0]}: the plan or configuration already sets this; leave it out, or change it there"
        )


def _folder(out: str | Path | None) -> Folder | None:
    return None if out is None else Folder(as_path("out", out))
