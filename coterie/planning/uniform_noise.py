"""One noise for all silos: each takes part until its budget is spent, then it leaves.

This is the uniform strategy of Liu, Lou, Xiong, Liu, Meng (VLDB 2021). The noise is the least at which the
largest budget covers every round; smaller budgets cover fewer. When a silo leaves follows from budgets and
sizes, which are public, so it is known before the training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import Problem
from ..privacy.accountant import epsilon_of
from ..privacy.calibration import Target, calibrate
from ..protocol.doors import DESCEND, Door, Work


def until_spent(
    calls: Sequence[Sequence[Door]],
    work: Sequence[Work],
    budgets: Sequence[float],
    delta: Sequence[float],
    present: Tensor | None,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[float, Tensor]:
    """Return a run's noise multiplier, and which silos take part in which rounds, `[rounds, silos]`."""
    trainings = {tuple(doors) for doors in calls}
    if len(trainings) != 1 or set(next(iter(trainings))) != {DESCEND}:
        raise Problem(
            "budgets: 'uniform' requires a method that only trains, and does the same in every round"
        )
    largest = max(budgets)
    if largest == float("inf"):
        raise Problem("budgets: 'uniform' requires finite budgets")
    each = len(next(iter(trainings)))
    attending = torch.ones(len(calls), len(work), dtype=torch.bool) if present is None else present.clone()
    steps = [own.steps * each * int(attending[:, k].sum()) for k, own in enumerate(work)]
    asked = [
        (d, own.releases(1.0, count))
        for d, own, count, budget in zip(delta, work, steps, budgets, strict=True)
        if count and budget == largest
    ]
    targets = [Target(largest, d, sums.rate, sums.count, sampler=sums.sampler) for d, sums in asked]
    noise = max((calibrated.noise for calibrated in calibrate(targets, on_progress).values()), default=0.0)
    if not targets:
        raise Problem("budgets: 'uniform': no silo with the largest budget takes part in any round")
    for k, own in enumerate(work):
        rounds = attending[:, k].nonzero().flatten().tolist()
        count = affordable(own, noise, each, len(rounds), budgets[k], delta[k])
        attending[rounds[count:], k] = False
    return noise, attending


def affordable(work: Work, noise: float, calls: int, rounds: int, budget: float, delta: float) -> int:
    """Return how many rounds a budget covers in which a silo does its work so many times."""

    def fits(count: int) -> bool:
        return epsilon_of((work.releases(noise, work.steps * calls * count),), delta) <= budget

    if rounds == 0 or fits(rounds):
        return rounds
    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
