"""How much a round lowers the loss, and the bounds that follow from this alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import Problem


@dataclass(frozen=True)
class Decay:
    """How much a round lowers the loss: E f(next) <= f - slope |gradient f|^2 + added."""

    slope: float
    added: float

    def __post_init__(self) -> None:
        if not self.slope > 0:
            raise Problem("the step size is too large: the loss cannot be shown to decrease")


def gradient_bound(decay: Decay, gap: float, rounds: int) -> float:
    """Return a bound on the mean over rounds of E |gradient f|^2, where f - f* is `gap` at the start.

    >>> gradient_bound(Decay(slope=0.5, added=0.1), gap=10.0, rounds=100)
    0.4
    """
    check_count("rounds", rounds)
    return gap / (decay.slope * rounds) + decay.added / decay.slope


def gap_bound(decay: Decay, gap: float, convexity: float, rounds: int) -> float:
    """Return a bound on E f - f* after all rounds, if f is strongly convex with constant c = `convexity`.

    Each round shrinks the distance to a floor of added / (2 c slope) by a factor of 1 - 2 c slope.

    >>> gap_bound(Decay(slope=0.25, added=0.5), gap=9.0, convexity=1.0, rounds=2)
    3.0
    """
    check_count("rounds", rounds)
    kept = 1 - 2 * convexity * decay.slope
    if not 0 <= kept < 1:
        raise Problem(
            f"convexity must be a number above 0 and at most {0.5 / decay.slope:g}, got {convexity:g}"
        )
    floor = decay.added / (1 - kept)
    return floor + kept**rounds * (gap - floor)


def drift_sum(steps: int, gradient: float, noise: float) -> float:
    """Return 1/H sum_{s<H} (s B + sqrt(s V)): how far H local steps of size 1 drift on average."""
    return sum(s * gradient + math.sqrt(s * noise) for s in range(steps)) / steps


def check_count(name: str, value: int) -> None:
    """Raise Problem unless `value` is a whole number >= 1."""
    if isinstance(value, bool) or value != int(value) or value < 1:
        raise Problem(f"{name} must be a whole number >= 1, got {value}")


def check_positive(name: str, value: float) -> None:
    """Raise Problem unless `value` is a finite number > 0."""
    if not 0 < value < math.inf:
        raise Problem(f"{name} must be a finite number > 0, got {value:g}")


def check_not_negative(name: str, value: float) -> None:
    """Raise Problem unless `value` is a finite number >= 0."""
    if not 0 <= value < math.inf:
        raise Problem(f"{name} must be a finite number >= 0, got {value:g}")
