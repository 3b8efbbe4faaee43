"""What people call from Python: load, plan, run, sweep, and open ledgers.

Commands call the same functions, so that a study has the same result, ledgers and statements either way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

from .data.federation import Federation
from .data.partition import Partition
from .data.preprocess import Ranges
from .errors import Problem, nearest
from .experiment.config.schema import Config, Train, Tuning, read
from .experiment.from_arguments import MethodLike, ModelLike, TrainingOptions, load_source, make_study
from .experiment.from_config import study_of
from .experiment.result import Result
from .experiment.run import Listener, Study, StudyPlan, plan_study, train_study
from .experiment.run_sweep import sweep_study
from .guard.meter import open_ledgers as open_all
from .privacy.budget import PerSilo, Privacy, check_budgets, per_silo
from .privacy.ledger.verify import Report, check_ledger
from .report.folder import Folder
from .report.views import Views

Function = TypeVar("Function", bound=Callable[..., Any])
OnRound = Callable[[str, int, float | None], None]


def _said_plainly(function: Function) -> Function:
    """Show the options of [train] in a function's signature, and refuse unknown arguments in a sentence."""
    signature = inspect.signature(function)
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(shown) < len(signature.parameters):
        hints = {key: hint.__forward_arg__ for key, hint in TrainingOptions.__annotations__.items()}
        defaults = {key: Train.model_fields[key].default for key in hints} | {"seeds": 1, "memory": "1GB"}
        shown += [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=defaults[key], annotation=hint)
            for key, hint in hints.items()
        ]
    whole = signature.replace(parameters=shown)

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        unknown = [key for key in named if key not in whole.parameters]
        if unknown:
            hint = nearest(unknown[0], whole.parameters)
            raise Problem(f"{function.__name__}: unknown argument '{unknown[0]}'; {hint}")
        try:
            whole.bind(*arguments, **named)
        except TypeError as error:
            raise Problem(f"{function.__name__}: {error}") from None
        return function(*arguments, **named)

    called.__signature__ = whole  # type: ignore[attr-defined]
    return cast("Function", called)


@_said_plainly
def load(
    source: Any = "digits",
    *,
    silo_column: str | None = None,
    target_column: str | None = None,
    drop: Sequence[str] = (),
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

    The other arguments are the keys of a configuration's [data] table: `silos` and `partition` cut data that
    has no silos ("iid", "shards", "dirichlet", "rotated", "rotated-masked"), `test` is the share of examples
    held out, `features`, `feature_range`, `norm` and `target_range` prepare the numbers, `positive` sets one
    class against the rest, and `kind` says whether the target is a class or a number.

    >>> len(load("digits", silos=5))
    5
    """
    how = {"shards": shards, "alpha": alpha, "rotations": rotations, "mask": mask}
    if isinstance(partition, Partition):
        how = {key: getattr(partition, key) for key in how}
        partition = partition.name
    values = {
        "silo_column": silo_column,
        "target_column": target_column,
        "drop": list(drop) if not isinstance(drop, str) else drop,
        "silos": silos,
        "rows": rows,
        "partition": partition,
        **how,
        "test": test,
        "seed": seed,
        "features": features,
        "feature_range": feature_range,
        "norm": norm,
        "positive": positive,
        "target_range": target_range,
        "kind": kind,
        "min_examples": min_examples,
    }
    return load_source(source, values, name=name, data_dir=data_dir)


@_said_plainly
def plan(
    study: Federation | Study | Config | str | Path,
    methods: MethodLike | Sequence[MethodLike] | None = None,
    privacy: Privacy | None = None,
    *,
    model: ModelLike = "linear",
    loss: str = "auto",
    model_options: Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
    changes: Sequence[str] = (),
    **training: Unpack[TrainingOptions],
) -> StudyPlan:
    """Find what every silo would do, spend and send. Nothing is trained and no budget is touched.

    Give a federation, methods and budgets, or the path of a configuration file. A method is an object
    (`methods.Ditto(lam=0.2)`), a name ("ditto") or a table (`{"name": "ditto", "lam": 0.2}`). `model` is a
    name ("linear", "mlp", "cnn"), a function or class that makes a torch module, or a module, whose numbers
    are then the start of every run. The other arguments are the keys of a configuration's [train] table.
    `changes` change keys of a configuration file: `changes=["train.rounds=10"]`.
    """
    how = {"model": model, "loss": loss, "model_options": model_options}
    return plan_study(_study(study, methods, privacy, training, how, data_dir, changes))


@_said_plainly
def run(
    study: StudyPlan | Federation | Study | Config | str | Path,
    methods: MethodLike | Sequence[MethodLike] | None = None,
    privacy: Privacy | None = None,
    *,
    ledger: str | Path | None = None,
    out: str | Path | None = None,
    model: ModelLike = "linear",
    loss: str = "auto",
    model_options: Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
    changes: Sequence[str] = (),
    on_round: OnRound | None = None,
    listener: Listener | None = None,
    **training: Unpack[TrainingOptions],
) -> Result:
    """Train methods on a federation: give a plan, or what `plan` takes.

    `ledger` is a folder of ledgers. Every run is then charged to each silo before it happens, and its noise
    comes from the system's entropy. Nothing is trained unless the ledgers pay for all methods. A single run
    makes the ledgers that are missing, each with the budget of the run; otherwise make them with
    `open_ledgers`.

    `out` is a folder for results, statements and models, as `coterie run` writes it. If a run is interrupted,
    the same call resumes it. `on_round(method, round, score)` hears of every round.
    """
    how = {"model": model, "loss": loss, "model_options": model_options}
    planned = study if isinstance(study, StudyPlan) else None
    if planned is not None:
        _refuse_more(methods, privacy, training, how)
        asked = planned.study
    else:
        asked = _study(study, methods, privacy, training, how, data_dir, changes)
    if asked.config.tuning is not None and asked.config.tuning.trials != "all":
        raise Problem("the configuration has a [tuning] table: use `coterie sweep`, or remove it")
    asked = asked.with_ledger(None if ledger is None else _path("ledger", ledger))
    result = train_study(asked, planned, _listener(listener, on_round), _folder(out))
    result.views = Views()
    return result


@_said_plainly
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
    ledger: str | Path | None = None,
    out: str | Path | None = None,
    model: ModelLike = "linear",
    loss: str = "auto",
    model_options: Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
    changes: Sequence[str] = (),
    on_round: OnRound | None = None,
    listener: Listener | None = None,
    **training: Unpack[TrainingOptions],
) -> Result:
    """Choose among the lists of a method and its training by a random number of trials, and bill the choice.

    The number of trials is drawn from `trials` ("geometric", "poisson" or "negative-binomial", with `mean`
    and `shape`), and is at most `most`. The best is chosen by its `score`: "noised", or "public" to use only
    silos without privacy. With `trials="all"` every setting is tried once, and the choice is not billed.
    `result.tuning` says what was tried and chosen, and what it costs.
    """
    how: dict[str, Any] = {"model": model, "loss": loss, "model_options": model_options}
    asked = {"trials": trials, "mean": mean, "shape": shape, "most": most, "score": score}
    given = {key: value for key, value in asked.items() if value != getattr(Tuning(), key)}
    if isinstance(study, Study | Config | str | Path):
        _refuse_more(method, privacy, given, {})
    else:
        how["tuning"] = given
    made = _study(study, method, privacy, training, how, data_dir, changes)
    made = made.with_ledger(None if ledger is None else _path("ledger", ledger))
    every = made.config.tuning is not None and made.config.tuning.trials == "all"
    heard, store = _listener(listener, on_round), _folder(out)
    result = train_study(made, None, heard, store) if every else sweep_study(made, heard, store)
    result.views = Views()
    return result


@_said_plainly
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

    Epsilon and delta are one number, or one for each silo: `{"north": 1, "default": 4}`. `unit` is what is
    protected: "example" or "silo". `filter` is how runs add up: "basic", "rdp" or "gdp".
    """
    if not isinstance(federation, Federation):
        raise Problem(f"federation: expected what load returns, got a {type(federation).__name__}")
    folder, names = _path("folder", folder), federation.names
    present = [who.silo for who in federation.identities if (folder / f"{who.fingerprint}.sqlite").exists()]
    if present:
        raise Problem(
            f"there are ledgers already, such as that of '{present[0]}': `coterie ledger show` shows them,"
            " `coterie ledger budget` changes their budget"
        )
    numbers = per_silo("epsilon", epsilon, names), per_silo("delta", delta, names)
    check_budgets(*numbers, ())
    ledgers = open_all(folder, federation, list(zip(*numbers, strict=True)), filter, unit)
    for ledger in ledgers:
        ledger.close()
    return [check_ledger(ledger.path) for ledger in ledgers]


def _study(
    study: Any,
    methods: Any,
    privacy: Any,
    training: Mapping[str, Any],
    how: Mapping[str, Any],
    data_dir: str | Path | None,
    changes: Sequence[str],
) -> Study:
    """Make the study that a call asks for, from a configuration or from arguments."""
    from_file = isinstance(study, str | Path)
    if changes and not from_file:
        raise Problem("changes: only a configuration file can be changed; give other arguments instead")
    if not from_file and not isinstance(study, Study | Config):
        return make_study(study, methods, privacy, training, **how)
    _refuse_more(methods, privacy, training, how)
    if isinstance(study, Study):
        return study
    return study_of(read(study, changes) if from_file else study, data_dir)


def _refuse_more(methods: Any, privacy: Any, training: Mapping[str, Any], how: Mapping[str, Any]) -> None:
    """Refuse arguments that a plan or a configuration has already."""
    plain = {"model": "linear", "loss": "auto"}
    more = [*training, *(key for key, value in how.items() if value is not None and value != plain.get(key))]
    more += [name for name, value in (("methods", methods), ("privacy", privacy)) if value is not None]
    if more:
        raise Problem(
            f"{more[0]}: the plan or configuration says it already; leave it out, or change it there"
        )


def _folder(out: str | Path | None) -> Folder | None:
    return None if out is None else Folder(_path("out", out))


def _path(name: str, value: Any) -> Path:
    """Return an argument as a path."""
    if not isinstance(value, str | PathLike):
        raise Problem(f"{name}: expected the path of a folder, got {value!r}")
    return Path(value)


def _listener(listener: Listener | None, on_round: OnRound | None) -> Listener | None:
    if on_round is None:
        return listener
    return Listener(
        on_round=lambda experiment, number, score: on_round(experiment.method.name, number, score)
    )
