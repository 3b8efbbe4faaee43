"""The certified epsilon: an upper bound from privacy-loss distributions.

Adjacency is zero-out: one example is replaced by a null one that adds nothing; sizes are
public. For Poisson-sampled sums this is accounted as add-or-remove, the larger of both
directions (dp-accounting does both).
"""

from __future__ import annotations

import functools
import math
import warnings

from ..errors import Problem
from . import gaussian

ADJACENCY = "zero-out"
POINTS = 5_000
MOST_POINTS = 200_000


def check_sampling(rate: float, steps: int, delta: float) -> None:
    """Refuse numbers that mean nothing."""
    if not 0 < rate <= 1:
        raise Problem(f"rate must be a number in (0, 1], got {rate}")
    if isinstance(steps, bool) or int(steps) != steps or steps < 1:
        raise Problem(f"steps must be a whole number >= 1, got {steps}")
    if not 0 < delta < 1:
        raise Problem(f"delta must be a number in (0, 1), got {delta}")


@functools.lru_cache(maxsize=4096)
def epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """Bound from above the epsilon of `steps` Poisson-sampled Gaussian sums.

    `noise` is the multiplier: the noise's deviation on the sum, over the clip.

    >>> 5.18 < epsilon(5.0, 0.3, 603, 1e-3) < 5.20
    True
    """
    check_sampling(rate, steps, delta)
    if math.isnan(noise) or noise < 0:
        raise Problem(f"noise must be a number >= 0, got {noise}")
    if noise < 1e-6:
        return math.inf
    if math.isinf(noise):
        return 0.0
    if rate == 1:  # full batches compose to one Gaussian exactly
        noise, steps = noise / math.sqrt(steps), 1
    try:
        return _by_distribution(noise, rate, steps, delta)
    except OverflowError:  # so little noise that no finite bound can be computed
        return math.inf


def _by_distribution(noise: float, rate: float, steps: int, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = pld.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=interval(noise, rate, steps, delta)
        )
        whole = one if steps == 1 else one.self_compose(steps)
        found = float(whole.get_epsilon_for_delta(delta))
    if math.isnan(found):
        raise Problem(f"no epsilon can be certified for noise {noise:g}, rate {rate:g}, steps {steps}")
    return found


def shown(bound: float, digits: int = 3) -> str:
    """Show an upper bound: rounded up, never down.

    >>> shown(3.9911, 2)
    '4.00'
    """
    if math.isinf(bound):
        return "none"
    return f"{math.ceil(bound * 10**digits) / 10**digits:.{digits}f}"


def interval(noise: float, rate: float, steps: int, delta: float) -> float:
    """Choose a discretisation: fine against the epsilon to be found, few enough points to be quick.

    Any choice is sound, since the discretisation is pessimistic.
    """
    guess = gaussian.epsilon_of(gaussian.central_limit_mu(noise, rate, steps), delta)
    widest = 10 / noise + 0.5 / noise**2
    return max(guess / POINTS, widest / MOST_POINTS, 1e-8)
