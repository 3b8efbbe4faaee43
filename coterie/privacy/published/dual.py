"""What the paper on dual coordinates would report for a run of ours: beside the certified number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..events import Event
from .formulas import DUAL_CONSTANT, DualSetting, Published, dual_epsilon

RATIO = 1.0
DOORS = ("solve_dual", "solve_dual whole")


def published_dual(
    settings: Mapping[str, Any], doors: Sequence[tuple[str, int, int]], events: Sequence[Event], delta: float
) -> tuple[Published, ...]:
    """Give what Hu, Guo, Li, Pei, Gong 2020, theorem 5, reports for uploads of a dual method, if it is one.

    `doors` are (name, calls, steps of a call). Taken are: for sigma2 the multiplier of our noise (in the
    paper that of 2 xi |d|, which is private); r = 1, so that sigma1 is the same; K, the rounds sent between
    two updates of relations, since the paper counts one outer round only; q, the share of examples that a
    round touches; p = 1, since the server sees who is live; c2 = sqrt(2), which the paper does not give.
    """
    used = [door for door in doors if door[0] in DOORS]
    if not used or len(used) != len(doors) or len(events) != 1 or not 0 < events[0].noise < math.inf:
        return ()
    calls = sum(count for _, count, _ in used)
    inner = settings.get("inner")
    if not isinstance(inner, int) or isinstance(inner, bool) or inner < 0:
        return ()
    rounds = min(inner or calls, calls)
    steps = max(each for _, _, each in used)
    rate = min(1.0, events[0].rate * steps)
    epsilon = dual_epsilon(events[0].noise, rounds, delta, DualSetting(1.0, rate, RATIO, DUAL_CONSTANT))
    return (
        Published(
            "Hu, Guo, Li, Pei, Gong 2020",
            f"c2 p sqrt((q^2 + r^2) K log(1/delta)) / sigma, c2 = sqrt(2), p = 1, q = {rate:.3g}, r = 1,"
            f" K = {rounds} of {calls} uploads",
            epsilon,
        ),
    )
