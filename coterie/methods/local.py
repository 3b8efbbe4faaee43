"""Local: every silo trains alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..protocol.method import Method, Start

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Every silo trains alone; nothing is sent."""

    name: ClassVar[str] = "local"

    def init(self, task: Start, silos: int) -> tuple[None, Tensor]:
        """Start every silo from the same vector."""
        return None, task.initial().expand(-1, silos, -1)

    def local(self, sent: None, own: Tensor, oracle: Oracle) -> tuple[None, Tensor]:
        """Continue training the silo's own model."""
        return None, oracle.descend(own)

    def personal(self, sent: None, own: Tensor) -> Tensor:
        """Predict with the silo's own model."""
        return own
