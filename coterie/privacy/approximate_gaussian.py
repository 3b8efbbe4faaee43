"""Approximate Gaussian privacy: a composition as one Gaussian release and a small chance of telling all.

**Definition.** A mechanism is (mu, delta0)-approximately Gaussian if its trade-off curve lies nowhere below
that of the pair which tells the data set with probability delta0, and else releases N(0, 1) or N(mu, 1). In
terms of epsilons, in both directions and for all epsilon >= 0,

    delta(epsilon)  <=  delta0 + (1 - delta0) delta_mu(epsilon),

where delta_mu is that of the Gaussian mechanism (`gaussian.delta_of`). By Blackwell's theorem the mechanism
is then a post-processing of that pair (Dong, Roth, Su 2022, theorem 2.10).

**Certifying it.** delta(epsilon) falls with epsilon, so on an interval it is at most its value at the left
end, while delta_mu is at least its value at the right end. Comparing the two at neighbouring points of a grid
proves the inequality between them. The grid ends where delta(epsilon) <= delta0, so nothing is left to prove
beyond. The values come from the composition's privacy-loss distribution, which bounds them from above.

**Any other guarantee.** Whatever is (epsilon, delta0)-private is (mu, delta0)-approximately Gaussian with
mu = 2 Phi^-1(e^epsilon / (1 + e^epsilon)): telling one bit with a randomised response of that epsilon is a
post-processing of N(0, 1) against N(mu, 1). This serves where there is no distribution to compare.

**Runs that are chosen one after another.** Let each run be chosen after all earlier results, and let a filter
stop before the sum of mu^2 exceeds B^2 or the sum of delta0 exceeds D, both fixed. Each run is a
post-processing of its pair, so we may take it for that pair. Let P and Q be the transcripts on two
neighbouring data sets, and P* and Q* those without the telling. Something is told with a probability of at
most D. For an event S let w be the probability, given a transcript, that nothing was told. Then

    P(S) - e^epsilon Q(S)  <=  D + E_P*[w 1_S] - e^epsilon E_Q*[w 1_S]  <=  D + delta_B(epsilon).

The second step holds because w 1_S is a test with values in [0, 1], and because P* and Q* are a fully
adaptive composition of Gaussian mechanisms, which is B-Gaussian (Smith and Thakurta 2022; Koskela, Tobaben
and Honkela 2023). So all runs together are (epsilon, D + delta_B(epsilon))-private. The ledger's filter takes
a tenth of a budget's delta for D, and for B the largest mu that is private with the budget's epsilon and the
rest of its delta.

**When it pays.** The squares of mu grow like the number of runs, as in Renyi privacy, but nothing is lost in
turning them into an epsilon. A run of many steps is nearly Gaussian. A short run on small samples has heavier
tails, which mu has to cover; there Renyi privacy may be better (`python -m benchmarks filters`).
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import log_expit, ndtri_exp

from . import gaussian
from .accountant import (
    ADJACENCY,
    LEAST_NOISE,
    POINTS,
    _finer,
    _is_plain,
    _reach,
    epsilon_of,
    interval,
    rounding,
)
from .events import Event, check_adjacency, check_delta, joined
from .pld.grid import Array
from .pld.mechanisms import distribution, gaussian_delta

MOST_POINTS = 20_000
SHARES = (1000, 10)
PRECISION = 1e-5  # of mu, relatively; it is rounded up


def approximation(events: tuple[Event, ...], delta: float, adjacency: str = ADJACENCY) -> tuple[float, float]:
    """Return (mu, delta0) of a composition, with a delta0 far below delta; mu hardly depends on it.

    Gaussian releases without sampling need no delta0. The share of delta is larger where rounding would
    reach a smaller one.
    """
    whole = joined(event for event in events if math.isfinite(event.noise))
    if not whole or (len(whole) == 1 and _is_plain(whole[0])):
        return approximate_mu(whole, delta / SHARES[0], adjacency), 0.0
    for share in SHARES:
        delta0 = delta / share
        if rounding(whole, interval(whole, delta0, adjacency)) <= delta0 / 2:
            break
    return approximate_mu(whole, delta0, adjacency), delta0


@functools.lru_cache(maxsize=4096)
def approximate_mu(events: tuple[Event, ...], delta0: float, adjacency: str = ADJACENCY) -> float:
    """Return a mu for which a composition, fixed in advance, is (mu, delta0)-approximately Gaussian.

    It is infinite if no bound is finite. Gaussian releases without sampling are exactly Gaussian, for any
    delta0.

    >>> approximate_mu((Event("gaussian", 2.0, count=16),), 1e-6)
    2.0
    """
    check_delta(delta0)
    check_adjacency(adjacency)
    whole = joined(event for event in events if math.isfinite(event.noise))
    if not whole:
        return 0.0
    if any(event.noise < LEAST_NOISE for event in whole):
        return math.inf
    if len(whole) == 1 and _is_plain(whole[0]):
        return _reach(adjacency) / whole[0].noise
    most = mu_of(epsilon_of(whole, delta0, adjacency))
    try:
        epsilons, deltas = _curve(whole, delta0, adjacency)
    except (OverflowError, MemoryError, ValueError):
        return most
    low, high = 0.0, most
    if not _holds(epsilons, deltas, delta0, high):
        return most
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _holds(epsilons, deltas, delta0, middle) else (middle, high)
    return high


def mu_of(epsilon: float) -> float:
    """Return the mu of epsilon-privacy: 2 Phi^-1(e^epsilon / (1 + e^epsilon)), rounded up.

    >>> round(mu_of(1.0), 4)
    1.2302
    """
    if epsilon == 0 or math.isinf(epsilon):
        return epsilon
    return float(-2 * ndtri_exp(log_expit(-epsilon))) * (1 + 1e-9)


@functools.lru_cache(maxsize=1024)
def mu_within(epsilon: float, delta: float) -> float:
    """Return the largest mu at which the Gaussian mechanism is (epsilon, delta)-private, rounded down."""
    low, high = 0.0, 1.0
    while gaussian.delta_of(high, epsilon) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian.delta_of(middle, epsilon) <= delta else (low, middle)
    return low * (1 - 1e-9)


def _curve(whole: tuple[Event, ...], delta0: float, adjacency: str) -> tuple[Array, Array]:
    """Return epsilons from 0 on, and upper bounds on a composition's deltas; the last is below delta0."""
    step = interval(whole, delta0, adjacency)
    finer = _finer(whole, epsilon_of(whole, delta0, adjacency), POINTS)
    if finer < step / 2 and rounding(whole, finer) <= delta0 / 2:
        step = finer
    spare = rounding(whole, step)
    if spare > delta0 / 2:
        raise ValueError("the rounding of a distribution reaches delta0")
    made = distribution(whole, step, adjacency)
    last = made.epsilon_at(delta0 - spare)
    if not math.isfinite(last):
        raise ValueError("a distribution has no finite epsilon at delta0")
    points = min(math.ceil(last / step) + 1, MOST_POINTS)
    epsilons: Array = np.linspace(0.0, last * (1 + 1e-12), max(points, 2))
    return epsilons, np.clip(np.nan_to_num(made.delta_at(epsilons), nan=1.0) + spare, 0.0, 1.0)


def _holds(epsilons: Array, deltas: Array, delta0: float, mu: float) -> bool:
    """Return whether the inequality holds for all epsilons: left ends of intervals against right ends."""
    allowed = delta0 + (1 - delta0) * gaussian_delta(epsilons[1:], mu)
    return bool(np.all(deltas[:-1] <= allowed))
