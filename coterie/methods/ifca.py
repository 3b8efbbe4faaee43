"""IFCA / HypCluster: silos choose one of some models (Ghosh et al. 2020; Mansour et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.method import HandOver, Method, Start
from ..protocol.roster import Roster
from ..protocol.settings import setting

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

Shared = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """Silos privately choose the cluster model that fits them best, and train it together.

    They choose in the first rounds only (`choosing`, a share of all), since every choice costs: all of
    them together about `spend`, a share of epsilon. Later each silo stays with its last choice. While they
    choose, a model that nobody has chosen, or far fewer than an even share (`least`), starts again as a copy
    of the one that most have: silos then part by chance, and what they learn tells the copies apart. (Not in
    the papers, where two groups may stay in one cluster for good.)
    """

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh et al. 2020; Mansour et al. 2020"
    clusters: int = setting(4, minimum=1, whole=True, fixed=True, help="how many models there are")
    choosing: float = setting(
        0.1, minimum=0, maximum=1, fixed=True, help="share of rounds with a choice, one at least"
    )
    spend: float = setting(0.1, minimum=1e-6, maximum=0.99, fixed=True, help="share of epsilon for choices")
    least: float = setting(
        0.25, minimum=0, maximum=1, fixed=True, help="part of an even share of silos that keeps a model"
    )

    def init(self, task: Start, silos: int) -> tuple[Shared, Tensor]:
        """Start every cluster from a vector of its own; a silo that has not chosen (-1) takes the first."""
        if len(task.roster) < self.clusters:
            raise Problem(f"clusters: there are {self.clusters} clusters for {len(task.roster)} silos")
        models = torch.cat([task.initial(index, apart=True) for index in range(self.clusters)], 1)
        nothing = torch.zeros_like(models[:, :1, :1]).long() - 1
        choice = nothing.expand(-1, len(task.roster), -1)
        left = torch.zeros_like(models[:, :1, :1]) + _rounds_to_choose(self.choosing, task.rounds)
        return {"models": models, "choice": choice, "left": left}, nothing.expand(-1, silos, -1)

    def broadcast(self, shared: Shared) -> Tensor:
        """Send all cluster models to everybody: `[runs, 1, clusters, P]`."""
        return self._offered(shared).unsqueeze(1)

    def _offered(self, shared: Shared) -> Tensor:
        """Give the models; where silos will choose among them, those that hardly any silo has start again."""
        again = _refilled(shared["models"], shared["choice"].squeeze(-1), self.least)
        return torch.where(shared["left"] > 0, again, shared["models"])

    def local(self, sent: Tensor, own: Tensor, oracle: Oracle) -> tuple[Shared, Tensor]:
        """Choose, train the chosen model, upload the choice and the difference."""
        sent = sent.squeeze(1)
        if oracle.round < _rounds_to_choose(self.choosing, oracle.rounds) and self.clusters > 1:
            own = oracle.select(sent, self.spend).unsqueeze(-1)
        start = _chosen(sent, own)
        return {"delta": oracle.descend(start) - start, "choice": own}, own

    def merge(self, shared: Shared, uploads: Shared, merger: Merger) -> Shared:
        """Move each cluster by the mean difference of the silos that chose it."""
        choice, roster = uploads["choice"], merger.roster
        if roster.present is not None:
            choice = torch.where(roster.present.unsqueeze(-1), choice, shared["choice"])
        moved = []
        for cluster in range(self.clusters):
            weights = roster.sizes * (choice.clamp(min=0).squeeze(-1) == cluster)
            moved.append(merger.mean(uploads["delta"], weights))
        models = self._offered(shared) + torch.cat(moved, 1)
        return {"models": models, "choice": choice, "left": shared["left"] - 1}

    def personal(self, sent: Tensor, own: Tensor) -> Tensor:
        """Predict with the model of the silo's cluster."""
        return _chosen(sent.squeeze(1), own)

    def hand_over(self, shared: Shared) -> HandOver:
        """Let the next method begin from each silo's cluster, and learn within clusters."""
        choice = shared["choice"].clamp(min=0)
        return HandOver(_chosen(self._offered(shared), choice), choice.squeeze(-1))

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Say of silos that are absent whenever there is a choice."""
        if present is None or self.clusters == 1:
            return []
        absent = int((~present[: _rounds_to_choose(self.choosing, len(present))].any(0)).sum())
        if not absent:
            return []
        return [
            f"{self.title}: {absent} silo(s) (over all runs) are absent whenever clusters are chosen, and"
            " stay in the first one: raise 'choosing'"
        ]


def _refilled(models: Tensor, choice: Tensor, least: float) -> Tensor:
    """Copy the model that most silos chose to the places of those that too few chose."""
    places = torch.arange(models.shape[1], device=models.device)
    count = (choice.unsqueeze(1) == places.reshape(1, -1, 1)).sum(2)
    most = count.argmax(1, keepdim=True)
    nobody = count.sum(1, keepdim=True) == 0
    enough = (least * count.sum(1, keepdim=True) / models.shape[1]).clamp(min=1)  # of those who have chosen
    source = torch.where((count >= enough) | nobody, places.unsqueeze(0), most)
    return models.gather(1, source.unsqueeze(-1).expand_as(models))


def _chosen(models: Tensor, choice: Tensor) -> Tensor:
    """Take the chosen one of models `[runs, clusters, P]` for each silo: `[runs, silos, P]`."""
    return models.gather(1, choice.clamp(min=0).expand(-1, -1, models.shape[-1]))


def _rounds_to_choose(share: float, rounds: int) -> int:
    return max(1, math.ceil(share * rounds - 1e-9))
