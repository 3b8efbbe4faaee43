"""One shared model: FedAvg (McMahan et al. 2017) and FedProx (Li et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..protocol.method import HandOver, Method, Start
from ..protocol.settings import PerRun, setting

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


class SharedModel(Method):
    """Abstract: methods with one model for all silos, in which silos keep no state."""

    def init(self, task: Start, silos: int) -> tuple[Tensor, None]:
        """Start from one shared vector."""
        return task.initial(), None

    def personal(self, sent: Tensor, own: None) -> Tensor:
        """Predict with the shared model."""
        return sent

    def hand_over(self, shared: Tensor) -> HandOver:
        """Let the next method start from the shared model."""
        return HandOver(shared)


@dataclass(frozen=True, kw_only=True)
class FedAvg(SharedModel):
    """Every silo trains the shared model; the server averages the results, weighted by size."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al. 2017"

    def local(self, sent: Tensor, own: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Train the shared model and upload the difference."""
        return oracle.descend(sent) - sent, None


@dataclass(frozen=True, kw_only=True)
class FedProx(SharedModel):
    """FedAvg with a pull of strength `mu` toward the model the server sent."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"
    mu: PerRun = setting(0.1, minimum=0, help="pull toward the shared model")

    def local(self, sent: Tensor, own: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Train the shared model, held near its starting point, and upload the difference."""
        return oracle.descend(sent, toward=sent, strength=self.mu) - sent, None
