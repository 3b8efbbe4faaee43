"""Silos whose relations are known: pulled toward their group, or by a fixed matrix (Hu, Wu, Smith 2023)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..protocol.merging import Merger
from ..protocol.method import Method, Start
from ..protocol.settings import PerRun, per_run, setting
from .relations import Relations, alike, read_relations, relations_problem

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

State = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Related(Method):
    """Every silo trains its own model, pulled toward those of the silos that it is known to relate to.

    `relations` are fixed beforehand and public. Without any all silos are one group, as in MR-MTL with a
    uniform mean.
    """

    name: ClassVar[str] = "related"
    paper: ClassVar[str] = "Hu et al. 2023"
    lam: PerRun = setting(1.0, minimum=0, help="pull toward related silos")
    relations: Relations | None = field(
        default=None,
        metadata={
            "check": relations_problem,
            "read": read_relations,
            "fixed": True,
            "help": "CSV file: silo,group, or a matrix",
        },
    )

    def init(self, task: Start, silos: int) -> tuple[State, Tensor]:
        """Start all from one vector: the sums of related models are known."""
        start = task.initial()
        sums, read, pulls = self._parts(task.roster.names)
        rows = sums.sum(1).reshape(1, -1, 1).to(start.device) * start
        facts = {"read": read.unsqueeze(0), "pull": pulls.reshape(1, -1, 1)}
        facts = {key: value.to(start.device).expand(len(start), -1, -1) for key, value in facts.items()}
        return {"rows": rows, **facts}, start.expand(-1, silos, -1)

    def _parts(self, names: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor]:
        return (self.relations or alike(names)).parts(names)

    def broadcast(self, shared: State) -> State:
        """Send to each silo what its related models add up to, and how strongly that pulls."""
        return {"target": shared["read"] @ shared["rows"], "pull": shared["pull"]}

    def local(self, sent: State, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the silo's own model, upload how it moved."""
        strength = per_run(self.lam).to(own.device) * sent["pull"]
        trained = oracle.descend(own, toward=sent["target"], strength=strength)
        return trained - own, trained

    def merge(self, shared: State, uploads: Tensor, merger: Merger) -> State:
        """Move the sums of related models."""
        sums, _, _ = self._parts(merger.roster.names)
        return {**shared, "rows": shared["rows"] + merger.mix(uploads, sums)}

    def personal(self, sent: State, own: Tensor) -> Tensor:
        """Predict with the silo's own model."""
        return own


@dataclass(frozen=True, kw_only=True)
class Joint(Method):
    """The naive way to protect whole silos: every personal model is noised itself.

    All models are one long vector under differential privacy, so a silo's model must hardly depend on its
    own examples. It is here to show what that costs.
    """

    name: ClassVar[str] = "joint"
    paper: ClassVar[str] = "Hu et al. 2023, figure 1"
    lam: PerRun = setting(1.0, minimum=0, help="pull toward the mean of all personal models")

    def init(self, task: Start, silos: int) -> tuple[Tensor, None]:
        """Start every silo's model, which the server keeps, from the same vector."""
        return task.initial().expand(-1, len(task.roster), -1), None

    def broadcast(self, shared: Tensor) -> State:
        """Send each silo its model, and the mean."""
        return {"own": shared, "mean": shared.mean(1, keepdim=True)}

    def local(self, sent: State, own: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Train the silo's model, upload how it moved."""
        trained = oracle.descend(sent["own"], toward=sent["mean"], strength=self.lam)
        return trained - sent["own"], None

    def merge(self, shared: Tensor, uploads: Tensor, merger: Merger) -> Tensor:
        """Move each model by its own upload: under the unit 'silo' with all the noise on it."""
        return shared + merger.mix(uploads, torch.eye(len(merger.roster)))

    def personal(self, sent: State, own: None) -> Tensor:
        """Predict with the model that the server keeps."""
        return sent["own"]
