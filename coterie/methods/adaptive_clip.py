"""A clip that tracks a private quantile of upload lengths (Andrew, Thakkar, McMahan, Ramaswamy 2021).

Every merge releases one more number: how many uploads were within the clip. The merge and the count split one
noise multiplier, so together they cost what the merge alone is charged: the count takes the share `BITS` of
one over its square. Each silo counts as plus or minus one half, so removing a silo moves the count by one
half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..protocol.merging import Merger
from ..protocol.method import FederationFacts, HandOver, Method, Start, TaskFacts
from ..protocol.roster import Roster
from ..protocol.tree import Tree, record

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@record
class Server(NamedTuple):
    """The clip `[runs, 1, 1]`, and the wrapped method's state."""

    clip: Tensor
    rest: Tree


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip(Method):
    """Wraps a method and clips its uploads at a length that the server keeps in its state."""

    name: ClassVar[str] = "adaptive-clip"
    method: Method = field(metadata={"method": True, "wrapped": True})
    first: tuple[float, ...] = field(metadata={"method": True, "each_run": True})

    def check(self, task: TaskFacts, federation: FederationFacts) -> None:
        """Raise a Problem if the wrapped method does."""
        self.method.check(task, federation)

    def init(self, task: Start, silos: int) -> tuple[Server, Tree]:
        """Start the wrapped method, with the clip at its configured value."""
        shared, own = self.method.init(task, silos)
        runs = len(task.initial())
        clip = torch.tensor(self.first, dtype=torch.float32).reshape(-1, 1, 1)
        return Server(clip.expand(runs, 1, 1), shared), own

    def broadcast(self, shared: Server) -> Tree:
        """Send what the wrapped method sends."""
        return self.method.broadcast(shared.rest)

    def local(self, sent: Tree, own: Tree, oracle: Oracle) -> tuple[Tree, Tree]:
        """Do the wrapped method's local work."""
        return self.method.local(sent, own, oracle)

    def merge(self, shared: Server, uploads: Tree, merger: Merger) -> Server:
        """Merge with the current clip, then update the clip."""
        within = merger.clipping(shared.clip)
        merged = self.method.merge(shared.rest, uploads, within)
        return Server(within.next_clip(shared.clip), merged)

    def personal(self, sent: Tree, own: Tree) -> Tensor:
        """Predict as the wrapped method does."""
        return self.method.personal(sent, own)

    def hand_over(self, shared: Server) -> HandOver:
        """Return what the wrapped method hands over."""
        return self.method.hand_over(shared.rest)

    def learned_silos(self, shared: Server) -> Mapping[str, Tensor]:
        """Return what the wrapped method knows about each silo."""
        return self.method.learned_silos(shared.rest)

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Return the wrapped method's remarks."""
        return self.method.remarks(roster, present)
