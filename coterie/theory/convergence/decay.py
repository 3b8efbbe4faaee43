"""What a round is worth, and the bounds that follow from it alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import Problem


@dataclass(frozen=True)
class Decay:
    """What a round is worth: E f(next) <= f - slope |gradient f|^2 + added."""

    slope: float
    added: float

    def __post_init__(self) -> None:
        if not self.slope > 0:
            raise Problem("this step size is too large: no decrease of the loss can be shown")


def gradient_bound(decay: Decay, gap: float, rounds: int) -> float:
    """Give a bound on the mean over rounds of E |gradient f|^2, from f - f* = `gap` at the start.

    >>> gradient_bound(Decay(slope=0.5, added=0.1), gap=10.0, rounds=100)
    0.4
    """
    check_count("rounds", rounds)
    return gap / (decay.slope * rounds) + decay.added / decay.slope


def gap_bound(decay: Decay, gap: float, convexity: float, rounds: int) -> float:
    """Give a bound on E f - f* after all rounds, for f that is strongly convex with constant `convexity`.

    Each round keeps 1 - 2 c slope of the distance to a floor added / (2 c slope).

    >>> gap_bound(Decay(slope=0.25, added=0.5), gap=9.0, convexity=1.0, rounds=2)
    3.0
    """
    check_count("rounds", rounds)
    kept = 1 - 2 * convexity * decay.slope
    if not 0 <= kept < 1:
        raise Problem(f"convexity must be above 0 and at most {0.5 / decay.slope:g}, got {convexity:g}")
    floor = decay.added / (1 - kept)
    return floor + kept**rounds * (gap - floor)


def drift_sum(steps: int, gradient: float, noise: float) -> float:
    """Give 1/H sum_{s<H} (s B + sqrt(s V)): how far H local steps of size 1 lead away, on average."""
    return sum(s * gradient + math.sqrt(s * noise) for s in range(steps)) / steps


def check_count(name: str, value: int) -> None:
    """Refuse what is no whole number >= 1."""
    if isinstance(value, bool) or value != int(value) or value < 1:
        raise Problem(f"{name} must be a whole number >= 1, got {value}")


def check_positive(name: str, value: float) -> None:
    """Refuse what is no finite number above 0."""
    if not 0 < value < math.inf:
        raise Problem(f"{name} must be a finite number > 0, got {value:g}")


def check_not_negative(name: str, value: float) -> None:
    """Refuse what is no finite number >= 0."""
    if not 0 <= value < math.inf:
        raise Problem(f"{name} must be a finite number >= 0, got {value:g}")
