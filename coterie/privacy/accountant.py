"""The certified epsilon: bounds from privacy-loss distributions, and from Renyi privacy as a fallback.

Adjacency is zero-out: one unit is replaced by a null unit that contributes nothing, and sizes are
public. For Poisson-sampled sums this is accounted as add-or-remove, the larger of both directions.
Replace-one (one unit replaced by any other) is available on request.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from . import gaussian
from .events import Event, check_adjacency, check_delta, joined
from .pld.lower import lower_epsilon, spread_of
from .pld.mechanisms import distribution

ADJACENCY = "zero-out"
POINTS = 5_000
TIGHT_POINTS = 40_000
MOST_POINTS = 200_000
FINEST_POINTS = 1_000_000
LONGEST = 2_000_000
LEAST_NOISE = 1e-6
MACHINE_TOLERANCE = 1e-6  # the relative difference that two machines may have in an epsilon
ELSEWHERE = 0.9  # the share of the rounding allowance that is applied to statements from other machines
QUICK, TIGHT = (1 / 8,), (1 / 16, 1 / 64, 1 / 256)  # steps of a lower bound's grid, over the spread of a loss
NEAR = 0.998  # a lower bound that is this close to the upper one is close enough
MOST_GUESSED = 1e4  # an epsilon above it is not a guess for a lower bound's grid


@dataclass(frozen=True)
class Bounds:
    """Bounds on an epsilon at a delta; `by` says where the upper bound comes from.

    `by` is "exact" (a closed form), "pld" (privacy-loss distribution), "rdp" (Renyi privacy, if
    no better bound could be computed) or "nothing" (no finite bound).
    """

    upper: float
    lower: float
    rdp: float
    by: str


def epsilon(noise: float, rate: float, steps: int, delta: float, adjacency: str = ADJACENCY) -> float:
    """Return an upper bound on the epsilon of `steps` Poisson-sampled Gaussian sums.

    `noise` is the multiplier: the standard deviation of the noise on the sum, divided by the clip.

    >>> 5.18 < epsilon(5.0, 0.3, 603, 1e-3) < 5.20
    True
    """
    return epsilon_of((Event("gaussian", noise, rate, steps),), delta, adjacency)


def epsilon_of(events: tuple[Event, ...], delta: float, adjacency: str = ADJACENCY) -> float:
    """Return an upper bound on the epsilon of any composition of events that is fixed in advance."""
    return upper_of(events, delta, adjacency)[0]


@functools.lru_cache(maxsize=4096)
def upper_of(events: tuple[Event, ...], delta: float, adjacency: str = ADJACENCY) -> tuple[float, str]:
    """Return the upper bound, and where it comes from (`Bounds.by`)."""
    return _upper(events, delta, adjacency, POINTS)


@functools.lru_cache(maxsize=256)
def bounds(
    events: tuple[Event, ...], delta: float, adjacency: str = ADJACENCY, tight: bool = False
) -> Bounds:
    """Return bounds on the epsilon of a composition of events.

    With `tight`, the upper bound is sharper and there is a lower bound above 0; this takes longer.

    Formal guarantee: lower <= epsilon of the worst data sets <= upper.
    """
    upper, by = upper_of(events, delta, adjacency)
    if tight:
        upper, by = min((upper, by), _upper(events, delta, adjacency, TIGHT_POINTS))
    rdp = renyi_epsilon(events, delta, adjacency)
    if rdp < upper:
        upper, by = rdp, "rdp"
    lower = min(_lower(events, delta, adjacency, TIGHT), upper) if tight else 0.0
    return Bounds(upper, lower, rdp, by)


@functools.lru_cache(maxsize=4096)
def least_of(events: tuple[Event, ...], delta: float, adjacency: str = ADJACENCY) -> float:
    """Return the smallest upper bound that another machine or version could have stated.

    It allows a tenth less for rounding (see `rounding`), far more than machines can differ by.
    """
    return _upper(events, delta, adjacency, POINTS, ELSEWHERE)[0] * (1 - MACHINE_TOLERANCE)


def _upper(
    events: Sequence[Event], delta: float, adjacency: str, points: int, aside: float = 1.0
) -> tuple[float, str]:
    check_delta(delta)
    check_adjacency(adjacency)
    whole = joined(events)
    if not whole or all(math.isinf(event.noise) for event in whole):
        return 0.0, "exact"
    if any(event.noise < LEAST_NOISE for event in whole):
        return math.inf, "nothing"
    if len(whole) == 1 and _is_plain(whole[0]):
        return gaussian.epsilon_of(_reach(adjacency) / whole[0].noise, delta) * (1 + 1e-9) + 1e-12, "exact"
    step = interval(whole, delta, adjacency, points)
    found = _by_losses(whole, delta, adjacency, step, aside)
    finer = _finer(whole, found, points)
    if (adjacency == "replace-one" or points > POINTS) and finer < step / 2:
        found = min(found, _by_losses(whole, delta, adjacency, finer, aside), key=_nan_last)
    if math.isfinite(found):
        return found, "pld"
    found = renyi_epsilon(whole, delta, adjacency)
    return (found, "rdp") if math.isfinite(found) else (math.inf, "nothing")


def _by_losses(whole: Sequence[Event], delta: float, adjacency: str, step: float, aside: float) -> float:
    """Return the upper bound by privacy-loss distributions, or nan if there is none."""
    if rounding(whole, step) > delta / 2:
        return math.nan
    try:
        return _read(whole, step, adjacency, delta - aside * rounding(whole, step))
    except (OverflowError, MemoryError, ValueError):  # too little noise, or too long a distribution
        return math.nan


def _finer(whole: Sequence[Event], found: float, points: int) -> float:
    """Return the step for an epsilon that is already known about, instead of guessed; it may be too small."""
    if not 0 < found < math.inf:
        return math.inf
    count = sum(event.count for event in whole)
    least = max(20 / event.noise + 2 / event.noise**2 for event in whole) / FINEST_POINTS
    return max(min(found / points, math.sqrt(0.004 * found / count)), least)


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def quick_lower(
    events: Sequence[Event], delta: float, adjacency: str = ADJACENCY, aside: float = 1.0
) -> float:
    """Return a lower bound on epsilon, faster than that of `bounds` and up to a few percent below it."""
    check_delta(delta)
    check_adjacency(adjacency)
    return _lower(tuple(events), delta, adjacency, QUICK, aside)


@functools.lru_cache(maxsize=4096)
def _lower(
    events: tuple[Event, ...], delta: float, adjacency: str, shares: tuple[float, ...], aside: float = 1.0
) -> float:
    """Return the best lower bound over some grids; `shares` are their steps over the spread of a loss."""
    whole = joined(events)
    if not whole or all(math.isinf(event.noise) for event in whole):
        return 0.0
    if len(whole) == 1 and _is_plain(whole[0]) and whole[0].noise >= LEAST_NOISE:
        found = gaussian.epsilon_of(_reach(adjacency) / whole[0].noise, delta)
        return max(found * (1 - 1e-9) - 1e-12, 0.0)
    whole = tuple(event for event in whole if LEAST_NOISE <= event.noise < math.inf)
    upper = upper_of(whole, delta, adjacency)[0] if whole else 0.0
    if upper == 0:
        return 0.0
    count = sum(event.count for event in whole)
    fine = math.sqrt(0.02 * min(upper, MOST_GUESSED) / count)
    narrow = min(spread_of(event, adjacency) for event in whole)
    widest = max(10 * reach + reach**2 / 2 for reach in (2 / event.noise for event in whole))
    best = 0.0
    for share in shares:
        step = max(share * min(8 * fine, narrow), widest / MOST_POINTS)
        try:
            best = max(best, lower_epsilon(whole, delta, step, adjacency, aside))
        except (OverflowError, MemoryError, ValueError):
            break
        if best >= NEAR * upper or step == widest / MOST_POINTS:
            break
    return best


def _read(whole: Sequence[Event], step: float, adjacency: str, delta: float) -> float:
    return distribution([e for e in whole if math.isfinite(e.noise)], step, adjacency).epsilon_at(delta)


def _is_plain(event: Event) -> bool:
    return event.mechanism == "gaussian" and event.rate == 1


def _reach(adjacency: str) -> float:
    """Return the sensitivity as a multiple of the clip."""
    return 2.0 if adjacency == "replace-one" else 1.0


def rounding(whole: Sequence[Event], step: float) -> float:
    """Return a bound on what rounding may add to a delta.

    It grows with `count`, since Fourier coefficients are raised to that power.
    """
    fourier = sum(1e-14 * event.count for event in whole)
    curves = sum(1e-15 / step * e.count for e in whole if e.mechanism == "selection" or e.sampler == "fixed")
    passes = sum(1e-14 / step * e.count for e in whole if e.in_passes)
    return 1e-12 + fourier + curves + passes


def interval(whole: Sequence[Event], delta: float, adjacency: str, points: int = POINTS) -> float:
    """Choose the grid's step: fine compared with the expected epsilon, with few enough points to be fast.

    Every choice is sound, because the discretisation is pessimistic.
    """
    square, widest, count = 0.0, 0.0, 0
    for event in whole:
        noise = event.noise / 2 if event.sampler == "fixed" else event.noise / _reach(adjacency)
        square += gaussian.estimated_mu(noise, event.rate, event.releases) ** 2
        widest = max(widest, 10 / noise + 0.5 / noise**2)
        count += event.count
    mu = math.sqrt(square)
    guess = max(gaussian.epsilon_of(mu, delta), mu / 20)
    fine = min(guess / points, math.sqrt(0.004 * guess / count))  # each step moves the mean by interval^2 / 8
    return max(fine, widest / MOST_POINTS, (guess + 10 * mu) / LONGEST, 1e-8)


def renyi_epsilon(events: Iterable[Event], delta: float, adjacency: str = ADJACENCY) -> float:
    """Return an upper bound on epsilon by Renyi privacy: looser, but stable for any number of steps.

    It is infinite if no such bound is known, as for Poisson samples under replace-one.
    """
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    curve = renyi_curve(events, adjacency)
    finite = [pair for pair in zip(ORDERS, curve, strict=True) if math.isfinite(pair[1])]
    if not finite:
        return math.inf
    orders, divergences = zip(*((order, max(value, 0.0)) for order, value in finite), strict=True)
    return max(0.0, float(rdp.compute_epsilon(orders, divergences, delta)[0]))


# Whole numbers: fractional orders are slow, do not always converge, and matter only for very large epsilons.
ORDERS: tuple[int, ...] = (*range(2, 33), *range(36, 65, 4), *range(80, 257, 16), 384, 512, 768, 1024)


@functools.lru_cache(maxsize=1024)
def _renyi_of(event: Event, adjacency: str) -> tuple[float, ...]:
    """Return the Renyi divergence of one release at each order."""
    from dp_accounting import dp_event
    from dp_accounting import privacy_accountant as accountant
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    relation = accountant.NeighboringRelation
    replaced = adjacency == "replace-one"
    if event.noise < LEAST_NOISE:
        return (math.inf,) * len(ORDERS)
    if math.isinf(event.noise):
        return (0.0,) * len(ORDERS)
    if event.mechanism == "selection":  # e^2 / 8 zCDP for losses of range e (Cesar and Rogers 2021)
        reach = 2 / event.noise if replaced else 1 / event.noise
        return tuple(order * reach**2 / 8 for order in ORDERS)
    noise = event.noise / _reach(adjacency)
    if event.sampler == "allocation":  # a pass is at most one release of all units, by convexity
        event = Event("gaussian", event.noise)
    if event.rate < 1 and event.sampler == "fixed":
        sample = math.ceil(event.rate * 1_000_000)
        made: dp_event.DpEvent = dp_event.SampledWithoutReplacementDpEvent(
            1_000_000, sample, dp_event.GaussianDpEvent(event.noise / 2)
        )
        counted = rdp.RdpAccountant(ORDERS, relation.REPLACE_ONE)
    elif event.rate < 1 and replaced:
        return (math.inf,) * len(ORDERS)
    else:
        plain = dp_event.LaplaceDpEvent if event.mechanism == "laplace" else dp_event.GaussianDpEvent
        made = plain(noise) if event.rate == 1 else dp_event.PoissonSampledDpEvent(event.rate, plain(noise))
        counted = rdp.RdpAccountant(ORDERS)
    with np.errstate(all="ignore"):  # of some orders the divergence is infinite
        counted.compose(made)
    return tuple(float(value) for value in counted._rdp)


def renyi_curve(events: Iterable[Event], adjacency: str = ADJACENCY) -> list[float]:
    """Return the Renyi divergence of a composition at each of `ORDERS`; it adds up over events."""
    curve = [0.0] * len(ORDERS)
    for event in joined(events):
        one = _renyi_of(Event(event.mechanism, event.noise, event.rate, 1, event.sampler), adjacency)
        curve = [total + event.count * value for total, value in zip(curve, one, strict=True)]
    return curve


def shown(bound: float | None, digits: int = 3) -> str:
    """Format an upper bound, always rounded up; "none" if it is infinite or None.

    >>> shown(3.9911, 2)
    '4.00'
    """
    if bound is None or math.isinf(bound):
        return "none"
    return f"{math.ceil(bound * 10**digits) / 10**digits:.{digits}f}"


def shown_spent(bound: float) -> str:
    """Format what was spent; a dash if nothing was released, because 0 would look like a guarantee.

    >>> shown_spent(0.0)
    '-'
    """
    return "-" if bound == 0 else shown(bound)
