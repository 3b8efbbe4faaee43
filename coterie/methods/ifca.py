"""IFCA / HypCluster: each silo chooses one of several models (Ghosh et al. 2020; Mansour et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.method import HandOver, Method, Start
from ..protocol.roster import Roster
from ..protocol.settings import setting
from ..protocol.tree import record

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

NOT_CHOSEN = -1


@record
class Clusters(NamedTuple):
    """The cluster models `[runs, clusters, P]`, and each silo's latest choice, `[runs, silos, 1]`."""

    models: Tensor
    choice: Tensor


@record
class Upload(NamedTuple):
    """The change of the chosen model, and which model that is."""

    delta: Tensor
    choice: Tensor


@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """Silos privately choose the cluster model that fits them best, and train it together.

    Every choice costs privacy, so silos choose only in the first rounds (`choosing`, a share of all rounds).
    All choices together cost about `spend`, a share of epsilon. Afterwards each silo keeps its last choice.
    While silos still choose, a model with too few of them (`least`, relative to an even share) restarts as a
    copy of the most popular one. Silos then split between the copies by chance, and training tells the copies
    apart. The papers have no such step, so there two groups may stay in one cluster for good.
    """

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh et al. 2020; Mansour et al. 2020"
    clusters: int = setting(4, minimum=1, whole=True, fixed=True, help="number of models")
    choosing: float = setting(
        0.1, minimum=0, maximum=1, fixed=True, help="share of rounds with a choice, at least one round"
    )
    spend: float = setting(0.1, minimum=1e-6, maximum=0.99, fixed=True, help="share of epsilon for choices")
    least: float = setting(
        0.25,
        minimum=0,
        maximum=1,
        fixed=True,
        help="fewest silos that keep a model, relative to an even share",
    )

    def init(self, task: Start, silos: int) -> tuple[Clusters, Tensor]:
        """Start every cluster from its own vector; a silo that has not chosen uses the first cluster."""
        if len(task.roster) < self.clusters:
            raise Problem(
                f"clusters must be at most the number of silos, {len(task.roster)}, got {self.clusters}"
            )
        models = torch.cat([task.initial(index, apart=True) for index in range(self.clusters)], 1)
        choice = torch.zeros_like(models[:, :1, :1]).long() + NOT_CHOSEN
        return Clusters(models, choice.expand(-1, len(task.roster), -1)), choice.expand(-1, silos, -1)

    def broadcast(self, shared: Clusters) -> Tensor:
        """Send all cluster models to every silo: `[runs, 1, clusters, P]`."""
        return shared.models.unsqueeze(1)

    def local(self, sent: Tensor, own: Tensor, oracle: Oracle) -> tuple[Upload, Tensor]:
        """Choose a model, train it, and upload the choice and the difference."""
        models = sent.squeeze(1)
        if self.clusters > 1 and oracle.round < self._choices(oracle.rounds):
            own = oracle.select(models, self.spend).unsqueeze(-1)
        start = chosen(models, own)
        return Upload(oracle.descend(start) - start, own), own

    def merge(self, shared: Clusters, uploads: Upload, merger: Merger) -> Clusters:
        """Move each cluster by the mean upload of the silos that chose it; refill unpopular clusters."""
        roster, choice = merger.roster, uploads.choice
        if roster.present is not None:
            choice = torch.where(roster.present.unsqueeze(-1), choice, shared.choice)
        moved = []
        for cluster in range(self.clusters):
            weights = roster.sizes * (choice.clamp(min=0).squeeze(-1) == cluster)
            moved.append(merger.mean(uploads.delta, weights))
        models = shared.models + torch.cat(moved, 1)
        if roster.round + 1 < self._choices(roster.rounds):
            models = refilled(models, choice.squeeze(-1), self.least)
        return Clusters(models, choice)

    def personal(self, sent: Tensor, own: Tensor) -> Tensor:
        """Predict with the model of the silo's cluster."""
        return chosen(sent.squeeze(1), own)

    def hand_over(self, shared: Clusters) -> HandOver:
        """Let the next method start from each silo's cluster model, and learn within clusters."""
        return HandOver(chosen(shared.models, shared.choice), shared.choice.clamp(min=0).squeeze(-1))

    def learned_silos(self, shared: Clusters) -> dict[str, Tensor]:
        """Return each silo's cluster, from 1 on."""
        return {"cluster": shared.choice.squeeze(-1).clamp(min=0) + 1}

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Return a remark about silos that are absent in every round with a choice."""
        if present is None or self.clusters == 1:
            return []
        absent = int((~present[: self._choices(len(present))].any(0)).sum())
        if not absent:
            return []
        return [
            f"{self.title}: {absent} silo(s) (over all runs) are absent in every round with a choice, so they"
            " stay in the first cluster; raise 'choosing'"
        ]

    def _choices(self, rounds: int) -> int:
        """Return in how many of the `rounds` silos choose."""
        return max(1, math.ceil(self.choosing * rounds - 1e-9))


def chosen(models: Tensor, choice: Tensor) -> Tensor:
    """Return each silo's chosen model, `[runs, silos, P]`, from models `[runs, clusters, P]`."""
    return models.gather(1, choice.clamp(min=0).expand(-1, -1, models.shape[-1]))


def refilled(models: Tensor, choice: Tensor, least: float) -> Tensor:
    """Return the models, with those that too few silos chose replaced by the most popular one."""
    places = torch.arange(models.shape[1], device=models.device)
    count = (choice.unsqueeze(1) == places.reshape(1, -1, 1)).sum(2)
    most = count.argmax(1, keepdim=True)
    nobody = count.sum(1, keepdim=True) == 0
    enough = (least * count.sum(1, keepdim=True) / models.shape[1]).clamp(
        min=1
    )  # among silos that have chosen
    source = torch.where((count >= enough) | nobody, places.unsqueeze(0), most)
    return models.gather(1, source.unsqueeze(-1).expand_as(models))
