"""A learning rate from public facts: clip, noise, batch, number of steps and size of the model.

Projected SGD with gradients of root mean square length G gets from a start to a solution at distance D best
with the rate D / (G sqrt(T)) in T steps (Nemirovski and others 2009). With clip C, noise multiplier sigma,
expected batch B and P parameters, the noisy mean gradient of a step has at most

    G = C sqrt(1 + P (sigma / B)^2).

All of that is public once a plan is made. Only D is not known. The constants below were chosen on some small
data sets and tried on others (`docs/learning_rates.md`). Scores of classes have to become several units
large, and numbers between 0 and 1 only a fraction of one, so there is one constant for each.

Without a clip (no privacy, or the unit 'silo') gradients have no known length, so the rate is a constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import Problem
from ..planning.plan import Plan
from ..planning.training import Training, takes_plain_steps
from ..privacy.budget import PerSilo, per_silo
from ..protocol.doors import Work
from ..protocol.method import Method
from ..tasks.task import Task

AUTO = "auto"
DISTANCE = {"classes": 30.0, "numbers": 0.5}  # from start to solution
LARGEST = 3.0  # times one over the clip: longer steps overshoot even without noise
UNCLIPPED = {"classes": 0.1, "numbers": 0.01}
ADAM = {"classes": 0.03, "numbers": 0.01}
NEEDS_RANGE = (
    "train.lr: 'auto' takes a number to predict to lie between 0 and 1; load the data with target_range"
    " (public bounds), or set a learning rate"
)


def numbers_of(value: PerSilo, names: Sequence[str]) -> list[float]:
    """Return each silo's learning rate; NaN where it will follow from the plan."""
    if value == AUTO:
        return [math.nan] * len(names)
    if isinstance(value, str):
        raise Problem(f"train.lr: expected a number > 0 or 'auto', got '{value}'")
    rates = per_silo("train.lr", value, names)
    for rate in rates:
        if not 0 < rate < 1e38:
            raise Problem(f"train.lr: expected a number > 0 or 'auto', got {rate:g}")
    return rates


def chosen(
    given: Tensor, task: Task, plan: Plan, clip: Tensor, work: Sequence[Work], training: Training
) -> Tensor:
    """Return the learning rates `[runs, silos]`: those given, and automatic ones in place of NaN.

    `clip` bounds gradients; it is infinite for silos without privacy.
    """
    kind, optimizer = "classes" if task.classes else "numbers", training.optimizer
    if optimizer.optimizer == "adam":
        return torch.where(given.isnan(), ADAM[kind], given)
    expected = given.new_tensor([each.expected for each in work])
    steps = given.new_tensor([float(training.rounds * each.steps) for each in work])
    noise = torch.where(clip.isinf(), 0.0, plan.noise().to(given))
    length = (1 + task.layout.size * (noise / expected).square()).sqrt() * steps.sqrt()
    rate = (DISTANCE[kind] / length).clamp(max=LARGEST) / clip
    rate = torch.where(clip.isinf(), UNCLIPPED[kind], rate) * (1 - optimizer.decay)
    return torch.where(given.isnan(), rate, given)


def slowness(noise: float, expected: float, steps: int, size: int) -> float:
    """Return G / (C sqrt(T)): how far T noisy steps may stay from the best loss, as a share of D x clip.

    It is the bound of projected SGD with the best rate, which `rate_for` is.
    """
    return math.sqrt((1 + size * (noise / expected) ** 2) / steps)


def rate_for(kind: str, clip: float, noise: float, expected: float, steps: int, size: int) -> float:
    """Return the automatic rate of one silo, for the "classes" or "numbers" of a task."""
    return min(DISTANCE[kind] / (slowness(noise, expected, steps, size) * steps), LARGEST) / clip


def remarks(given: Tensor, rates: Tensor) -> list[str]:
    """Return a note about automatic learning rates; none if all were given."""
    if not bool(given.isnan().any()):
        return []
    low, high = (float(end) for end in rates[given.isnan()].aminmax())
    found = f"{low:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g}"
    return [f"train.lr = 'auto' is {found}, from clip, noise, batch, steps and the model's size"]


def proximal(given: Tensor, method: Method) -> Tensor | None:
    """Return where a step balances gradient and pull whatever its rate; None if nowhere."""
    return given.isnan() if bool(given.isnan().any()) and not takes_plain_steps(method) else None
