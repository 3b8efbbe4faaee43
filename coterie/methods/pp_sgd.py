"""PP-SGD: a shared model plus a personal one (Bietti, Wei, Dudik, Langford, Wu, ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..protocol.method import Method, Start
from ..protocol.settings import PerRun, per_run, setting

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@dataclass(frozen=True, kw_only=True)
class PPSGD(Method):
    """Silos predict with the sum of the shared model and one of their own, trained together.

    The personal part moves `personal_rate` times as far as what is uploaded for the shared one; with 0
    it is FedAvg.
    """

    name: ClassVar[str] = "pp-sgd"
    paper: ClassVar[str] = "Bietti et al. 2022"
    personal_rate: PerRun = setting(1.0, minimum=0, help="step of the personal part over the shared one's")

    def init(self, task: Start, silos: int) -> tuple[Tensor, Tensor]:
        """Start from one shared vector; personal parts are zero."""
        start = task.initial()
        return start, torch.zeros_like(start).expand(-1, silos, -1)

    def local(self, sent: Tensor, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the sum; upload how it moved, and move the personal part too."""
        start = sent + own
        moved = oracle.descend(start) - start
        return moved, own + per_run(self.personal_rate).to(own.device) * moved

    def personal(self, sent: Tensor, own: Tensor) -> Tensor:
        """Predict with the sum."""
        return sent + own
