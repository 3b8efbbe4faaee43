"""A clip that follows the uploads' lengths, by a private quantile (Andrew, Thakkar, McMahan, Ramaswamy 2021).

With every merge goes one more number: how many uploads were within the clip. It shares the merge's noise
multiplier, so that both together cost what the merge alone is charged: of one over its square the count
takes `BITS`. Silos count one half for or against, so a silo that is replaced by nothing moves it by a half.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..protocol.merging import Merger
from ..protocol.method import HandOver, Method, Start
from ..protocol.roster import Roster
from ..protocol.tree import Tree

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

Parts = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip(Method):
    """Another method whose uploads are clipped at a length that the server keeps with its state."""

    name: ClassVar[str] = "adaptive-clip"
    method: Method = field(metadata={"method": True, "wrapped": True})
    first: tuple[float, ...] = field(metadata={"method": True, "each_run": True})

    def init(self, task: Start, silos: int) -> tuple[Parts, Tree]:
        """Start the method, and the clip where it was set."""
        shared, own = self.method.init(task, silos)
        runs = len(task.initial())
        clip = torch.tensor(self.first, dtype=torch.float32).reshape(-1, 1, 1)
        return {"clip": clip.expand(runs, 1, 1), "rest": shared}, own

    def broadcast(self, shared: Parts) -> Tree:
        """Send what the method sends."""
        return self.method.broadcast(shared["rest"])

    def local(self, sent: Tree, own: Tree, oracle: Oracle) -> tuple[Tree, Tree]:
        """Do the method's work."""
        return self.method.local(sent, own, oracle)

    def merge(self, shared: Parts, uploads: Tree, merger: Merger) -> Parts:
        """Merge within the clip, then move it."""
        within = merger.clipping(shared["clip"])
        merged = self.method.merge(shared["rest"], uploads, within)
        return {"clip": within.next_clip(shared["clip"]), "rest": merged}

    def personal(self, sent: Tree, own: Tree) -> Tensor:
        """Predict as the method does."""
        return self.method.personal(sent, own)

    def hand_over(self, shared: Parts) -> HandOver:
        """Give where the method ends."""
        return self.method.hand_over(shared["rest"])

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Say what the method says."""
        return self.method.remarks(roster, present)
