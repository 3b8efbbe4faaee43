"""The protocol of a method: short, pure functions over vectors.

Vectors of all runs and silos are one tensor `[runs, silos, P]`; what all silos share is `[runs, 1, P]`. State
and messages may be trees of such tensors (see `tree`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from ..errors import PlainlyMade, Problem
from .merging import Merger
from .roster import Roster
from .settings import check_setting, settings_of
from .tree import Tree

if TYPE_CHECKING:
    from .oracle import Oracle


class HandOver(NamedTuple):
    """Where the next method starts: vectors `[runs, 1 or silos, P]`, and the groups that learn together."""

    vectors: Tensor
    groups: Tensor | None = None


class LearnedRelations(NamedTuple):
    """How a method relates silos: Omega `[runs, silos, silos]` and, for a dual method, the strength lam
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
        """Return the initial vector of every run, `[runs, 1, P]`; each index has its own vector.

        With `apart`, no vector is zero: models that start at zero start from small random numbers instead.
        """
        ...

    def duals(self, silos: int) -> Tensor:
        """Return a dual of zero for each example and output, for `Oracle.solve_dual` to move."""
        ...


class TaskFacts(Protocol):
    """What a method may ask about the task before a training."""

    @property
    def classes(self) -> int:
        """The number of classes; 0 for a numeric target."""
        ...

    def check_linear(self) -> None:
        """Raise a Problem unless the model is linear and its loss has a dual."""
        ...


class FederationFacts(Protocol):
    """What a method may ask about the silos before a training."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the silos."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """The declared numbers of training examples."""
        ...

    def check_norms(self) -> None:
        """Raise a Problem if an example is longer than 1, unless no silo has a budget."""
        ...


class Method(metaclass=PlainlyMade):
    """A way for silos to learn together.

    A method is a frozen record of its settings; its functions are pure. It reaches examples through the
    oracle only, and works on all its silos at once without mixing them: in a deployment its `local` runs at
    home, for one silo. A class of methods is abstract or final: wrap a method, or share a function or an
    abstract base with it, but do not inherit from it.

    Only `local` and `personal` must be written. By default every silo has a model, the server has one too,
    sends it, and moves it by the mean of the uploads.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    linear: ClassVar[bool] = False  # whether it moves dual coordinates, which need a linear model
    plain_steps: ClassVar[bool] = False  # whether it relies on steps of plain SGD with one learning rate

    def __init__(self, *_: object, **__: object) -> None:
        """Refuse a class that is no dataclass; those have a constructor of their own."""
        kind = type(self).__name__
        raise Problem(f"{kind} is not a dataclass: write @dataclass(frozen=True, kw_only=True) above it")

    def __post_init__(self) -> None:
        problems = []
        for name, field in settings_of(self).items():
            value = getattr(self, name)
            if field.metadata.get("fixed") and isinstance(value, list | tuple):
                raise Problem(f"{name} must be a single value, got {value!r}; make one method per value")
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

    def init(self, task: Start, silos: int) -> tuple[Tree, Tree]:
        """Return the server's state and the silos' own, `[runs, silos, ...]`."""
        start = task.initial()
        return start, start.expand(-1, silos, -1)

    def broadcast(self, shared: Tree) -> Tree:
        """Return what the server sends to the silos."""
        return shared

    @abstractmethod
    def local(self, sent: Tree, own: Tree, oracle: Oracle) -> tuple[Tree, Tree]:
        """Do a silo's work; return its upload `[runs, silos, ...]` and its new own state."""

    def merge(self, shared: Tree, uploads: Tree, merger: Merger) -> Tree:
        """Return the server's new state; by default it stays the same if silos upload nothing (None)."""
        if uploads is None:
            return shared
        plain = isinstance(uploads, Tensor) and isinstance(shared, Tensor)
        if plain and uploads.shape[2:] != shared.shape[2:]:
            raise Problem(
                f"'{self.name}': merge adds the mean of the uploads to the shared model unless you write your"
                f" own, so an upload must be [runs, silos, {shared.shape[-1]}], got {list(uploads.shape)}"
            )
        return shared + merger.mean(uploads)

    @abstractmethod
    def personal(self, sent: Tree, own: Tree) -> Tensor:
        """Return the vectors that silos predict with."""

    @property
    def title(self) -> str:
        """The method's name in tables."""
        return self.name

    def check(self, task: TaskFacts, federation: FederationFacts) -> None:
        """Raise a Problem if the method cannot learn this task from these silos."""

    def hand_over(self, shared: Tree) -> HandOver:
        """Return where a method that comes after this one starts (see `Then`)."""
        raise Problem(f"'{self.name}' cannot come before another method; use fedavg, fedprox, mr-mtl or ifca")

    def learned_relations(self, shared: Tree) -> LearnedRelations | None:
        """Return how silos are related, for methods that learn it."""
        return None

    def learned_silos(self, shared: Tree) -> Mapping[str, Tensor]:
        """Return what the server knows about each silo, such as its cluster, as numbers `[runs, silos]`.

        It follows from the server's state, so from what silos have released.
        """
        return {}

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Return notes for the user, from public facts; `present` is `[rounds, runs, silos]`."""
        return []


def wrapped_by(method: Method) -> list[Method]:
    """Return the methods that a method runs, and those that they run in turn."""
    parts = [getattr(method, each.name) for each in fields(method)]  # type: ignore[arg-type]
    inner = [part for part in parts if isinstance(part, Method)]
    return [each for part in inner for each in (part, *wrapped_by(part))]
