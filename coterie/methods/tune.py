"""Fine-tuning in each silo after another method, freely or held near the shared model in three ways."""

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
    """Every silo continues training alone, held near the previously shared model.

    `how` says what holds it: nothing (vanilla), the distance (mean), the divergence between the two models'
    predictions (kl), or a distance in which parameters that matter to its examples count more (ewc,
    Kirkpatrick et al. 2017). Silos send nothing, so under the unit 'silo' tuning costs no privacy.
    """

    name: ClassVar[str] = "tune"
    paper: ClassVar[str] = "Yu et al. 2020"
    how: str = setting("mean", choices=WAYS, fixed=True, help="what holds a silo near the shared model")
    strength: PerRun = setting(0.1, minimum=0, help="how strongly the silo is held")

    def check(self, task: TaskFacts, federation: FederationFacts) -> None:
        """Raise a Problem if `how` is 'kl' and the task has no classes to compare."""
        if self.how == "kl" and not task.classes:
            raise Problem(NEEDS_CLASSES)

    def local(self, sent: Tensor, own: Tensor, oracle: Oracle) -> tuple[None, Tensor]:
        """Continue training and send nothing, so the shared model stays as it is."""
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
