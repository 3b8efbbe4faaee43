"""The protocol of a method: six short functions over vectors.

Vectors of all runs and silos are one tensor `[runs, silos, P]`; what is shared by all
silos is `[runs, 1, P]`. State and messages may be trees (tuples, dicts) of such tensors.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from .errors import Problem
from .roster import Roster
from .tree import Tree

if TYPE_CHECKING:
    from .oracle import Oracle

PerRun = float | tuple[float, ...]
M = TypeVar("M", bound="Method")


class Start(Protocol):
    """Where models start from."""

    def initial(self, index: int = 0) -> Tensor:
        """Give the initial vector of every run: `[runs, 1, P]`; another index, another vector."""
        ...


class Method(ABC):
    """A way for silos to learn together.

    A method is a frozen record of its settings; its functions are pure. It reaches
    examples through the oracle only, and works on all its silos at once without mixing
    them: in a deployment its `local` runs at home, for one silo.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        problems = []
        for name, field in settings_of(self).items():
            value = getattr(self, name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, name, value)
            values: Sequence[Any] = value if isinstance(value, tuple) else (value,)
            problems += [p for v in values if (p := check_setting(name, v, field))]
            if not values:
                problems.append(f"{name} must be a number or a list of them, got an empty list")
        if problems:
            raise Problem("; ".join(problems))

    @abstractmethod
    def init(self, task: Start, silos: int) -> tuple[Tree, Tree]:
        """Give the server's state, and the silos' own `[runs, silos, ...]`."""

    @abstractmethod
    def broadcast(self, shared: Tree) -> Tree:
        """Give what the server sends to the silos."""

    @abstractmethod
    def local(self, sent: Tree, own: Tree, oracle: Oracle) -> tuple[Tree, Tree]:
        """Do a silo's work; give its upload `[runs, silos, ...]` and its new own state."""

    @abstractmethod
    def merge(self, shared: Tree, uploads: Tree, roster: Roster) -> Tree:
        """Give the server's new state."""

    @abstractmethod
    def personal(self, sent: Tree, own: Tree) -> Tensor:
        """Give the vectors that silos predict with."""


def setting(default: Any = dataclasses.MISSING, *, minimum: float = -math.inf, help: str = "") -> Any:
    """Declare a number among a method's settings."""
    return dataclasses.field(default=default, metadata={"minimum": minimum, "help": help})


def per_run(values: PerRun | Tensor) -> Tensor:
    """Give a setting as a tensor that multiplies vectors: `[runs, 1, 1]`."""
    if isinstance(values, Tensor) and values.dim() == 3:
        return values
    return torch.as_tensor(values, dtype=torch.float32).reshape(-1, 1, 1)


def settings_of(method: Method | type[Method]) -> dict[str, dataclasses.Field[Any]]:
    """Give the settings a method has."""
    return {f.name: f for f in dataclasses.fields(method)}  # type: ignore[arg-type]


def check_setting(name: str, value: Any, field: dataclasses.Field[Any]) -> str | None:
    """Say what is wrong with a setting, if anything is."""
    minimum = field.metadata.get("minimum", -math.inf)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if number and value >= minimum:
        return None
    wanted = "a number" if minimum == -math.inf else f"a number >= {minimum:g}"
    return f"{name} must be {wanted}, got {value!r}"


def for_runs(method: M, chosen: dict[str, tuple[float, ...]]) -> M:
    """Give the method with one value a run for some of its settings."""
    return dataclasses.replace(method, **chosen)  # type: ignore[type-var]


def for_run(method: M, run: int) -> M:
    """Give the method of one run alone."""
    single = {
        name: value[run] for name in settings_of(method) if isinstance(value := getattr(method, name), tuple)
    }
    return dataclasses.replace(method, **single)  # type: ignore[type-var]
