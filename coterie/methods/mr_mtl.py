"""MR-MTL: personal models pulled toward their mean (Liu, Hu, Wu, Smith, NeurIPS 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..protocol.merging import Merger
from ..protocol.method import HandOver, Method
from ..protocol.settings import PerRun, setting

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@dataclass(frozen=True, kw_only=True)
class MRMTL(Method):
    """Every silo trains its own model, pulled toward the mean of all models with strength `lam`.

    With `lam` 0 this is Local; "auto" selects `MRMTLAuto`. The pull uses only released vectors, so it costs
    no privacy.
    """

    name: ClassVar[str] = "mr-mtl"
    paper: ClassVar[str] = "Liu et al. 2022"
    lam: PerRun = setting(
        1.0, minimum=0, words=("auto",), help="pull toward the mean of all personal models, or 'auto'"
    )

    def local(self, sent: Tensor, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the silo's own model and upload its change."""
        trained = oracle.descend(own, toward=sent, strength=self.lam)
        return trained - own, trained

    def merge(self, shared: Tensor, uploads: Tensor, merger: Merger) -> Tensor:
        """Update the mean to follow the models; models of absent silos have not moved."""
        return shared + merger.mean(uploads, everybody=True)

    def personal(self, sent: Tensor, own: Tensor) -> Tensor:
        """Predict with the silo's own model."""
        return own

    def hand_over(self, shared: Tensor) -> HandOver:
        """Let the next method start from the mean model."""
        return HandOver(shared)
