"""Calibration: the noise that spends a budget, never more than it and at most one percent less."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import Problem
from .accountant import ADJACENCY, epsilon_of
from .cache import Cache
from .events import Event, check_delta, grouped
from .gaussian import estimate_noise

MOST_NOISE = 1e6
LEAST_NOISE = 1e-3
MOST_EPSILON = 1000.0
SLACK = 0.01


@dataclass(frozen=True, order=True)
class Target:
    """A budget, the sampled Gaussian steps it must cover, and what else is released `beside` them.

    With the sampler "allocation", `steps` counts passes over the data (see `Event`).
    """

    epsilon: float
    delta: float
    rate: float
    steps: int
    beside: tuple[Event, ...] = ()
    sampler: str = "poisson"

    def event(self, noise: float) -> Event:
        """Return the steps with a noise multiplier."""
        return Event("gaussian", noise, self.rate, self.steps, self.sampler)

    def estimate(self) -> float:
        """Return the noise multiplier that the central limit gives."""
        return estimate_noise(self.epsilon, self.delta, self.rate, self.event(1.0).releases)


@dataclass(frozen=True)
class Calibrated:
    """A noise multiplier, and the epsilon certified for it."""

    noise: float
    epsilon: float


def check_epsilon(value: float) -> None:
    """Raise `Problem` unless the value can be a budget."""
    if math.isnan(value) or value <= 0:
        raise Problem(f"epsilon must be a number > 0, got {value:g}")
    if MOST_EPSILON < value < math.inf:
        raise Problem(
            f"epsilon must be at most {MOST_EPSILON:g}, got {value:g}, which protects nothing; use inf for"
            " no privacy"
        )


def noise_for(target: Target, guess: float | None = None) -> Calibrated:
    """Return the smallest noise that stays within the budget, to one percent of epsilon.

    Formal guarantee: the returned epsilon is the accountant's own for the returned noise.
    It is at most `target.epsilon` and more than 0.99 of it.
    """
    check_epsilon(target.epsilon)
    check_delta(target.delta)
    target.event(1.0)
    if math.isinf(target.epsilon):
        return Calibrated(0.0, math.inf)
    drawn = target.rate < 1 and target.sampler != "allocation"
    used = -math.expm1(target.steps * math.log1p(-target.rate)) if drawn else 1.0
    if used <= target.delta:
        raise Problem(
            f"delta {target.delta:g} is not below {used:.3g}, the probability that an example is used at all,"
            " so it permits publishing every batch without noise; choose a smaller delta"
        )
    low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    at = math.log(guess or target.estimate())
    at = min(max(at, low), high)
    aim = math.log(target.epsilon * (1 - SLACK / 2))
    known: list[tuple[float, float]] = []
    for _ in range(80):
        found = _certify(math.exp(at), target)
        if _spends(found, target):
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
        f" {MOST_NOISE:g} (rate {target.rate:g}, {target.steps} steps); raise epsilon or delta, or train less"
    )


def _certify(noise: float, target: Target) -> float:
    return epsilon_of((target.event(noise), *target.beside), target.delta)


def next_guess(known: list[tuple[float, float]], aim: float, low: float, high: float) -> float:
    """Choose the next log-noise: by the secant method inside the bracket, else by bisection."""
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
    """Calibrate many budgets: equal ones share a search, and each search starts near the last result.

    The noise is cached on disk (see `cache`), which spares the search. Its epsilon is certified anew, so a
    wrong cache costs time and nothing else.
    """
    wanted = sorted(set(targets))
    cache = Cache("calibration", f"{ADJACENCY}/poisson/pld/5")
    found: dict[Target, Calibrated] = {}
    ratio = 1.0
    for done, target in enumerate(wanted):
        calibrated = _from_cache(cache.get(repr(target)), target)
        if calibrated is None:
            estimate = math.nan
            if target.epsilon > 0 and not math.isinf(target.epsilon):
                estimate = target.estimate()
            calibrated = noise_for(target, None if math.isnan(estimate) else estimate * ratio)
            if estimate > 0:
                ratio = min(max(calibrated.noise / estimate, 0.2), 5.0)
            if calibrated.noise > 0:
                cache.put(repr(target), calibrated.noise)
        if calibrated.noise > 0:
            _remember(target, calibrated)
        found[target] = calibrated
        if on_progress is not None:
            on_progress(done + 1, len(wanted))
    cache.save()
    return found


def _from_cache(content: Any, target: Target) -> Calibrated | None:
    """Return the cached noise with its epsilon, certified anew; None if it does not spend this budget."""
    if not isinstance(content, float) or not LEAST_NOISE <= content <= MOST_NOISE:
        return None
    found = _certify(content, target)
    return Calibrated(content, found) if _spends(found, target) else None


def _spends(found: float, target: Target) -> bool:
    return target.epsilon * (1 - SLACK) < found <= target.epsilon


def certified(events: tuple[Event, ...], delta: float) -> float:
    """Return the certified epsilon of events, reusing what this process has certified before."""
    known = _CERTIFIED.get((grouped(events), delta))
    return epsilon_of(events, delta) if known is None else known


_CERTIFIED: dict[tuple[tuple[Event, ...], float], float] = {}


def _remember(target: Target, found: Calibrated) -> None:
    _CERTIFIED[grouped((target.event(found.noise), *target.beside)), target.delta] = found.epsilon
