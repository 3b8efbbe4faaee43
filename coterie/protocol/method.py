"""The protocol of a method: six short functions over vectors.

Vectors of all runs and silos are one tensor `[runs, silos, P]`; what is shared by all
silos is `[runs, 1, P]`. State and messages may be trees (tuples, dicts) of such tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from ..errors import Problem
from .merging import Merger
from .roster import Roster
from .settings import check_setting, settings_of
from .tree import Tree

if TYPE_CHECKING:
    from .oracle import Oracle


class HandOver(NamedTuple):
    """Where the next method begins: vectors `[runs, 1 or silos, P]`, and who learns with whom, if not all."""

    vectors: Tensor
    groups: Tensor | None = None


class LearnedRelations(NamedTuple):
    """How a method relates silos: Omega `[runs, silos, silos]`, and of a dual method also the strength lam
    `[runs, 1, 1]` of the relations. Both follow from what is shared, so they are released.
    """

    omega: Tensor
    lam: Tensor | None = None


class Start(Protocol):
    """Where a training starts from: initial vectors, and facts that are public."""

    @property
    def roster(self) -> Roster:
        """The silos of the training."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds there will be."""
        ...

    @property
    def layers(self) -> tuple[int, ...]:
        """The sizes of the parameters."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        ...

    def initial(self, index: int = 0, apart: bool = False) -> Tensor:
        """Give the initial vector of every run: `[runs, 1, P]`; another index, another vector.

        If `apart`, also where models start at zero: from small random numbers then.
        """
        ...

    def duals(self, silos: int) -> Tensor:
        """Give a dual of zero for each example and output, for `Oracle.solve_dual` to move."""
        ...


class Method(ABC):
    """A way for silos to learn together.

    A method is a frozen record of its settings; its functions are pure. It reaches
    examples through the oracle only, and works on all its silos at once without mixing
    them: in a deployment its `local` runs at home, for one silo.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    linear: ClassVar[bool] = False  # whether it needs a linear model with a convex loss

    @property
    def title(self) -> str:
        """The name in tables."""
        return self.name

    def hand_over(self, shared: Tree) -> HandOver:
        """Give where a method that comes after this one begins (see `Then`)."""
        raise Problem(f"'{self.name}' cannot come before another method: use fedavg, fedprox, mr-mtl or ifca")

    def learned_relations(self, shared: Tree) -> LearnedRelations | None:
        """Give how silos are related, where that is learned."""
        return None

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Say what a person should know, from public facts: who takes part when, `[rounds, runs, silos]`."""
        return []

    def __post_init__(self) -> None:
        problems = []
        for name, field in settings_of(self).items():
            value = getattr(self, name)
            if field.metadata.get("fixed") and isinstance(value, list | tuple):
                raise Problem(f"{name} must be one value, got {value!r}: make a method for each")
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, name, value)
            values: Sequence[Any] = value if isinstance(value, tuple) else (value,)
            if field.metadata.get("whole") and isinstance(value, float) and value.is_integer():
                object.__setattr__(self, name, int(value))
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
    def merge(self, shared: Tree, uploads: Tree, merger: Merger) -> Tree:
        """Return the server's new state."""

    @abstractmethod
    def personal(self, sent: Tree, own: Tree) -> Tensor:
        """Give the vectors that silos predict with."""
