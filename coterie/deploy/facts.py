"""What a silo says about itself in public: its name, its sizes, the form of its examples, and its key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..data.federation import Federation, Silo
from ..errors import Problem, reason
from ..experiment.config.schema import Data, sentence
from ..privacy.keys import PublicKey
from .guard_folder import GuardFolder, examples_form
from .plan_file import PersonCounts, blank_silo

# The keys of a [data] table that say how rows become examples; all others are about cutting data into silos.
CUT = {"source", "silos", "rows", "partition", "shards", "alpha", "rotations", "mask", "min_examples"}
PREPARED = {*Data.model_fields} - CUT - {"silo_column", "rows_per_person"}


class SiloFacts(BaseModel):
    """A silo's public facts, as its owner sends them to whoever proposes a plan."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    format: Literal["coterie-silo/1"] = "coterie-silo/1"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    train: Annotated[int, Field(ge=1, le=10**9)]
    test: Annotated[int, Field(ge=0, le=10**9)]
    shape: list[int]
    classes: list[str]
    bytes: bool
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    key: dict[str, Any]
    persons: PersonCounts | None = None
    columns: list[str] = []
    steps: dict[str, Any] = {}
    not_covered: list[str] = []

    @property
    def public(self) -> PublicKey:
        """The silo's key."""
        return PublicKey.from_facts(self.key, f"the facts of '{self.name}'")


def facts_of(folder: GuardFolder) -> SiloFacts:
    """Return what a guard's owner may tell everybody."""
    form = examples_form(folder)
    return SiloFacts(name=folder.silo, key=folder.key().public.facts(), **form)


def read_preparation(path: str | Path) -> dict[str, Any]:
    """Return the options of `coterie.load` in the [data] table of a file: how a silo's rows are prepared."""
    try:
        content = tomllib.loads(Path(path).read_text())
        table = Data.model_validate(content.get("data", {}))
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"cannot read '{path}': {reason(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise Problem(f"'{path}' is not valid TOML: {error}") from error
    except ValidationError as error:
        wrong = [sentence({**each, "loc": ("data", *each["loc"])}) for each in error.errors()]
        raise Problem(f"'{path}': {'; '.join('; '.join(wrong).splitlines())}") from error
    problems = [f"[{name}]: only the table [data] is read here" for name in content if name != "data"]
    problems += [
        f"data.{key}: a guard has one silo, so leave it out"
        for key in sorted(table.model_fields_set - PREPARED)
    ]
    if problems:
        raise Problem(f"'{path}': {'; '.join(problems)}")
    return table.model_dump(include=PREPARED & table.model_fields_set)


def read_facts(path: str | Path) -> SiloFacts:
    """Read a silo's facts from a file."""
    try:
        return SiloFacts.model_validate(json.loads(Path(path).read_text()))
    except OSError as error:
        raise Problem(f"cannot read the facts '{path}': {reason(error)}") from error
    except ValidationError as error:
        problems = "; ".join(sentence(dict(each)) for each in error.errors())
        raise Problem(f"'{path}' holds no facts of a silo: {problems}") from error
    except ValueError as error:
        raise Problem(f"'{path}' is not JSON") from error


def federation_of(facts: Sequence[SiloFacts], name: str) -> Federation:
    """Return the federation of silos that were described by their facts; it has no examples.

    Labels that only some silos have are classes for all of them. Their features must be the same columns, in
    the same order, prepared in the same way.
    """
    first, problems = facts[0], []
    for other in facts[1:]:
        for what in ("columns", "steps", "shape", "bytes", "scale"):
            both = getattr(first, what), getattr(other, what)
            if both[0] != both[1]:
                problems.append(f"{what}: '{first.name}' has {both[0]}, '{other.name}' {both[1]}")
        if bool(other.classes) != bool(first.classes):
            problems.append(f"targets: '{first.name}' and '{other.name}' do not both have labels")
    if problems:
        raise Problem(f"the silos' examples do not fit together: {'; '.join(problems)}")
    classes = sorted({label for each in facts for label in each.classes}, key=_natural)
    form = {"shape": first.shape, "classes": classes, "bytes": first.bytes}
    silos: list[Silo] = [
        blank_silo(each.model_dump(include={"name", "train", "test", "persons"}), form) for each in facts
    ]
    not_covered = tuple(dict.fromkeys(line for each in facts for line in each.not_covered))
    return Federation(name, tuple(silos), tuple(classes), first.scale, not_covered)


def _natural(label: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by value, before words."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
