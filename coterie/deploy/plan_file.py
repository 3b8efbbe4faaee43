"""Plans as files: everything that a silo's owner approves, and that coordinator and guards train by.

A plan is one run: a method with its settings, a model, budgets, and the public facts about all silos. It
holds no example and no code. Its hash is what owners approve. Coordinator and guards make the same experiment
from it. Each guard plans anew, so the noise it adds and the budget it charges are its own, never what it was
told.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from .. import __version__
from ..data.federation import Federation, Silo
from ..data.persons import MOST_ROWS, PersonFacts
from ..errors import Problem, reason
from ..experiment.config.schema import Config, Scores, check, sentence
from ..experiment.experiment import Experiment, experiments
from ..experiment.from_config import make_methods, privacy_of, report_metrics, task_of, training_of
from ..planning.plan import Plan
from ..privacy.keys import PublicKey, parse_time
from ..protocol.envelope import canonical
from ..tasks.code import Allowed
from .histograms import check_histogram
from .plan_methods import check_contents
from .scores import scored_plan

FORMAT = "coterie-plan/1"
LARGEST = 2**22  # bytes of a plan


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PersonCounts(_Section):
    """What is public about a silo's persons (see `data.persons.PersonFacts`)."""

    train: Annotated[int, Field(ge=1, le=10**9)]
    test: Annotated[int, Field(ge=0, le=10**9)]
    largest: Annotated[int, Field(ge=1, le=10**9)]


class _SiloFacts(_Section):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    train: Annotated[int, Field(ge=1, le=10**9)]
    test: Annotated[int, Field(ge=0, le=10**9)]
    key: dict[str, Any]
    persons: PersonCounts | None = None


class _Facts(_Section):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    shape: Annotated[list[Annotated[int, Field(ge=1, le=10**6)]], Field(max_length=4)]
    classes: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=10**5)]
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    bytes: bool
    not_covered: Annotated[list[Annotated[str, Field(max_length=500)]], Field(max_length=50)]
    silos: Annotated[list[_SiloFacts], Field(min_length=1, max_length=10**4)]


class _Limits(_Section):
    bytes: Annotated[int, Field(ge=2**10, le=2**40)]
    seconds: Annotated[float, Field(gt=0, le=10**6)]


class _Content(_Section):
    format: Literal["coterie-plan/1"]
    training: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    made: Annotated[str, Field(max_length=40)]
    software: Annotated[str, Field(max_length=40)]
    coordinator: dict[str, Any]
    config: dict[str, Any]
    facts: _Facts
    fewest: Annotated[int, Field(ge=1)]
    limits: _Limits


def check_metrics(config: Config) -> None:
    """Raise `Problem` for a metric of one's own: a plan names code only for models and losses."""
    own = [name for name in (config.report.metrics if config.report else ()) if ":" in name]
    if own:
        raise Problem(f"report.metrics: '{own[0]}' cannot be part of a plan: name built-in metrics only")


@dataclass(frozen=True, eq=False)
class PlanFile:
    """A plan as it is written, signed for nobody: whoever approves it approves its hash."""

    content: dict[str, Any]

    def __repr__(self) -> str:
        return f"PlanFile({self.training}: {len(self.names)} silos, hash {self.hash[:16]})"

    @cached_property
    def text(self) -> str:
        """The plan as canonical JSON."""
        return canonical(self.content)

    @cached_property
    def hash(self) -> str:
        """The hash that owners approve."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def training(self) -> str:
        """The id of the training, which no other plan has."""
        return str(self.content["training"])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all silos."""
        return tuple(silo["name"] for silo in self.content["facts"]["silos"])

    @property
    def tests(self) -> list[int]:
        """The number of test examples of every silo."""
        return [int(silo["test"]) for silo in self.content["facts"]["silos"]]

    @property
    def scores(self) -> Scores | None:
        """What noised scores may cost; None if the plan asks for none."""
        table = self.content["config"].get("scores")
        return None if table is None else Scores.model_validate(table)

    @property
    def fewest(self) -> int:
        """How many silos must answer a round."""
        return int(self.content["fewest"])

    @property
    def most_bytes(self) -> int:
        """The size that no message may exceed."""
        return int(self.content["limits"]["bytes"])

    @property
    def seconds(self) -> float:
        """How long an answer may take."""
        return float(self.content["limits"]["seconds"])

    @cached_property
    def coordinator(self) -> PublicKey:
        """The key that the coordinator signs its messages with."""
        return PublicKey.from_facts(self.content["coordinator"], "plan: coordinator")

    @cached_property
    def keys(self) -> dict[str, PublicKey]:
        """The key that each silo signs its answers with."""
        silos = self.content["facts"]["silos"]
        return {silo["name"]: PublicKey.from_facts(silo["key"], f"plan: {silo['name']}") for silo in silos}

    def place(self, silo: str) -> int:
        """Return the index of a silo; raise `Problem` if the plan does not name it."""
        if silo not in self.names:
            raise Problem(f"the plan of training {self.training} does not name the silo '{silo}'")
        return self.names.index(silo)

    def config(self, allowed: Allowed | None = None) -> Config:
        """Return the checked configuration; models of one's own are imported only from `allowed` modules."""
        check_contents(self.content["config"].get("method"))
        config = check(self.content["config"], "the plan's configuration", allowed)
        if config.model.start is not None:
            raise Problem("the plan: model.start: guards open no file that a plan names")
        return config

    @property
    def model(self) -> str:
        """The name of the model, before anything is made of it."""
        return self._in_model("name", "linear")

    @property
    def loss(self) -> str:
        """The name of the loss, before anything is made of it."""
        return self._in_model("loss", "auto")

    def _in_model(self, key: str, default: str) -> str:
        table = self.content["config"].get("model", {})
        return str(table.get(key, default) if isinstance(table, dict) else table)

    def experiment(self, own: Silo | None = None, allowed: Allowed | None = None) -> Experiment:
        """Return the experiment of the plan, with the examples of one silo; the others are blank.

        Everything is checked with blank examples: what a guard refuses must not depend on its own.
        """
        config = self.config(allowed)
        check_metrics(config)
        federation = self.federation()
        task = task_of(config, federation)
        training = training_of(config.train, len(federation))
        metrics = report_metrics(config, task)
        privacy = privacy_of(config.privacy)
        found = experiments(federation, task, make_methods(config), privacy, training, metrics)
        if len(found) != 1 or len(found[0].keys) != 1:
            raise Problem("a plan is one run: one method, one value for every setting, and one seed")
        return found[0] if own is None else replace(found[0], federation=self.federation(own))

    @cached_property
    def blank(self) -> Experiment:
        """The experiment of the plan without any examples."""
        return self.experiment()

    def federation(self, own: Silo | None = None) -> Federation:
        """Return the federation of public facts, in which one silo may have its examples."""
        facts = self.content["facts"]
        blanks = [blank_silo(silo, facts) for silo in facts["silos"]]
        silos = [own if own is not None and own.name == blank.name else blank for blank in blanks]
        made = Federation(facts["name"], tuple(silos), tuple(facts["classes"]), float(facts["scale"]))
        most = self.content["config"].get("data", {}).get("rows_per_person") or MOST_ROWS
        return replace(made, not_covered=tuple(facts["not_covered"]), rows_per_person=most)

    def save(self, path: str | Path) -> None:
        """Write the plan."""
        try:
            Path(path).write_text(json.dumps(self.content, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            raise Problem(f"cannot write the plan '{path}': {reason(error)}") from error


def blank_silo(silo: dict[str, Any], facts: dict[str, Any]) -> Silo:
    """Return a silo of the right sizes whose examples are all zero, in the memory of one number."""

    def zeros(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros((), dtype=dtype).expand(count, *shape)

    x = torch.uint8 if facts["bytes"] else torch.float32
    y = torch.int64 if facts["classes"] else torch.float32
    shape = tuple(facts["shape"])
    train, test = ((zeros(n, shape, x), zeros(n, (), y)) for n in (silo["train"], silo["test"]))
    persons = silo.get("persons")
    about = None if persons is None else PersonFacts(**persons)
    return Silo(silo["name"], *train, *test, about=about)


def read_plan(source: str | Path | bytes | dict[str, Any]) -> PlanFile:
    """Return the plan in a file, in bytes or in plain data; raise `Problem` if it is none."""
    if isinstance(source, dict):
        content: Any = source
    else:
        try:
            data = source if isinstance(source, bytes) else Path(source).read_bytes()
        except OSError as error:
            raise Problem(f"cannot read the plan '{source!s}': {reason(error)}") from error
        if len(data) > LARGEST:
            raise Problem(f"the plan has {len(data):,} bytes; the limit is {LARGEST:,}")
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Problem("the plan is not JSON") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise Problem(
            f"the plan: expected the format {FORMAT}, got {str(found)[:40]!r}: make it anew with this version"
        )
    try:
        checked = _Content.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(sentence(dict(each)) for each in error.errors())
        raise Problem(f"the plan: {problems}") from error
    if checked.fewest > len(checked.facts.silos):
        raise Problem(f"fewest: expected at most {len(checked.facts.silos)} silos, got {checked.fewest}")
    if content["software"] != __version__:
        raise Problem(
            f"the plan was made by Coterie {content['software']}, and this is {__version__}: all parties need"
            " the same version"
        )
    parse_time(content["made"], "the plan: made")
    made = PlanFile(content)
    try:
        _check_letters(content)
        made.text  # noqa: B018 - it has one text, so it has a hash
    except Problem:
        raise
    except (ValueError, RecursionError) as error:
        raise Problem("the plan holds numbers that are not finite, or is too deep") from error
    return made


def _check_letters(value: Any) -> None:
    """Raise `Problem` for letters that a screen would not show: they could forge what an owner reads."""
    if isinstance(value, str) and not value.isprintable():
        raise Problem(f"the plan holds a text with letters that cannot be printed: {ascii(value)[:60]}")
    parts = (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        _check_letters(part)


def plan_of(experiment: Experiment, file: PlanFile) -> Plan:
    """Return what every silo will do and spend, scores included; refuse what cannot be deployed."""
    experiment.check_metered()
    plan = experiment.plan()
    secure = plan.merge is not None and plan.merge.where == "secure"
    if secure and experiment.training.dropping is not None:
        raise Problem(
            "train.drop, train.uneven: silos of a deployed secure sum drop out by themselves: say how many"
            " may with privacy.dropouts"
        )
    if file.scores is None:
        return plan
    check_histogram(file.scores, experiment.task)
    return scored_plan(plan, file.scores, file.tests)
