"""One noise for all silos: each takes part until its budget is spent, then it leaves.

The uniform strategy of Liu, Lou, Xiong, Liu, Meng (VLDB 2021). The noise is the least with which the
largest budget pays for every round; smaller ones pay for fewer. Who leaves when follows from budgets and
sizes, which are public, so it is known before the training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import Problem
from ..privacy.accountant import epsilon
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
    """Give the noise multiplier of all silos of a run, and who takes part when, `[rounds, silos]`."""
    trainings = {tuple(doors) for doors in calls}
    if len(trainings) != 1 or set(next(iter(trainings))) != {DESCEND}:
        raise Problem("budgets: 'uniform' needs a method that only trains, and does the same in every round")
    largest = max(budgets)
    if largest == float("inf"):
        raise Problem("budgets: 'uniform' needs finite budgets")
    each = len(next(iter(trainings)))
    here = torch.ones(len(calls), len(work), dtype=torch.bool) if present is None else present.clone()
    steps = [own.steps * each * int(here[:, k].sum()) for k, own in enumerate(work)]
    asked = zip(delta, work, steps, strict=True)
    targets = [
        Target(largest, d, own.rate, count)
        for (d, own, count), budget in zip(asked, budgets, strict=True)
        if count and budget == largest
    ]
    noise = max((found.noise for found in calibrate(targets, on_progress).values()), default=0.0)
    if not targets:
        raise Problem("budgets: 'uniform': no silo with the largest budget takes part in any round")
    for k, own in enumerate(work):
        rounds = here[:, k].nonzero().flatten().tolist()
        count = affordable(noise, own.rate, own.steps * each, len(rounds), budgets[k], delta[k])
        here[rounds[count:], k] = False
    return noise, here


def affordable(noise: float, rate: float, steps: int, rounds: int, budget: float, delta: float) -> int:
    """Give how many rounds of so many steps a budget pays for."""

    def fits(count: int) -> bool:
        return epsilon(noise, rate, steps * count, delta) <= budget

    if rounds == 0 or fits(rounds):
        return rounds
    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
