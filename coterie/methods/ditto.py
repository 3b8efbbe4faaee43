"""Ditto: a shared model, and a personal one pulled toward it (Li, Hu, Beirami, Smith 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..protocol.method import Method
from ..protocol.settings import PerRun, setting

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@dataclass(frozen=True, kw_only=True)
class Ditto(Method):
    """FedAvg plus a personal model in each silo, pulled toward the shared one with strength `lam`.

    Each round makes two passes over the examples, and each pass pays for its own noise.
    """

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al. 2021"
    lam: PerRun = setting(1.0, minimum=0, help="pull toward the shared model")

    def local(self, sent: Tensor, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the shared model for everyone, then the silo's own model for itself."""
        trained = oracle.descend(sent)
        own = oracle.descend(own, toward=sent, strength=self.lam)
        return trained - sent, own

    def personal(self, sent: Tensor, own: Tensor) -> Tensor:
        """Predict with the silo's own model."""
        return own
