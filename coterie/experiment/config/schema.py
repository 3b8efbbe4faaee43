"""Configuration files: TOML, checked as a whole; every problem is reported with its key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)

from ...errors import Problem, nearest, reason
from ...privacy.units import UnitName
from ...tasks.code import Allowed, allowing
from ...tasks.models import MODELS, find_factory, setting_problems
from . import values
from .files import apply_change, find_beside, place_ledger, read_budget_files
from .methods import method_problems

MOST_SEEDS = 10_000
PARTITION_NAMES = Literal["iid", "shards", "dirichlet", "rotated", "rotated-masked"]


ONE_ADJACENCY = (
    "cannot be set: budgets always use zero-out adjacency (one is replaced by a null record); every statement"
    " also reports the bound for replace-one"
)


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(Section):
    """Where examples come from and how they are split."""

    source: str = "digits"
    silos: Annotated[int, Field(ge=1)] | None = None
    rows: Annotated[int, Field(ge=1)] | None = None
    partition: PARTITION_NAMES | None = None
    shards: Annotated[int, Field(ge=1)] = 2
    alpha: Annotated[float, Field(gt=0)] = 0.5
    rotations: Annotated[int, Field(ge=1, le=4)] = 4
    mask: Annotated[float, Field(ge=0, le=1)] = 0.1
    test: Annotated[Any, AfterValidator(values.share)] = 0.2
    seed: Annotated[int, Field(ge=0)] = 0
    features: Literal["auto", "none", "invert", "log", "standardize", "unit", "ids"] = "auto"
    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    positive: str | None = None
    feature_range: Annotated[Any, AfterValidator(values.ranges)] = None
    target_range: Annotated[Any, AfterValidator(values.pair)] = None
    kind: Literal["auto", "classification", "regression"] = "auto"
    min_examples: Annotated[int, Field(ge=2)] = 2
    silo_column: str | None = None
    target_column: Annotated[Any, AfterValidator(values.names)] = None
    drop: list[str] = []
    person_column: str | None = None
    rows_per_person: Annotated[int, Field(ge=1, le=10_000)] | None = None
    keep: list[str] = []
    missing: values.Missing = "refuse"
    medians: values.Medians = {}
    categories: values.Categories = {}
    unknown: Literal["other", "refuse"] = "other"
    dates: values.Dates = {}
    standardize: Annotated[Any, AfterValidator(values.scales)] = {}


class Model(BaseModel):
    """The model; all other keys are settings of its factory."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = "linear"
    loss: Annotated[str, AfterValidator(values.loss)] = "auto"
    class_weights: Annotated[Any, AfterValidator(values.weights)] = None
    huber_delta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    start: str | None = None
    lora: Annotated[int, Field(ge=1)] | None = None


class Train(Section):
    """How long and how fast silos train."""

    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    epochs: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    batch: Annotated[int, Field(ge=1)] = 32
    sampling: Literal["poisson", "passes"] = "poisson"
    lr: values.Rate = "auto"
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[Any, BeforeValidator(values.seeds)] = [0]
    participation: Annotated[Any, AfterValidator(values.participation)] = None
    drop: values.Chance = 0.0
    recover: Annotated[float, Field(ge=0, le=1)] | None = None
    uneven: Annotated[float, Field(ge=0, le=1)] = 0.0
    memory: Annotated[Any, BeforeValidator(values.bytes_of)] = 2**30
    only: Annotated[list[str], Field(min_length=1)] | None = None
    device: str = "cpu"
    checkpoint: Annotated[int, Field(ge=1)] | None = None


class PrivacyTable(Section):
    """What each silo may spend."""

    unit: UnitName = "example"
    noise_by: Literal["server", "silos", "secure"] = "server"
    dropouts: Annotated[int, Field(ge=0)] = 0
    colluding: Annotated[int, Field(ge=0)] = 1
    epsilon: values.Epsilon = None
    noise: values.Positive = None
    sensitivity: Literal["certified", "paper"] = "certified"
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    delta: values.Delta = 1e-5
    clip: values.Positive = 1.0
    budget_seed: Annotated[int, Field(ge=0)] = 0
    ledger: str | None = None
    keys: str | None = None
    witness: str | None = None


class Tuning(Section):
    """How many settings `coterie sweep` tries, and by which score it chooses."""

    trials: Literal["geometric", "poisson", "negative-binomial", "all"] = "geometric"
    mean: Annotated[float, Field(ge=1)] | None = None
    shape: Annotated[float, Field(gt=-1)] | None = None
    most: Annotated[int, Field(ge=1)] | None = None
    score: Literal["noised", "public"] = "noised"
    metric: str | None = None


class Report(Section):
    """Which measures a result has."""

    metrics: Annotated[list[str], Field(min_length=1), AfterValidator(values.metrics)]


class Scores(Section):
    """What a deployed training may spend to tell the coordinator how well each silo's model does at home."""

    epsilon: Annotated[float, Field(gt=0, le=1000)]
    release: Literal["score", "histogram"] = "score"
    edges: list[float] | None = None


TABLES: dict[str, type[Section]] = {
    "data": Data,
    "train": Train,
    "privacy": PrivacyTable,
    "tuning": Tuning,
    "scores": Scores,
    "report": Report,
}


class Config(Section):
    """A whole configuration file, and which modules its names may stand for."""

    _allowed: Allowed = PrivateAttr(default=Allowed())

    data: Data = Data()
    model: Model = Model()
    train: Train = Train(epochs=1.0)
    privacy: PrivacyTable
    tuning: Tuning | None = None
    scores: Scores | None = None
    report: Report | None = None
    method: list[dict[str, Any]]

    @property
    def allowed(self) -> Allowed:
        """Which modules may be imported for a model that the configuration names."""
        return self._allowed

    def to_toml(self) -> str:
        """Return the configuration as TOML, with every default filled in."""
        import tomli_w

        return tomli_w.dumps(self.model_dump(exclude_none=True))


def read(path: str | Path, changes: Sequence[str] = (), allow: Sequence[str] = ()) -> Config:
    """Return the checked configuration in a file, after `key=value` changes.

    A model of one's own is imported only if its module lies beside the file, or is one that `allow` names.
    """
    path = Path(path)
    allowed = allowing(path.parent, allow)
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise Problem(f"the config file '{path}' does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"cannot read the config file '{path}': {reason(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise Problem(f"'{path}' is not valid TOML: {error}") from error
    place_ledger(content, path.parent)
    for change in changes:
        apply_change(content, change)
    place_ledger(content, Path())
    find_beside(content, path.parent)
    read_budget_files(content, path.parent)
    return check(content, str(path), allowed)


def check(content: dict[str, Any], where: str = "config", allowed: Allowed | None = None) -> Config:
    """Return a checked configuration; raise one `Problem` that lists everything wrong with it.

    Without `allowed`, no model of one's own is imported.
    """
    problems: list[str] = []
    config = None
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        problems += [line for e in error.errors() for line in sentence(dict(e)).split("\n")]
    methods = content.get("method")
    if isinstance(methods, list):
        problems += [p for k, table in enumerate(methods) for p in method_problems(k, table)]
        if not methods:
            problems.append("method: expected at least one [[method]] table, got none")
    problems += _model_problems(content.get("model"))
    train = content.get("train", {})
    if isinstance(train, dict) and "steps" in train and "epochs" in train:
        problems.append("train: expected either epochs or steps, not both")
    privacy = content.get("privacy")
    if isinstance(privacy, dict):
        problems += _privacy_problems(privacy)
    if problems or config is None:
        lines = "".join(f"\n  {p}" for p in dict.fromkeys(problems))
        raise Problem(f"{where} has {len(dict.fromkeys(problems))} problem(s):{lines}")
    config._allowed = allowed or Allowed()
    return config


def _model_problems(table: Any) -> list[str]:
    """Return what is wrong with the settings of a built-in model; other models are checked when built."""
    name = table.get("name", "linear") if isinstance(table, dict) else ""
    if not isinstance(name, str) or not name or ":" in name:
        return []
    try:
        find_factory(name)
    except Problem as problem:
        return [str(problem)]
    return setting_problems(name, MODELS[name], [key for key in table if key not in Model.model_fields])


def _privacy_problems(table: dict[str, Any]) -> list[str]:
    """Return what is wrong with the settings of the noise."""
    problems = []
    if "epsilon" not in table and "noise" not in table:
        problems.append("privacy.epsilon: required (or, with unit = 'silo', noise)")
    if "epsilon" in table and "noise" in table:
        problems.append("privacy: expected either epsilon or noise, not both")
    if "noise" in table and table.get("unit") != "silo":
        problems.append("privacy.noise: allowed only with unit = 'silo'; otherwise give epsilon")
    if table.get("sensitivity") == "paper" and not ("noise" in table and table.get("noise_by") == "silos"):
        problems.append("privacy.sensitivity: 'paper' requires privacy.noise and noise_by = 'silos'")
    where = table.get("noise_by", "server")
    if "quantile" in table and (table.get("unit") != "silo" or where != "server"):
        problems.append("privacy.quantile: requires unit = 'silo' and noise_by = 'server'")
    if table.get("unit", "example") != "silo" and where != "server":
        problems.append("privacy.noise_by: allowed only with unit = 'silo'")
    for key, default in (("dropouts", 0), ("colluding", 1)):
        if table.get(key, default) != default and where != "secure":
            problems.append(f"privacy.{key}: allowed only with noise_by = 'secure'")
    return problems


PLAINLY = {
    "greater than or equal to": "a number >=",
    "less than or equal to": "a number <=",
    "greater than": "a number >",
    "less than": "a number <",
    "a valid integer": "a whole number",
    "a valid ": "a ",
}


def sentence(error: Mapping[str, Any]) -> str:
    """Return one pydantic error as a sentence: key, what was expected, what was given."""
    parts = [str(p) for p in error["loc"]]
    key = ".".join(parts)
    kind, message, given = error["type"], str(error["msg"]), error.get("input")
    if kind == "extra_forbidden":
        table: type[BaseModel] = TABLES.get(parts[0], Config) if len(parts) > 1 else Config
        if key == "privacy.adjacency":
            return f"{key}: {ONE_ADJACENCY}"
        return f"{key}: unknown key; {nearest(parts[-1], table.model_fields)}"
    if kind == "missing":
        return f"{key}: required"
    if kind == values.WHOLE:
        return message
    if kind == "coterie":
        return f"{key}: {message}"
    expected = message.removeprefix("Input should be ")
    for words, plain in PLAINLY.items():
        expected = expected.replace(words, plain)
    return f"{key}: expected {expected}, got {given!r}"
