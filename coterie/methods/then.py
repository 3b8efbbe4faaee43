"""One method after another: fine-tuning, and clusters as a warm start."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.method import FederationFacts, Method, Start, TaskFacts
from ..protocol.roster import Roster
from ..protocol.settings import described, setting, settings_of
from ..protocol.tree import Tree, leaves, record
from .fedavg import FedAvg
from .local import Local

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@record
class First(NamedTuple):
    """What the server keeps or sends while the first method runs."""

    part: Tree


@record
class Second(NamedTuple):
    """What the server keeps or sends while the second method runs.

    `ended` is set only in the first of these rounds: it is what the first method would send now, and shows
    where that method ended. The server also keeps the `groups` of silos that learn together.
    """

    part: Tree
    ended: Tree = None
    groups: Tensor | None = None


@record
class Own(NamedTuple):
    """A silo's own state for both methods; while the first one runs, the second state follows it."""

    first: Tree
    second: Tree


@dataclass(frozen=True, kw_only=True)
class Chain(Method):
    """Abstract: run `first` for a share of the rounds, then `second` from where each silo stands.

    After clustering (IFCA), the second method learns within clusters: each cluster has its own mean. A silo
    that is absent when the methods change resumes from what the server sent it last. The second method's
    roster counts rounds from the change.
    """

    first: Method = field(metadata={"method": True})
    second: Method = field(metadata={"method": True})
    share: float = setting(0.5, above=0, maximum=1, fixed=True, help="share of rounds for the first method")

    def __post_init__(self) -> None:
        """Check that both methods can be chained and have a single value for each setting."""
        super().__post_init__()
        for part, where in ((self.first, "before"), (self.second, "after")):
            if part.linear:
                raise Problem(
                    f"'{part.name}' cannot come {where} another method, because it keeps its own duals"
                )
            listed = [name for name in settings_of(part) if isinstance(getattr(part, name), tuple)]
            if listed:
                raise Problem(
                    f"{listed[0]} of '{part.name}' must be a single value in a chain; make one chain per"
                    " value"
                )

    @property
    @abstractmethod
    def title(self) -> str:
        """The method's name in tables."""

    def check(self, task: TaskFacts, federation: FederationFacts) -> None:
        """Raise a Problem if either method cannot learn the task."""
        self.first.check(task, federation)
        self.second.check(task, federation)

    def init(self, task: Start, silos: int) -> tuple[First, Own]:
        """Start both methods; the second one waits."""
        shared, own = self.first.init(task, silos)
        _, later = self.second.init(task, silos)
        if self.share < 1 and self._change(task.rounds) == task.rounds > 0 and not isinstance(task, StartAt):
            raise Problem(
                f"share: {self.share:g} of {task.rounds} round(s) leaves none for '{self.second.name}';"
                " lower the share, or train for more rounds"
            )
        return First(shared), Own(own, later)

    def broadcast(self, shared: First | Second) -> First | Second:
        """Send what the current method sends; at the change, also send where the first one ended."""
        if isinstance(shared, First):
            return First(self.first.broadcast(shared.part))
        return Second(self.second.broadcast(shared.part), shared.ended)

    def local(self, sent: First | Second, own: Own, oracle: Oracle) -> tuple[Tree, Own]:
        """Do the current method's local work; while the first one runs, the second state follows it."""
        if isinstance(sent, First):
            upload, kept = self.first.local(sent.part, own.first, oracle)
            return upload, Own(kept, self._begin(sent.part, kept, count_silos(own)))
        upload, later = self.second.local(sent.part, self._later(sent, own), oracle)
        return upload, Own(own.first, later)

    def merge(self, shared: First | Second, uploads: Tree, merger: Merger) -> First | Second:
        """Merge as the current method does, and change methods after the first one's last round."""
        roster = merger.roster
        change = self._change(roster.rounds)
        if isinstance(shared, Second):
            merged = self.second.merge(shared.part, uploads, merger.within(shared.groups).after(change))
            return Second(merged, groups=shared.groups)
        merged = self.first.merge(shared.part, uploads, merger)
        if roster.round + 1 < change:
            return First(merged)
        ended = self.first.hand_over(merged)
        left = roster.rounds - change
        start = StartAt(ended.vectors, replace(roster, round=0, rounds=left), left)
        begun, _ = self.second.init(start, len(roster))
        return Second(begun, self.first.broadcast(merged), ended.groups)

    def personal(self, sent: First | Second, own: Own) -> Tensor:
        """Predict as the current method does."""
        if isinstance(sent, First):
            return self.first.personal(sent.part, own.first)
        return self.second.personal(sent.part, self._later(sent, own))

    def learned_silos(self, shared: First | Second) -> dict[str, Tensor]:
        """Return what the current method knows about each silo, and the clusters within which it learns."""
        if isinstance(shared, First):
            return dict(self.first.learned_silos(shared.part))
        within = {} if shared.groups is None else {"cluster": shared.groups + 1}
        return {**within, **self.second.learned_silos(shared.part)}

    def _change(self, rounds: int) -> int:
        """Return how many of the `rounds` belong to the first method."""
        return min(rounds, max(1, math.floor(self.share * rounds + 0.5)))

    def _later(self, sent: Second, own: Own) -> Tree:
        """Return a silo's state for the second method, which begins where the first one ended."""
        if sent.ended is None:
            return own.second
        return self._begin(sent.ended, own.first, count_silos(own))

    def _begin(self, sent: Tree, own: Tree, silos: int) -> Tree:
        vectors = self.first.personal(sent, own)
        return self.second.init(StartAt(vectors), max(silos, vectors.shape[1]))[1]


def count_silos(own: Own) -> int:
    """Return the number of silos in a state; an empty state counts as one silo."""
    tensors = leaves(own)
    return tensors[0].shape[1] if tensors else 1


@dataclass(frozen=True, kw_only=True)
class Then(Chain):
    """Runs `first` for a share of the rounds, then `second` from where each silo stands."""

    name: ClassVar[str] = "then"

    @property
    def title(self) -> str:
        """The names of both methods."""
        return f"{described(self.second)} after {described(self.first)}"


@dataclass(frozen=True, kw_only=True)
class FineTune(Chain):
    """Runs FedAvg for a share of the rounds, then every silo trains alone."""

    name: ClassVar[str] = "fine-tune"
    paper: ClassVar[str] = "Yu et al. 2020"
    first: Method = field(default_factory=FedAvg, metadata={"method": True})
    second: Method = field(default_factory=Local, metadata={"method": True})

    @property
    def title(self) -> str:
        """The method's name, without its parts."""
        return self.name


@dataclass(frozen=True, eq=False)
class StartAt:
    """A start from given vectors."""

    vectors: Tensor
    known: Roster | None = None
    rounds: int = 1

    def initial(self, index: int = 0, apart: bool = False) -> Tensor:
        """Return the vectors."""
        if index or apart:
            raise Problem("a method that starts from several models cannot come after another one")
        return self.vectors

    def duals(self, silos: int) -> Tensor:
        """Raise a Problem: there are no duals."""
        raise Problem("this method cannot come after another one, because it begins with its own duals")

    @property
    def roster(self) -> Roster:
        """The silos, if they are known."""
        if self.known is None:
            raise Problem(
                "this method cannot come after another one, because its work in a silo needs to know all"
                " silos"
            )
        return self.known

    @property
    def layers(self) -> tuple[int, ...]:
        """Raise a Problem: the layers are not known."""
        raise Problem("this method cannot come after another one, because it needs to know the layers")

    @property
    def names(self) -> tuple[str, ...]:
        """Raise a Problem: the layers are not known."""
        raise Problem("this method cannot come after another one, because it needs to know the layers")
