"""Silos with differing budgets: WeiAvg, PFA and PFA+ (Liu, Lou, Xiong, Liu, Meng, VLDB 2021).

Silos with large budgets ("public", in the paper's words) add little noise to their uploads; silos with small
budgets ("private") add much. PFA projects the private uploads, layer by layer, onto the few directions in
which public silos differ. In PFA+, private silos send only their coordinates in these directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.messages import Only, only
from ..protocol.method import Method, Start
from ..protocol.roster import Roster
from ..protocol.settings import setting
from ..protocol.tree import record
from .fedavg import SharedModel
from .projection import Basis, coordinates, directions, expand, no_basis, project
from .public_silos import WAYS, public_silos

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

CENTRES = ("mean", "none")


@dataclass(frozen=True, kw_only=True)
class WeiAvg(SharedModel):
    """FedAvg with silos weighted by their budgets."""

    name: ClassVar[str] = "weiavg"
    paper: ClassVar[str] = "Liu et al. 2021"

    def init(self, task: Start, silos: int) -> tuple[Tensor, None]:
        """Start from one shared vector; raise a Problem unless all budgets are finite."""
        public_silos(task.roster.epsilon, "top", 1.0)
        return task.initial(), None

    def local(self, sent: Tensor, own: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Train the shared model and upload the difference."""
        return oracle.descend(sent) - sent, None

    def merge(self, shared: Tensor, uploads: Tensor, merger: Merger) -> Tensor:
        """Add the mean difference, weighted by epsilon."""
        return shared + merger.mean(uploads, merger.roster.epsilon)


@record
class Server(NamedTuple):
    """The shared model, which silos are public `[runs, silos, 1]`, and the last basis learned from those."""

    model: Tensor
    public: Tensor
    basis: Basis


class Weights(NamedTuple):
    """The weights of public and private silos in a round, `[runs, silos]`: their budgets."""

    public: Tensor
    private: Tensor


@dataclass(frozen=True, kw_only=True)
class Projected(Method):
    """Abstract: methods that project private uploads onto a basis."""

    rank: int = setting(1, minimum=1, whole=True, fixed=True, help="directions kept per layer")
    divide: str = setting("mixture", choices=WAYS, fixed=True, help="how silos are divided by their budgets")
    top: float = setting(
        0.2, minimum=0, maximum=1, fixed=True, help="share of public silos, for divide = 'top'"
    )

    def begin(self, task: Start, basis: Basis) -> Server:
        """Return the server's initial state."""
        start, public = task.initial(), self.public(task.roster)
        return Server(start, public.unsqueeze(-1).to(start.device).expand(len(start), -1, -1), basis)

    def public(self, roster: Roster) -> Tensor:
        """Return which silos are public, `[runs, silos]`."""
        return public_silos(roster.epsilon, self.divide, self.top)


@dataclass(frozen=True, kw_only=True)
class ProjectedOnPublic(Projected):
    """Abstract: methods whose basis is learned from public silos.

    With `centre` "mean", directions are those of public updates about their mean, and the mean is added back
    after projecting, as in the authors' code. With "none", directions are taken about zero.
    """

    centre: str = setting("mean", choices=CENTRES, fixed=True, help="centre of public updates")

    def init(self, task: Start, silos: int) -> tuple[Server, None]:
        """Start from one shared vector, without a basis."""
        check_rank(self.rank, self.centre, self.public(task.roster))
        return self.begin(task, no_basis(task, self.rank)), None

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Return remarks about runs with nothing to project, or nothing to project onto."""
        return division_remarks(self.title, self.public(roster), present)


@dataclass(frozen=True, kw_only=True)
class PFA(ProjectedOnPublic):
    """WeiAvg with private uploads projected onto the span of the public ones."""

    name: ClassVar[str] = "pfa"
    paper: ClassVar[str] = "Liu et al. 2021"

    def broadcast(self, shared: Server) -> Tensor:
        """Send the shared model."""
        return shared.model

    def local(self, sent: Tensor, own: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Train the shared model and upload the difference."""
        return oracle.descend(sent) - sent, None

    def merge(self, shared: Server, uploads: Tensor, merger: Merger) -> Server:
        """Add the public mean and the projected private one, weighted by epsilon."""
        weights = weights_of(shared.public, merger.roster)
        public_mean = merger.mean(uploads, weights.public)
        basis = learn(shared.basis, uploads, public_mean, weights.public, self.rank, self.centre)
        private_mean = project(merger.mean(uploads, weights.private), basis)
        return shared._replace(model=shared.model + mix(public_mean, private_mean, weights), basis=basis)

    def personal(self, sent: Tensor, own: None) -> Tensor:
        """Predict with the shared model."""
        return sent


@record
class Sent(NamedTuple):
    """The model, for every silo; the basis, for private silos once it is `ready`."""

    model: Tensor
    public: Tensor
    ready: Tensor
    directions: tuple[Only, ...]
    centre: Only | None


@record
class Upload(NamedTuple):
    """The update of a public silo, or the coordinates of a private silo's update."""

    delta: Only
    coordinates: Only


@dataclass(frozen=True, kw_only=True)
class PFAPlus(ProjectedOnPublic):
    """PFA in which private silos, after a first full round, send only coordinates in the last basis."""

    name: ClassVar[str] = "pfa+"
    paper: ClassVar[str] = "Liu et al. 2021"

    def broadcast(self, shared: Server) -> Sent:
        """Send the model and, to private silos, the basis."""
        basis, silos = shared.basis, shared.public.shape[1]
        private = ~shared.public & basis.ready
        parts = tuple(only(private, part.expand(-1, silos, -1, -1)) for part in basis.directions)
        centre = only(private, basis.centre.expand(-1, silos, -1)) if self.centre == "mean" else None
        return Sent(shared.model, shared.public, basis.ready, parts, centre)

    def local(self, sent: Sent, own: None, oracle: Oracle) -> tuple[Upload, None]:
        """Train the shared model; a private silo uploads only its coordinates."""
        delta = oracle.descend(sent.model) - sent.model
        whole = sent.public | ~sent.ready
        centre = torch.zeros_like(delta) if sent.centre is None else sent.centre.value
        code = coordinates(delta - centre, tuple(part.value for part in sent.directions))
        return Upload(only(whole, delta), only(~whole, code)), None

    def merge(self, shared: Server, uploads: Upload, merger: Merger) -> Server:
        """Rebuild the private updates from the basis they used, then merge as PFA does."""
        delta, code, last = uploads.delta.value, uploads.coordinates.value, shared.basis
        weights = weights_of(shared.public, merger.roster)
        public_mean = merger.mean(delta, weights.public)
        basis = learn(last, delta, public_mean, weights.public, self.rank, self.centre)
        rebuilt = expand(merger.mean(code, weights.private), last.directions) + last.centre
        whole = project(merger.mean(delta, weights.private), basis)
        private_mean = torch.where(last.ready, rebuilt, whole)
        return shared._replace(model=shared.model + mix(public_mean, private_mean, weights), basis=basis)

    def personal(self, sent: Sent, own: None) -> Tensor:
        """Predict with the shared model."""
        return sent.model


def weights_of(public: Tensor, roster: Roster) -> Weights:
    """Return the weights of a round; absent silos weigh nothing."""
    budgets = roster.epsilon * (1 if roster.present is None else roster.present)
    return Weights(budgets * public.squeeze(-1), budgets * ~public.squeeze(-1))


def learn(
    last: Basis, updates: Tensor, public_mean: Tensor, weights: Tensor, rank: int, centre: str
) -> Basis:
    """Return the basis spanned by a round's public silos, or the last basis if there are none."""
    somebody = (weights.sum(1) > 0).reshape(-1, 1, 1)
    middle = torch.zeros_like(public_mean) if centre == "none" else public_mean
    spread = torch.where((weights > 0).unsqueeze(-1), updates - middle, 0.0)
    layers = [part.shape[-1] for part in last.directions]
    parts = tuple(
        torch.where(somebody.unsqueeze(-1), new, old)
        for new, old in zip(directions(spread, layers, rank), last.directions, strict=True)
    )
    return Basis(parts, torch.where(somebody, middle, last.centre), last.ready | somebody)


def mix(public_mean: Tensor, private_mean: Tensor, weights: Weights) -> Tensor:
    """Return both means averaged by the budgets behind them, or zero if no silo took part."""
    a, b = (each.sum(1).reshape(-1, 1, 1).float() for each in weights)
    total = a + b
    return (a * public_mean + b * private_mean) / torch.where(total > 0, total, torch.ones_like(total))


def check_rank(rank: int, centre: str, public: Tensor) -> None:
    """Raise a Problem if public silos span fewer than `rank` directions, unless all silos are public."""
    fewest, silos = int(public.sum(1).min()), public.shape[1]
    most = silos if fewest == silos else max(fewest - (centre == "mean"), 0)
    if rank > most:
        raise Problem(
            f"rank: {fewest} public silo(s) span only {most} direction(s) (centre = '{centre}'), so rank"
            f" {rank} is too large; lower it, use centre = 'none', or make more silos public with"
            " divide = 'top' and a larger top"
        )


def division_remarks(title: str, public: Tensor, present: Tensor | None) -> list[str]:
    """Return remarks about rounds without public silos, or without private ones."""
    remarks = []
    if bool(public.all(1).any()):
        remarks.append(f"{title}: all silos are in one group, so nothing is projected")
    if present is None:
        return remarks
    somebody, loud = present.any(2), (present & public).any(2)
    empty, rounds = int((somebody & ~loud).sum()), int(somebody.sum())
    if empty:
        remarks.append(
            f"{title}: {empty} of {rounds} rounds have no public silo; private uploads are then projected"
            " onto the last known basis, or merged unprojected if there is none yet"
        )
    alone = int((somebody & ~(present & ~public).any(2)).sum())
    if alone and not bool(public.all()):
        remarks.append(f"{title}: {alone} of {rounds} rounds have no private silo")
    return remarks
