"""Controls: methods that show how much a better method gains, or how much a naive one costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..protocol.merging import Merger
from ..protocol.method import Method, Start
from ..protocol.settings import PerRun, setting
from ..protocol.tree import record
from .pfa import Projected, Server, mix, weights_of
from .projection import project, random_basis

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@dataclass(frozen=True, kw_only=True)
class RandomProjection(Projected):
    """PFA with random directions instead of learned ones, as a control."""

    name: ClassVar[str] = "random-projection"
    paper: ClassVar[str] = "Liu et al. 2021"
    centre: str = setting("none", choices=("none",), fixed=True, help="directions about zero")

    def init(self, task: Start, silos: int) -> tuple[Server, None]:
        """Start with a random basis; the number of random directions has no upper limit."""
        return self.begin(task, random_basis(task, self.rank)), None

    def broadcast(self, shared: Server) -> Tensor:
        """Send the shared model."""
        return shared.model

    def local(self, sent: Tensor, own: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Train the shared model and upload the difference."""
        return oracle.descend(sent) - sent, None

    def merge(self, shared: Server, uploads: Tensor, merger: Merger) -> Server:
        """Add the public mean and the projected private one, weighted by epsilon; keep the basis."""
        weights = weights_of(shared.public, merger.roster)
        public_mean = merger.mean(uploads, weights.public)
        private_mean = project(merger.mean(uploads, weights.private), shared.basis)
        return shared._replace(model=shared.model + mix(public_mean, private_mean, weights))

    def personal(self, sent: Tensor, own: None) -> Tensor:
        """Predict with the shared model."""
        return sent


@record
class OwnAndMean(NamedTuple):
    """A silo's model, and the mean of all models."""

    own: Tensor
    mean: Tensor


@dataclass(frozen=True, kw_only=True)
class Joint(Method):
    """The naive way to protect whole silos: noise is added to every personal model itself.

    All models together are one long vector under differential privacy, so a silo's model can hardly depend on
    its own examples. This method exists to show what that costs.
    """

    name: ClassVar[str] = "joint"
    paper: ClassVar[str] = "Hu et al. 2023, figure 1"
    lam: PerRun = setting(1.0, minimum=0, help="pull toward the mean of all personal models")

    def init(self, task: Start, silos: int) -> tuple[Tensor, None]:
        """Start all silos' models, which the server keeps, from the same vector."""
        return task.initial().expand(-1, len(task.roster), -1), None

    def broadcast(self, shared: Tensor) -> OwnAndMean:
        """Send each silo its model, and the mean."""
        return OwnAndMean(shared, shared.mean(1, keepdim=True))

    def local(self, sent: OwnAndMean, own: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Train the silo's model and upload its change."""
        return oracle.descend(sent.own, toward=sent.mean, strength=self.lam) - sent.own, None

    def merge(self, shared: Tensor, uploads: Tensor, merger: Merger) -> Tensor:
        """Move each model by its own upload; under the unit 'silo' each upload carries all of the noise."""
        return shared + merger.mix(uploads, torch.eye(len(merger.roster)))

    def personal(self, sent: OwnAndMean, own: None) -> Tensor:
        """Predict with the model that the server keeps."""
        return sent.own
