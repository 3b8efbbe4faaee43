"""Mocha: personal models with learned relations between silos (Smith, Chiang, Sanjabi, Talwalkar 2017).

The objective adds lam tr(W M W'), M the inverse of Omega = (W'W)^(1/2) / trace, times the number of
silos' inverse so that unrelated silos have M = I. Its gradient for silo k is a pull of strength
lam M_kk toward anchor_k = - sum over others of M_kj w_j / M_kk: the server computes both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.method import LearnedRelations, Method, Start
from ..protocol.settings import PerRun, per_run, setting

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

FLOOR = 1e-3  # of the largest eigenvalue of Omega


@dataclass(frozen=True, kw_only=True)
class Mocha(Method):
    """Every silo trains its own model, pulled by those that the server found to be related.

    LearnedRelations are learned from released vectors only, so they cost no privacy.
    """

    name: ClassVar[str] = "mocha"
    paper: ClassVar[str] = "Smith et al. 2017"
    lam: PerRun = setting(0.1, minimum=0, help="strength of the relations")

    def init(self, task: Start, silos: int) -> tuple[dict[str, Tensor], Tensor]:
        """Start every silo from the same vector, without a pull."""
        start = task.initial().expand(-1, silos, -1)
        return {"models": start, "anchor": start, "strength": torch.zeros_like(start[..., :1])}, start

    def broadcast(self, shared: dict[str, Tensor]) -> dict[str, Tensor]:
        """Send every silo its anchor and the strength of its pull."""
        return {"anchor": shared["anchor"], "strength": shared["strength"]}

    def local(self, sent: dict[str, Tensor], own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the silo's own model, upload how it moved."""
        strength = per_run(self.lam).to(own.device) * sent["strength"]
        trained = oracle.descend(own, toward=sent["anchor"], strength=strength)
        return trained - own, trained

    def merge(self, shared: dict[str, Tensor], uploads: Tensor, merger: Merger) -> dict[str, Tensor]:
        """Follow the models, relate them anew."""
        if merger.roster.groups is not None:
            raise Problem("'mocha' relates all silos, and cannot learn within clusters: not after ifca")
        models = shared["models"] + uploads
        anchor, strength = pulls(models, related(models))
        return {"models": models, "anchor": anchor, "strength": strength}

    def learned_relations(self, shared: dict[str, Tensor]) -> LearnedRelations:
        """Give Omega."""
        inverse = related(shared["models"]).double().inverse()
        return LearnedRelations((inverse / inverse.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]).float())

    def personal(self, sent: dict[str, Tensor], own: Tensor) -> Tensor:
        """Predict with the silo's own model."""
        return own


def related(models: Tensor) -> Tensor:
    """Give M `[runs, silos, silos]` of models `[runs, silos, P]`: the inverse of silos times Omega.

    Of models that diverged nothing is known: they count as zero.
    """
    wide, silos = torch.where(torch.isfinite(models), models, 0.0).double(), models.shape[1]
    values, vectors = torch.linalg.eigh(wide @ wide.transpose(1, 2))
    roots = values.clamp(min=0).sqrt()
    trace = roots.sum(-1, keepdim=True)
    shares = roots / torch.where(trace > 0, trace, torch.ones_like(trace))
    omega = torch.where(trace > 0, shares, torch.ones_like(roots) / silos)
    floored = torch.maximum(omega, FLOOR * omega.amax(-1, keepdim=True))
    inverse: Tensor = (vectors / (floored * silos).unsqueeze(-2)) @ vectors.transpose(1, 2)
    return inverse


def pulls(models: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Give the anchor `[runs, silos, P]` and the strength `[runs, silos, 1]` of every silo's pull."""
    strength = inverse.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    others = inverse - torch.diag_embed(strength.squeeze(-1))
    anchor = -(others @ models.double()) / strength
    return anchor.float(), strength.float()
