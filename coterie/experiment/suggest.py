"""A first setting of a training, from public facts: method, rounds, batch and learning rate.

Rounds and batch minimise the bound of projected SGD for noisy gradients (`learning_rate.slowness`) over a
small grid, at the noise that the accountant finds for each: of all settings within `ENOUGH` of the best, the
one with the fewest rounds, then the smallest batch. The bound is that of the middle silo. Where silos join,
their noise averages out, so that it counts as divided by the root of their number. The method follows from
the forecast of `advise`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..data.federation import Federation
from ..errors import Problem, plainly
from ..planning.training import Training
from ..privacy.budget import Privacy
from ..privacy.calibration import Target, calibrate
from ..protocol.doors import Work
from . import learning_rate
from .advise import Advice, advise
from .from_arguments import task_of

ROUNDS = (10, 20, 40, 80)
BATCHES = (16, 32, 64, 128, 256)
ENOUGH = 1.15  # times the best bound
ALIKE = 1.05  # times the error of MR-MTL: how little FedAvg may lose to count as enough


@dataclass(frozen=True)
class Suggestion:
    """What to try first, and why; `lr` is what "auto" chooses for the middle silo."""

    method: str
    rounds: int
    batch: int
    lr: float
    reasons: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return the suggestion as plain data."""
        return {**vars(self), "reasons": list(self.reasons)}


@plainly
def suggest(
    federation: Federation,
    privacy: Privacy,
    *,
    model: Any = "linear",
    loss: Any = "auto",
    model_options: Mapping[str, Any] | None = None,
) -> Suggestion:
    """Suggest a method, rounds, a batch and a learning rate from sizes, budgets and the size of the model.

    Nothing is trained and no example is read. Budgets must be one setting, not a list.
    """
    forecasts = advise(federation, privacy)
    if len(forecasts) > 1:
        raise Problem("a suggestion is for one setting: give one epsilon and one clip, not a list")
    task = task_of(model, federation, loss, model_options)
    return suggestion(forecasts[0], task.layout.size, "classes" if task.classes else "numbers")


def suggestion(advice: Advice, size: int, kind: str) -> Suggestion:
    """Return the suggestion for a forecast and a model with this many trained parameters."""
    method, why = _method(advice)
    together = 1 if method == "local" else len(advice.names)
    k = _middle(advice)
    examples, clip = int(_sizes(advice)[k]), float(advice.clip[k])
    tried = [(rounds, batch) for rounds in ROUNDS for batch in BATCHES if batch < examples]
    tried = tried or [(rounds, examples) for rounds in ROUNDS]
    works = [_work(examples, rounds, batch) for rounds, batch in tried]
    targets = [Target(advice.epsilon[k], advice.delta[k], work.rate, work.steps) for work in works]
    found = calibrate(targets)
    noises = [found[target].noise for target in targets]
    bounds = [
        learning_rate.slowness(noise / math.sqrt(together), work.expected, work.steps, size)
        for noise, work in zip(noises, works, strict=True)
    ]
    place = next(place for place, bound in enumerate(bounds) if bound <= ENOUGH * min(bounds))
    (rounds, batch), work, noise = tried[place], works[place], noises[place]
    lr = learning_rate.rate_for(kind, clip, noise, work.expected, work.steps, size)
    reasons = (
        why,
        f"rounds, batch: for '{advice.names[k]}', the middle silo ({examples} {advice.unit}s, epsilon"
        f" {advice.epsilon[k]:g}), of the fewest rounds that come within {ENOUGH - 1:.0%} of the best bound",
        f"lr: 'auto' is {lr:.2g} there, for {size:,} parameters and noise {noise:.3g} per step",
    )
    return Suggestion(method, rounds, batch, float(f"{lr:.2g}"), reasons)


def _work(examples: int, rounds: int, batch: int) -> Work:
    """Return the work of a whole training, one pass per round."""
    each = Training(rounds=rounds, batch=batch).work(examples)
    return Work(each.size, each.batch, rounds * each.steps)


def _sizes(advice: Advice) -> Any:
    return advice.circle.examples


def _middle(advice: Advice) -> int:
    """Return the silo whose size x epsilon is the median of those with a budget."""
    private = [k for k, epsilon in enumerate(advice.epsilon) if math.isfinite(epsilon)]
    private.sort(key=lambda k: (_sizes(advice)[k] * advice.epsilon[k], k))
    return private[len(private) // 2]


def _method(advice: Advice) -> tuple[str, str]:
    """Return a method, and why: by how many silos gain at both ends of the assumed differences."""
    silos, high = len(advice.names), advice.high
    if 2 * advice.throughout <= silos:
        return "local", (
            f"method: only {advice.throughout} of {silos} silos are forecast to gain by joining, however much"
            " silos differ within the assumed range"
        )
    shares = advice.circle.shares
    fedavg, mr_mtl = (float((shares * errors).sum()) for errors in (high.fedavg, high.mr_mtl))
    if fedavg <= ALIKE * mr_mtl:
        return "fedavg", (
            "method: noise outweighs the differences between silos, so one model for all loses nothing"
        )
    return "mr-mtl", (
        f"method: {advice.throughout} of {silos} silos are forecast to gain by joining; with lam = 'auto' the"
        " pull needs no tuning"
    )
