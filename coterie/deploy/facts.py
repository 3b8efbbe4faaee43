"""What a silo says about itself in public: its name, its sizes, the form of its examples, and its key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..data.federation import Federation, Silo
from ..errors import Problem, reason
from ..experiment.config.schema import sentence
from ..privacy.keys import PublicKey
from .guard_folder import GuardFolder, examples_form
from .plan_file import PersonCounts, blank_silo


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

    @property
    def public(self) -> PublicKey:
        """The silo's key."""
        return PublicKey.from_facts(self.key, f"the facts of '{self.name}'")


def facts_of(folder: GuardFolder) -> SiloFacts:
    """Return what a guard's owner may tell everybody."""
    form = examples_form(folder)
    return SiloFacts(name=folder.silo, key=folder.key().public.facts(), **form)


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

    Labels that only some silos have are classes for all of them.
    """
    first, problems = facts[0], []
    for other in facts[1:]:
        for what in ("shape", "bytes", "scale"):
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
    return Federation(name, tuple(silos), tuple(classes), first.scale)


def _natural(label: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by value, before words."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
