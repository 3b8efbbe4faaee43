"""Mocha: personal models with learned relations between silos (Smith, Chiang, Sanjabi, Talwalkar 2017).

The objective adds lam tr(W M W'), where M is the inverse of silos x Omega and Omega = (W'W)^(1/2) / trace, so
M = I for unrelated silos. Its gradient for silo k is a pull of strength lam M_kk toward anchor_k = - sum over
the others of M_kj w_j / M_kk. The server computes both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.method import LearnedRelations, Method, Start
from ..protocol.settings import PerRun, per_run, setting
from ..protocol.tree import record
from .omega import inverse_of

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@record
class Pull(NamedTuple):
    """The anchor `[runs, silos, P]` that pulls each silo, and how strongly, `[runs, silos, 1]`."""

    anchor: Tensor
    strength: Tensor


@record
class Server(NamedTuple):
    """The models of all silos, and their pulls."""

    models: Tensor
    pull: Pull


@dataclass(frozen=True, kw_only=True)
class Mocha(Method):
    """Every silo trains its own model, pulled by the models that the server finds to be related.

    Relations are learned only from released vectors, so they cost no privacy.
    """

    name: ClassVar[str] = "mocha"
    paper: ClassVar[str] = "Smith et al. 2017"
    lam: PerRun = setting(0.01, minimum=0, help="strength of the relations")

    def init(self, task: Start, silos: int) -> tuple[Server, Tensor]:
        """Start every silo from the same vector, without a pull."""
        start = task.initial().expand(-1, silos, -1)
        return Server(start, Pull(start, torch.zeros_like(start[..., :1]))), start

    def broadcast(self, shared: Server) -> Pull:
        """Send every silo its anchor and the strength of its pull."""
        return shared.pull

    def local(self, sent: Pull, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the silo's own model and upload its change."""
        strength = per_run(self.lam).to(own.device) * sent.strength
        trained = oracle.descend(own, toward=sent.anchor, strength=strength)
        return trained - own, trained

    def merge(self, shared: Server, uploads: Tensor, merger: Merger) -> Server:
        """Update the models, then relearn how they relate."""
        if merger.roster.groups is not None:
            raise Problem(
                "'mocha' relates all silos, so it cannot learn within clusters; do not use it after 'ifca'"
            )
        models = shared.models + uploads
        return Server(models, pulls(models, inverse_of(models)))

    def learned_relations(self, shared: Server) -> LearnedRelations:
        """Return Omega."""
        inverse = inverse_of(shared.models).inverse()
        return LearnedRelations((inverse / inverse.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]).float())

    def personal(self, sent: Pull, own: Tensor) -> Tensor:
        """Predict with the silo's own model."""
        return own


def pulls(models: Tensor, inverse: Tensor) -> Pull:
    """Return every silo's pull, given its model and the matrix M."""
    strength = inverse.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    others = inverse - torch.diag_embed(strength.squeeze(-1))
    anchor = -(others @ models.double()) / strength
    return Pull(anchor.float(), strength.float())
