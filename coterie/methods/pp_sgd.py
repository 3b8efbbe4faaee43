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
    """Each silo predicts with the sum of a shared model and a personal one, trained together.

    The personal part moves `personal_rate` times as far as the upload for the shared part; with 0 this is
    FedAvg.
    """

    name: ClassVar[str] = "pp-sgd"
    paper: ClassVar[str] = "Bietti et al. 2022"
    personal_rate: PerRun = setting(1.0, minimum=0, help="personal step divided by the shared step")

    def init(self, task: Start, silos: int) -> tuple[Tensor, Tensor]:
        """Start from one shared vector, with personal parts of zero."""
        start = task.initial()
        return start, torch.zeros_like(start).expand(-1, silos, -1)

    def local(self, sent: Tensor, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the sum, upload its change, and move the personal part too."""
        start = sent + own
        moved = oracle.descend(start) - start
        return moved, own + per_run(self.personal_rate).to(own.device) * moved

    def personal(self, sent: Tensor, own: Tensor) -> Tensor:
        """Predict with the sum."""
        return sent + own
