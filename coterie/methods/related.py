"""Silos with known relations, pulled toward their group or by a fixed matrix (Hu, Wu, Smith 2023)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor

from ..protocol.merging import Merger
from ..protocol.method import Method, Start
from ..protocol.settings import PerRun, per_run, setting
from ..protocol.tree import record
from .relations import Relations, alike, plain_relations, read_relations, relations_problem

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@record
class Server(NamedTuple):
    """Sums of related models, how each silo's target follows from them, and how strongly it pulls."""

    rows: Tensor
    read: Tensor
    pull: Tensor


@record
class Sent(NamedTuple):
    """What a silo is pulled toward, and how strongly."""

    target: Tensor
    pull: Tensor


@dataclass(frozen=True, kw_only=True)
class Related(Method):
    """Every silo trains its own model, pulled toward the models of silos known to be related.

    `relations` are public and fixed beforehand. Without them, all silos form one group, as in MR-MTL with a
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
            "plain": plain_relations,
            "fixed": True,
            "help": "CSV file with lines silo,group or with a matrix, or a table of these",
        },
    )

    def init(self, task: Start, silos: int) -> tuple[Server, Tensor]:
        """Start every silo from the same vector, which determines the sums of related models."""
        start = task.initial()
        sums, read, pulls = self._parts(task.roster.names)
        rows = sums.sum(1).reshape(1, -1, 1).to(start.device) * start
        facts = (read.unsqueeze(0), pulls.reshape(1, -1, 1))
        read, pulls = (fact.to(start.device).expand(len(start), -1, -1) for fact in facts)
        return Server(rows, read, pulls), start.expand(-1, silos, -1)

    def _parts(self, names: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor]:
        return (self.relations or alike(names)).parts(names)

    def broadcast(self, shared: Server) -> Sent:
        """Send each silo the combination of its related models, and how strongly that pulls."""
        return Sent(shared.read @ shared.rows, shared.pull)

    def local(self, sent: Sent, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the silo's own model and upload its change."""
        strength = per_run(self.lam).to(own.device) * sent.pull
        trained = oracle.descend(own, toward=sent.target, strength=strength)
        return trained - own, trained

    def merge(self, shared: Server, uploads: Tensor, merger: Merger) -> Server:
        """Update the sums of related models."""
        sums, _, _ = self._parts(merger.roster.names)
        return shared._replace(rows=shared.rows + merger.mix(uploads, sums))

    def personal(self, sent: Sent, own: Tensor) -> Tensor:
        """Predict with the silo's own model."""
        return own
