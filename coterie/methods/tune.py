"""Fine-tuning at home, after another method: alone, or held near the shared model in one of three ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..errors import Problem
from ..protocol.method import FederationFacts, Method, TaskFacts
from ..protocol.oracle import NEEDS_CLASSES
from ..protocol.settings import PerRun, per_run, setting

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

WAYS = ("vanilla", "mean", "kl", "ewc")


@dataclass(frozen=True, kw_only=True)
class Tune(Method):
    """Every silo trains on alone, held near the model that all shared before.

    `how`: not at all (vanilla), by distance (mean), by the divergence of what both predict (kl), or by
    distance in the numbers that matter to its examples (ewc, Kirkpatrick et al. 2017). Nothing is sent:
    where whole silos are protected it is free.
    """

    name: ClassVar[str] = "tune"
    paper: ClassVar[str] = "Yu et al. 2020"
    how: str = setting("mean", choices=WAYS, fixed=True, help="what holds a silo near the shared model")
    strength: PerRun = setting(0.1, minimum=0, help="how strongly it is held")

    def check(self, task: TaskFacts, federation: FederationFacts) -> None:
        """Raise a Problem if there are no classes to compare."""
        if self.how == "kl" and not task.classes:
            raise Problem(NEEDS_CLASSES)

    def local(self, sent: Tensor, own: Tensor, oracle: Oracle) -> tuple[None, Tensor]:
        """Train on; send nothing, so that the shared model stays as it is."""
        if self.how == "vanilla":
            return None, oracle.descend(own)
        if self.how == "kl":
            return None, oracle.descend(own, imitate=sent, strength=self.strength)
        strength: PerRun | Tensor = self.strength
        if self.how == "ewc":
            strength = per_run(self.strength).to(own.device) * oracle.fisher(sent)
        return None, oracle.descend(own, toward=sent, strength=strength)

    def personal(self, sent: Tensor, own: Tensor) -> Tensor:
        """Predict with the silo's own model."""
        return own
