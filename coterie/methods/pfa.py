"""Silos with differing budgets: WeiAvg, PFA and PFA+ (Liu, Lou, Xiong, Liu, Meng, VLDB 2021).

Silos with large budgets ("public", in the paper's words) send little noise, those with small ones
("private") send much. PFA projects what private silos send, layer by layer, on the few directions
in which public silos differ; in PFA+ private silos send only their coordinates there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.messages import only
from ..protocol.method import Method, Start
from ..protocol.roster import Roster
from ..protocol.settings import setting
from .fedavg import FedAvg
from .public_silos import WAYS, public_silos

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

State = dict[str, Any]
SMALL = 1e-10  # of the largest eigenvalue: directions below it are none


@dataclass(frozen=True, kw_only=True)
class WeiAvg(FedAvg):
    """FedAvg in which silos weigh as much as their budgets."""

    name: ClassVar[str] = "weiavg"
    paper: ClassVar[str] = "Liu et al. 2021"

    def init(self, task: Start, silos: int) -> tuple[Tensor, None]:
        """Start from one shared vector; budgets must be finite."""
        public_silos(task.roster.epsilon, "top", 1.0)
        return super().init(task, silos)

    def merge(self, shared: Tensor, uploads: Tensor, merger: Merger) -> Tensor:
        """Add the mean difference, weighted by epsilon."""
        return shared + merger.mean(uploads, merger.roster.epsilon)


@dataclass(frozen=True, kw_only=True)
class PFA(Method):
    """WeiAvg in which what private silos send is projected on the span of the public ones.

    `centre` "mean" takes the directions of public updates about their mean, and adds the mean back
    after projecting, as the authors' code does; "none" takes them about zero.
    """

    name: ClassVar[str] = "pfa"
    paper: ClassVar[str] = "Liu et al. 2021"
    rank: int = setting(1, minimum=1, whole=True, fixed=True, help="directions kept of each layer")
    divide: str = setting("mixture", choices=WAYS, fixed=True, help="how silos are divided by their budgets")
    top: float = setting(0.2, minimum=0, maximum=1, fixed=True, help="share of public silos, with divide top")
    centre: str = setting("mean", choices=("mean", "none"), fixed=True, help="centre of public updates")

    def init(self, task: Start, silos: int) -> tuple[State, None]:
        """Start from one shared vector, without a basis."""
        start = task.initial()
        public = public_silos(task.roster.epsilon, self.divide, self.top)
        self._check_rank(int(public.sum(1).min()), len(task.roster))
        one = start[:, :1]
        return {
            "model": start,
            "public": torch.zeros_like(one[..., :1].expand(-1, len(task.roster), -1)) + _like(public, one)
            > 0,
            "basis": self._basis(task, one),
            "centre": torch.zeros_like(one),
            "ready": torch.zeros_like(one[..., :1]) > 0,
        }, None

    def _check_rank(self, fewest: int, silos: int) -> None:
        """Refuse more directions than public silos span; where all are public nothing is projected."""
        most = silos if fewest == silos else max(fewest - (self.centre == "mean"), 0)
        if self.rank > most:
            raise Problem(
                f"rank: {fewest} public silo(s) span {most} direction(s) about their {self.centre}:"
                f" rank {self.rank} is too much; lower it, take centre = 'none', or more public silos by"
                " divide = 'top' and a larger top"
            )

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Say where there is nothing to project, or nothing to project on."""
        public = public_silos(roster.epsilon, self.divide, self.top)
        found = []
        if bool(public.all(1).any()):
            found.append(f"{self.title}: one group only after division: nothing is projected")
        if present is not None:
            somebody, loud = present.any(2), (present & public).any(2)
            empty, rounds = int((somebody & ~loud).sum()), int(somebody.sum())
            if empty:
                found.append(
                    f"{self.title}: no public silo in {empty} of {rounds} rounds: there private silos are"
                    " projected on the last known basis, or merged as they are where there is none yet"
                )
            alone = int((somebody & ~(present & ~public).any(2)).sum())
            if alone and not bool(public.all()):
                found.append(f"{self.title}: no private silo in {alone} of {rounds} rounds")
        return found

    def _basis(self, task: Start, one: Tensor) -> tuple[Tensor, ...]:
        shape = (one.shape[0], 1, self.rank)
        return tuple(
            torch.zeros_like(one[..., :1]).expand(*shape[:2], 1).unsqueeze(-1).expand(*shape, n)
            for n in task.layers
        )

    def broadcast(self, shared: State) -> Any:
        """Send the shared model."""
        return shared["model"]

    def local(self, sent: Any, own: None, oracle: Oracle) -> tuple[Any, None]:
        """Train the shared model, upload the difference."""
        return oracle.descend(sent) - sent, None

    def merge(self, shared: State, uploads: Any, merger: Merger) -> State:
        """Add the public mean and the projected private one, weighted by epsilon."""
        public, roster = shared["public"].squeeze(-1), merger.roster
        weights = roster.epsilon * (1 if roster.present is None else roster.present)
        shown, hidden = weights * public, weights * ~public
        basis, centre, ready = self._learn(shared, uploads, merger, shown)
        loud = merger.mean(uploads, shown)
        quiet = project(merger.mean(uploads, hidden), basis, centre, ready)
        return {
            **shared, "model": shared["model"] + _mix(loud, quiet, shown, hidden),
            "basis": basis, "centre": centre, "ready": ready,
        }  # fmt: skip

    def personal(self, sent: Any, own: None) -> Tensor:
        """Predict with the shared model."""
        model: Tensor = sent["model"] if isinstance(sent, dict) else sent
        return model

    def _learn(
        self, shared: State, updates: Tensor, merger: Merger, shown: Tensor
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """Give the basis of the round; without public silos the last one stays."""
        some = (shown.sum(1) > 0).reshape(-1, 1, 1)
        centre = merger.mean(updates, shown)
        if self.centre == "none":
            centre = torch.zeros_like(centre)
        spread = torch.where((shown > 0).unsqueeze(-1), updates - centre, 0.0)
        found = directions(spread, [b.shape[-1] for b in shared["basis"]], self.rank)
        kept = tuple(
            torch.where(some.unsqueeze(-1), new, old) for new, old in zip(found, shared["basis"], strict=True)
        )
        return kept, torch.where(some, centre, shared["centre"]), shared["ready"] | some


@dataclass(frozen=True, kw_only=True)
class PFAPlus(PFA):
    """PFA in which private silos send their coordinates in the last basis only, after a first full round."""

    name: ClassVar[str] = "pfa+"
    paper: ClassVar[str] = "Liu et al. 2021"

    def broadcast(self, shared: State) -> State:
        """Send the model and, to private silos, the basis."""
        private = ~shared["public"] & shared["ready"]
        basis = tuple(only(private, part.expand(-1, private.shape[1], -1, -1)) for part in shared["basis"])
        sent = {
            "model": shared["model"],
            "basis": basis,
            "public": shared["public"],
            "ready": shared["ready"],
        }
        if self.centre == "mean":
            sent["centre"] = only(private, shared["centre"].expand(-1, private.shape[1], -1))
        return sent

    def local(self, sent: State, own: None, oracle: Oracle) -> tuple[State, None]:
        """Train the shared model; a private silo uploads its coordinates only."""
        delta = oracle.descend(sent["model"]) - sent["model"]
        whole = sent["public"] | ~sent["ready"]
        centre = sent["centre"]["then"] if "centre" in sent else torch.zeros_like(delta)
        basis = tuple(part["then"] for part in sent["basis"])
        return {
            "delta": only(whole, delta),
            "coordinates": only(~whole, coordinates(delta - centre, basis)),
        }, None

    def merge(self, shared: State, uploads: State, merger: Merger) -> State:
        """Rebuild what private silos sent, then merge as PFA does, in the basis they used."""
        delta, code = uploads["delta"]["then"], uploads["coordinates"]["then"]
        public, ready, roster = shared["public"].squeeze(-1), shared["ready"], merger.roster
        weights = roster.epsilon * (1 if roster.present is None else roster.present)
        shown, hidden = weights * public, weights * ~public
        basis, centre, now = self._learn(shared, delta, merger, shown)
        rebuilt = expand(merger.mean(code, hidden), shared["basis"]) + shared["centre"]
        first = project(merger.mean(delta, hidden), basis, centre, now)
        quiet = torch.where(ready, rebuilt, first)
        loud = merger.mean(delta, shown)
        return {
            **shared, "model": shared["model"] + _mix(loud, quiet, shown, hidden),
            "basis": basis, "centre": centre, "ready": now,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RandomProjection(PFA):
    """PFA with random directions instead of learned ones: the control."""

    name: ClassVar[str] = "random-projection"
    paper: ClassVar[str] = "Liu et al. 2021"
    centre: str = setting("none", choices=("none",), fixed=True, help="directions about zero")

    def init(self, task: Start, silos: int) -> tuple[State, None]:
        """Start with a random basis."""
        shared, own = super().init(task, silos)
        return {**shared, "ready": ~shared["ready"]}, own

    def _check_rank(self, fewest: int, silos: int) -> None:
        """Any number of random directions will do."""

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """There is always a basis."""
        return []

    def _basis(self, task: Start, one: Tensor) -> tuple[Tensor, ...]:
        drawn = torch.stack([task.initial(1 + i, apart=True) for i in range(self.rank)], dim=2)
        parts = drawn.split(list(task.layers), dim=-1)
        return tuple(torch.linalg.qr(part.transpose(-1, -2)).Q.transpose(-1, -2) for part in parts)

    def _learn(
        self, shared: State, updates: Tensor, merger: Merger, shown: Tensor
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """Keep the basis."""
        return shared["basis"], shared["centre"], shared["ready"]


def directions(updates: Tensor, layers: list[int], rank: int) -> tuple[Tensor, ...]:
    """Give for each layer the top right singular vectors `[runs, 1, rank, n]` of updates `[runs, silos, P]`.

    By the Gram matrix of the silos, exact and small; where there are fewer directions, zeros. What is no
    number counts as zero.
    """
    found = []
    for part in updates.split(layers, dim=-1):
        wide = torch.where(torch.isfinite(part), part, 0.0).double()
        values, vectors = torch.linalg.eigh(wide @ wide.transpose(1, 2))
        values, vectors = values[:, -rank:].flip(1), vectors[:, :, -rank:].flip(2)
        there = values > SMALL * values[:, :1].clamp(min=1e-300)
        scale = torch.where(there, values.clamp(min=1e-300).rsqrt(), torch.zeros_like(values))
        basis = (vectors.transpose(1, 2) @ wide) * scale.unsqueeze(-1)
        found.append(basis.float().unsqueeze(1))
    return tuple(found)


def coordinates(vectors: Tensor, basis: tuple[Tensor, ...]) -> Tensor:
    """Give the coordinates `[runs, silos, layers * rank]` of vectors `[runs, silos, P]`."""
    parts = vectors.split([part.shape[-1] for part in basis], dim=-1)
    found = [(part @ own.unsqueeze(-1)).squeeze(-1) for part, own in zip(basis, parts, strict=True)]
    return torch.cat(found, dim=-1)


def expand(code: Tensor, basis: tuple[Tensor, ...]) -> Tensor:
    """Give the vectors with these coordinates."""
    parts = code.split([part.shape[2] for part in basis], dim=-1)
    found = [(own.unsqueeze(-2) @ part).squeeze(-2) for part, own in zip(basis, parts, strict=True)]
    return torch.cat(found, dim=-1)


def project(vectors: Tensor, basis: tuple[Tensor, ...], centre: Tensor, ready: Tensor) -> Tensor:
    """Project vectors on a basis about a centre; without a basis they stay."""
    return torch.where(ready, expand(coordinates(vectors - centre, basis), basis) + centre, vectors)


def _mix(loud: Tensor, quiet: Tensor, shown: Tensor, hidden: Tensor) -> Tensor:
    """Weigh two means by the budgets behind them; of nobody there is nothing."""
    a, b = shown.sum(1).reshape(-1, 1, 1).float(), hidden.sum(1).reshape(-1, 1, 1).float()
    total = a + b
    return (a * loud + b * quiet) / torch.where(total > 0, total, torch.ones_like(total))


def _like(mask: Tensor, one: Tensor) -> Tensor:
    return mask.to(one.device).unsqueeze(-1).to(one.dtype)
