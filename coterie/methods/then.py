"""One method after another: fine-tuning, and clusters as a warm start."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.method import Method, Start
from ..protocol.roster import Roster
from ..protocol.settings import described, setting, settings_of
from ..protocol.tree import leaves
from .fedavg import FedAvg
from .local import Local

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

Parts = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Then(Method):
    """Runs `first` for a share of the rounds, then `second` from where each silo stands.

    After clusters (IFCA) the second method learns within them: each cluster has a mean of its own. A
    silo that is absent when the methods change goes on from what it was sent last.
    """

    name: ClassVar[str] = "then"
    first: Method = field(metadata={"method": True})
    second: Method = field(metadata={"method": True})
    share: float = setting(0.5, above=0, maximum=1, fixed=True, help="share of rounds of the first method")

    def __post_init__(self) -> None:
        """Check that both methods have one value for each setting."""
        super().__post_init__()
        for part, where in ((self.first, "before"), (self.second, "after")):
            if part.linear:
                raise Problem(f"'{part.name}' cannot come {where} another method: it keeps duals of its own")
            listed = [name for name in settings_of(part) if isinstance(getattr(part, name), tuple)]
            if listed:
                raise Problem(
                    f"{listed[0]} of '{part.name}' must be one value in a chain: make a chain for each"
                )

    @property
    def title(self) -> str:
        """Name both methods."""
        return f"{described(self.second)} after {described(self.first)}"

    def init(self, task: Start, silos: int) -> tuple[Parts, Parts]:
        """Start both; the second one waits."""
        shared, own = self.first.init(task, silos)
        _, later = self.second.init(task, silos)
        one = torch.ones_like(task.initial()[:, :1, :1])
        here = min(task.rounds, max(1, math.floor(self.share * task.rounds + 0.5)))
        if self.share < 1 and here == task.rounds > 0 and not isinstance(task, _At):
            raise Problem(
                f"share: {self.share:g} of {task.rounds} round(s) leaves none for '{self.second.name}':"
                " lower it, or train for more rounds"
            )
        clock = {"left": here * one, "after": (task.rounds - here) * one}
        return {"clock": clock, "first": shared}, {"first": own, "second": later}

    def broadcast(self, shared: Parts) -> Parts:
        """Send what the method of the round sends; at the change also where the first one ended."""
        if "first" in shared:
            return {"first": self.first.broadcast(shared["first"])}
        sent = {"second": self.second.broadcast(shared["second"])}
        return sent | ({"ended": shared["ended"]} if "ended" in shared else {})

    def local(self, sent: Parts, own: Parts, oracle: Oracle) -> tuple[Parts, Parts]:
        """Do the work of the method of the round; while the first one runs, the second follows it."""
        if "first" in sent:
            upload, kept = self.first.local(sent["first"], own["first"], oracle)
            return {"first": upload}, {
                "first": kept,
                "second": self._begin(sent["first"], kept, _count(own)),
            }
        upload, later = self.second.local(sent["second"], self._later(sent, own), oracle)
        return {"second": upload}, {"first": own["first"], "second": later}

    def merge(self, shared: Parts, uploads: Parts, merger: Merger) -> Parts:
        """Merge by the method of the round, and change over when its time has come."""
        if "second" in shared:
            within = merger.within(shared["groups"])
            merged = self.second.merge(shared["second"], uploads["second"], within)
            return {"second": merged, "groups": shared["groups"]}
        merged = self.first.merge(shared["first"], uploads["first"], merger)
        left, after = shared["clock"]["left"] - 1, shared["clock"]["after"]
        if float(left[0, 0, 0]) > 0:
            return {"clock": {"left": left, "after": after}, "first": merged}
        ended = self.first.hand_over(merged)
        start = _At(ended.vectors, merger.roster, int(after[0, 0, 0]))
        begun, _ = self.second.init(start, len(merger.roster))
        return {"second": begun, "groups": ended.groups, "ended": self.first.broadcast(merged)}

    def personal(self, sent: Parts, own: Parts) -> Tensor:
        """Predict as the method of the round does."""
        if "first" in sent:
            return self.first.personal(sent["first"], own["first"])
        return self.second.personal(sent["second"], self._later(sent, own))

    def _later(self, sent: Parts, own: Parts) -> Any:
        """Give a silo's state of the second method, which begins where the first one ended."""
        if "ended" not in sent:
            return own["second"]
        return self._begin(sent["ended"], own["first"], _count(own))

    def _begin(self, sent: Any, own: Any, silos: int) -> Any:
        vectors = self.first.personal(sent, own)
        return self.second.init(_At(vectors), max(silos, vectors.shape[1]))[1]


def _count(own: Any) -> int:
    """Count the silos of a state; one that keeps nothing needs no place."""
    found = leaves(own)
    return found[0].shape[1] if found else 1


@dataclass(frozen=True, kw_only=True)
class FineTune(Then):
    """FedAvg for a share of the rounds, then every silo alone."""

    name: ClassVar[str] = "fine-tune"
    paper: ClassVar[str] = "Yu et al. 2020"
    first: Method = field(default_factory=FedAvg, metadata={"method": True, "hidden": True})
    second: Method = field(default_factory=Local, metadata={"method": True, "hidden": True})

    @property
    def title(self) -> str:
        """Give the name alone."""
        return self.name


@dataclass(frozen=True, eq=False)
class _At:
    """A start from given vectors."""

    vectors: Tensor
    known: Roster | None = None
    rounds: int = 1

    def initial(self, index: int = 0, apart: bool = False) -> Tensor:
        """Give the vectors."""
        if index or apart:
            raise Problem("a method that starts from several models cannot come after another one")
        return self.vectors

    def duals(self, silos: int) -> Tensor:
        """Refuse."""
        raise Problem("this method cannot come after another one: it begins with duals of its own")

    @property
    def roster(self) -> Roster:
        """Give the silos, where they are known."""
        if self.known is None:
            raise Problem("this method cannot come after another one: at home it wants to know all silos")
        return self.known

    @property
    def layers(self) -> tuple[int, ...]:
        """Refuse."""
        raise Problem("this method cannot come after another one: it wants to know the layers")

    @property
    def names(self) -> tuple[str, ...]:
        """Refuse."""
        raise Problem("this method cannot come after another one: it wants to know the layers")
