"""The noise that ends at the budget: never above it, at most one per cent below."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import Problem
from .accountant import ADJACENCY, epsilon, epsilon_of
from .cache import Cache
from .events import Event, check_delta, grouped
from .gaussian import estimate_noise

MOST_NOISE = 1e6
LEAST_NOISE = 1e-3
MOST_EPSILON = 1000.0
SLACK = 0.01


@dataclass(frozen=True, order=True)
class Target:
    """A budget, the sampled Gaussian steps it must pay for, and what else is released `beside` them."""

    epsilon: float
    delta: float
    rate: float
    steps: int
    beside: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Calibrated:
    """A noise multiplier and the epsilon certified for it."""

    noise: float
    epsilon: float


def check_epsilon(value: float) -> None:
    """Refuse a budget that is none."""
    if math.isnan(value) or value <= 0:
        raise Problem(f"epsilon must be a number > 0, got {value:g}")
    if MOST_EPSILON < value < math.inf:
        raise Problem(
            f"epsilon must be at most {MOST_EPSILON:g}, got {value:g}: that protects nothing; give inf for"
            " no privacy"
        )


def noise_for(target: Target, guess: float | None = None) -> Calibrated:
    """Find the least noise, to one per cent of epsilon, that ends within the budget.

    Formal guarantee: the epsilon returned is the accountant's own for the noise returned,
    it is at most `target.epsilon` and more than 0.99 of it.
    """
    check_epsilon(target.epsilon)
    check_delta(target.delta)
    Event("gaussian", 1.0, target.rate, target.steps)
    if math.isinf(target.epsilon):
        return Calibrated(0.0, math.inf)
    used = -math.expm1(target.steps * math.log1p(-target.rate)) if target.rate < 1 else 1.0
    if used <= target.delta:
        raise Problem(
            f"delta {target.delta:g} is not below {used:.3g}, the chance that an example is used at all: it"
            " would allow to publish every batch without noise; take a smaller delta"
        )
    low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    at = math.log(guess or estimate_noise(target.epsilon, target.delta, target.rate, target.steps))
    at = min(max(at, low), high)
    aim = math.log(target.epsilon * (1 - SLACK / 2))
    known: list[tuple[float, float]] = []
    for _ in range(80):
        found = _certify(math.exp(at), target)
        if target.epsilon * (1 - SLACK) < found <= target.epsilon:
            return Calibrated(math.exp(at), found)
        if found > target.epsilon:
            if at >= math.log(MOST_NOISE):
                break
            low = at
        else:
            high = at
        if 0 < found < math.inf:
            known.append((at, math.log(found)))
            at = next_guess(known, aim, low, high)
        else:
            at = (low + high) / 2
    raise Problem(
        f"epsilon {target.epsilon:g} at delta {target.delta:g} cannot be reached with noise up to"
        f" {MOST_NOISE:g} (rate {target.rate:g}, {target.steps} steps): raise epsilon or delta, or train less"
    )


def _certify(noise: float, target: Target) -> float:
    if not target.beside:
        return epsilon(noise, target.rate, target.steps, target.delta)
    return epsilon_of((Event("gaussian", noise, target.rate, target.steps), *target.beside), target.delta)


def next_guess(known: list[tuple[float, float]], aim: float, low: float, high: float) -> float:
    """Choose the next log-noise: by secant where that stays in the bracket, else by halves."""
    slope = -1.0
    if len(known) > 1 and known[-1][0] != known[-2][0]:
        (a, fa), (b, fb) = known[-2:]
        slope = min((fb - fa) / (b - a), -0.05)
    at, found = known[-1]
    guess = at + (aim - found) / slope
    if len(known) > 8 or not low < guess < high:
        guess = (low + high) / 2 if len(known) > 2 else min(max(guess, low), high)
    return guess


def calibrate(
    targets: Iterable[Target], on_progress: Callable[[int, int], None] | None = None
) -> dict[Target, Calibrated]:
    """Calibrate many budgets; equal ones share one search, near ones start from each other.

    Results are kept on disk (see `kept`).
    """
    wanted = sorted(set(targets))
    cache = Cache("calibration", f"{ADJACENCY}/poisson/pld/4")
    found: dict[Target, Calibrated] = {}
    ratio = 1.0
    for done, target in enumerate(wanted):
        kept = _kept(cache.get(repr(target)), target)
        if kept is None:
            estimate = math.nan
            if target.epsilon > 0 and not math.isinf(target.epsilon):
                estimate = estimate_noise(target.epsilon, target.delta, target.rate, target.steps)
            kept = noise_for(target, None if math.isnan(estimate) else estimate * ratio)
            if estimate > 0:
                ratio = min(max(kept.noise / estimate, 0.2), 5.0)
            if kept.noise > 0:
                cache.put(repr(target), [kept.noise, kept.epsilon])
                _remember(target, kept)
        found[target] = kept
        if on_progress is not None:
            on_progress(done + 1, len(wanted))
    cache.save()
    return found


def _kept(content: Any, target: Target) -> Calibrated | None:
    """Give a kept result if it is one for this target."""
    try:
        noise, found = map(float, content)
    except (TypeError, ValueError):
        return None
    if not (noise > 0 and target.epsilon * (1 - SLACK) < found <= target.epsilon):
        return None
    return Calibrated(noise, found)


def certified(events: tuple[Event, ...], delta: float) -> float:
    """Give the certified epsilon of events; what this process certified itself is not certified again.

    What was kept on disk is not believed here.
    """
    known = _CERTIFIED.get((grouped(events), delta))
    return epsilon_of(events, delta) if known is None else known


_CERTIFIED: dict[tuple[tuple[Event, ...], float], float] = {}


def _remember(target: Target, found: Calibrated) -> None:
    event = Event("gaussian", found.noise, target.rate, target.steps)
    _CERTIFIED[grouped((event, *target.beside)), target.delta] = found.epsilon
