"""How silos step along their gradients: public settings, the same for all silos and runs.

Everything here is post-processing. A door releases the noisy sum of each step; momentum, Adam, weight decay
and schedules are functions of these sums, of released vectors and of the number of the round. So they cost no
privacy, and no plan, charge or statement depends on them. What a step remembers (`Moments` in
`coterie.cohort.step`) starts at zero in every call of a door and is dropped at its end: nothing travels from
one call, round or silo to another, and no method has to know of it.

A schedule changes the learning rate from round to round, not within one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import Problem, nearest, shown

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "cosine", "linear", "step")
DROPS = (0.5, 0.75)  # of the rounds: where the schedule "step" divides the learning rate by ten
ADAM = (0.9, 0.999, 1e-8)  # Adam's two decays and what its divisor is at least
NEEDS_PLAIN_STEPS = (
    "'{method}' relies on plain gradient steps of one size: leave out {keys}, or use another method,"
    " such as 'mr-mtl' with a number as lam"
)


@dataclass(frozen=True)
class Optimizer:
    """How to step: the rule, its momentum, weight decay, and the learning rate by round.

    `momentum` is that of SGD, or Adam's first decay. A step also shrinks a model by `lr x weight_decay`,
    apart from the gradient (Loshchilov and Hutter 2019). In the first `warmup` rounds the learning rate rises
    evenly; after that it follows the `schedule`.
    """

    optimizer: str = "sgd"
    momentum: float | None = None
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup: int = 0

    def __post_init__(self) -> None:
        for key, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            value = getattr(self, key)
            if value not in known:
                raise Problem(f"train.{key}: unknown {key} {shown(value)}; {nearest(value, known)}")
        if self.momentum is not None and not (_is_number(self.momentum) and 0 <= self.momentum < 1):
            raise Problem(f"train.momentum: expected a number from 0 to below 1, got {shown(self.momentum)}")
        if not (_is_number(self.weight_decay) and 0 <= self.weight_decay < math.inf):
            raise Problem(
                f"train.weight_decay: expected a finite number >= 0, got {shown(self.weight_decay)}"
            )
        if not isinstance(self.warmup, int) or isinstance(self.warmup, bool) or self.warmup < 0:
            raise Problem(f"train.warmup: expected a whole number of rounds >= 0, got {shown(self.warmup)}")

    @property
    def decay(self) -> float:
        """The momentum, by default none for SGD and that of Adam."""
        return (ADAM[0] if self.optimizer == "adam" else 0.0) if self.momentum is None else self.momentum

    @property
    def is_plain(self) -> bool:
        """Whether each step is that of plain SGD, with whatever learning rate."""
        return self.optimizer == "sgd" and self.decay == 0 and self.weight_decay == 0

    @property
    def changed(self) -> list[str]:
        """The keys of [train] because of which steps are not those of plain SGD with one learning rate."""
        plain = Optimizer()
        keys = ("optimizer", "momentum", "weight_decay", "schedule", "warmup")
        own = [key for key in keys if getattr(self, key) != getattr(plain, key)]
        return [] if self.is_plain and self.schedule == "constant" and not self.warmup else own

    def factor(self, number: int, rounds: int) -> float:
        """Return what the learning rate is multiplied by in a round; they are counted from 0.

        >>> [Optimizer(warmup=2).factor(number, 4) for number in range(4)]
        [0.5, 1.0, 1.0, 1.0]
        >>> [round(Optimizer(schedule="cosine").factor(number, 4), 3) for number in range(4)]
        [1.0, 0.854, 0.5, 0.146]
        """
        if number < self.warmup:
            return (number + 1) / self.warmup
        share = (number - self.warmup) / max(1, rounds - self.warmup)
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * share)) / 2
        if self.schedule == "linear":
            return 1 - share
        if self.schedule == "step":
            return float(0.1 ** sum(share >= drop for drop in DROPS))
        return 1.0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
