"""Settings of losses, which are public: somebody chose them without looking at the examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Problem, nearest, shown
from .losses import ALSO_CALLED, LOSSES

BALANCED = (
    "model.class_weights: 'balanced' would count the classes of the data, which no budget pays for; give"
    " public numbers, such as { healthy = 0.1, ill = 1 }"
)


@dataclass(frozen=True)
class LossSettings:
    """How a loss is set: a weight for each class, and where Huber's loss becomes a straight line."""

    class_weights: tuple[float, ...] = ()
    huber_delta: float = 1.0

    def check(self, loss: str, classes: int, targets: int = 0) -> None:
        """Raise `Problem` if the settings do not fit the loss."""
        if self.class_weights and targets:
            raise Problem("model.class_weights: there are several targets, which have no classes to weigh")
        if self.class_weights and len(self.class_weights) != classes:
            have = f"the data has {classes} classes" if classes else "the target is a number"
            raise Problem(f"model.class_weights: {len(self.class_weights)} weights were given, but {have}")
        if not _positive(self.huber_delta):
            raise Problem(f"model.huber_delta: expected a finite number > 0, got {shown(self.huber_delta)}")
        if self.huber_delta != 1.0 and loss != "huber":
            raise Problem(f"model.huber_delta: the loss is '{loss}'; set model.loss = 'huber' to use it")


def unknown_loss(name: str) -> Problem:
    """Return the problem with the name of a loss that there is not."""
    meant = ALSO_CALLED.get(name.lower())
    hint = f"did you mean '{meant}'?" if meant else nearest(name, LOSSES)
    return Problem(f"model.loss: unknown loss '{name}'; {hint} (all: {', '.join(LOSSES)})")


def loss_settings(
    class_weights: Any = None, huber_delta: float = 1.0, classes: Sequence[str] = ()
) -> LossSettings:
    """Return settings from what a user gave: weights by the name of a class, or in the order of `classes`.

    Classes that are not named weigh 1, or as much as one called `default`.
    """
    if class_weights is None:
        return LossSettings((), huber_delta)
    if class_weights == "balanced":
        raise Problem(BALANCED)
    if not classes:
        raise Problem("model.class_weights: the target is a number, so there are no classes to weigh")
    if isinstance(class_weights, Mapping):
        named = {str(name): weight for name, weight in class_weights.items()}
        default = 1.0 if "default" in classes else named.pop("default", 1.0)
        if unknown := [name for name in named if name not in classes]:
            raise Problem(
                f"model.class_weights: there is no class '{unknown[0]}'; {nearest(unknown[0], classes)}"
            )
        weights = [named.get(name, default) for name in classes]
    elif isinstance(class_weights, Sequence) and not isinstance(class_weights, str):
        weights = list(class_weights)
        if len(weights) != len(classes):
            raise Problem(
                f"model.class_weights: expected {len(classes)} weights, one for each of the classes"
                f" {', '.join(classes)}, got {len(weights)}"
            )
    else:
        raise Problem(
            "model.class_weights: expected a weight for each class, such as { healthy = 1, ill = 10 }, got"
            f" {shown(class_weights)}"
        )
    if wrong := [weight for weight in weights if not _positive(weight)]:
        raise Problem(f"model.class_weights: expected finite numbers > 0, got {shown(wrong[0])}")
    return LossSettings(tuple(map(float, weights)), huber_delta)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
