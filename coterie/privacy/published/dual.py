"""What the paper on dual coordinates would report for one of our runs."""

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
    """Return what Hu, Guo, Li, Pei, Gong 2020, theorem 5, reports for the uploads of a dual method.

    Return nothing if the method is another one. `doors` are (name, calls, steps per call). Their symbols
    are set as follows:
    - sigma2 is the multiplier of our noise (in the paper it multiplies 2 xi |d|, which is private);
    - r = 1, so that sigma1 equals sigma2;
    - K is the number of uploads between two updates of the relations: the paper counts one outer round;
    - q is the share of examples that a round touches;
    - p = 1, because the server sees which devices take part;
    - c2 = sqrt(2), which the paper does not state.
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
