"""What an epsilon means: how sure somebody can become that a unit was used.

Somebody is sure to a share `prior` that a unit was used, sees everything that was released, and applies
Bayes' rule. If L is the privacy loss of what came out, the odds are multiplied by e^L.

**How sure at most.** Let p be the probability of a loss of at least t > epsilon if the unit was used. If it
was not used, the same happens with a probability of at most e^-t p. So (epsilon, delta)-privacy says that
p - e^epsilon e^-t p <= delta, and p <= delta / (1 - e^(epsilon - t)). With t = epsilon + log 2, the odds are
multiplied by at most 2 e^epsilon, except with a probability of 2 delta. All pairs (epsilon, delta) of a
composition together give a smaller t for the same exception. The same holds for becoming sure that the unit
was not used.

**How often right.** Of the best guesses of somebody who was half sure, a share of at most (1 + v) / 2 is
right, where v is delta at epsilon 0, the total variation. For one pair v is at most
(e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh, Viswanath 2015).

Studies find that people understand odds better than epsilons (Nanayakkara and others 2023).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from .accountant import ADJACENCY, LEAST_NOISE, epsilon_of, interval, rounding
from .events import Event, joined
from .pld.grid import Array
from .pld.mechanisms import distribution
from .tradeoff import CERTIFIED, TradeOff, supported

EXCEPTION = 2.0  # the exception's probability, as a multiple of delta
PAIRS = 400
STEEPEST = 700.0
TOLERANCE = 1e-6
ALARMS = np.concatenate([[0.0], np.geomspace(1e-4, 1e-2, 12), np.linspace(0.02, 1.0, 99)])


@dataclass(frozen=True, eq=False)
class Meaning:
    """What a guarantee means for somebody who was half sure that a unit was used.

    They become at most `sure` (a share), except with the probability `exception`. Their best guess is right
    in at most a share `right` of all cases. `odds` is what the odds are multiplied by, at most. `curve` is
    the trade-off that any attack faces.
    """

    sure: float
    exception: float
    right: float
    odds: float
    curve: TradeOff

    def from_prior(self, prior: float) -> float:
        """Return how sure they become at most if they were sure to this share before."""
        return float(expit(math.log(prior / (1 - prior)) + math.log(self.odds)))


def meaning_of(epsilon: float, delta: float, events: Sequence[Event] = ()) -> Meaning:
    """Return what (epsilon, delta) means; with the events that it was certified for, it means less harm.

    If epsilon is more than the events give, as for rounds that were repeated, the events are not used.

    >>> round(meaning_of(1.0, 0.0).right, 3)
    0.731
    """
    given = tuple(event for event in events if math.isfinite(event.noise))
    if not given or delta == 0 or any(event.noise < LEAST_NOISE for event in given):
        return _from_pairs(np.array([epsilon]), np.array([delta]), epsilon, delta)
    if epsilon > epsilon_of(given, delta) * (1 + TOLERANCE):
        return _from_pairs(np.array([epsilon]), np.array([delta]), epsilon, delta)
    return _of_events(given, epsilon, delta)


@functools.lru_cache(maxsize=4096)
def _of_events(events: tuple[Event, ...], epsilon: float, delta: float) -> Meaning:
    whole = joined(events)
    epsilons, deltas = np.array([epsilon]), np.array([delta])
    try:
        step = interval(whole, delta, ADJACENCY)
        made = distribution(whole, step)
        more: Array = np.linspace(0.0, min(1.5 * epsilon + 1e-9, STEEPEST), PAIRS)
        found = np.clip(np.nan_to_num(made.delta_at(more), nan=1.0) + rounding(whole, step), 0.0, 1.0)
        epsilons, deltas = np.append(epsilons, more), np.append(deltas, found)
    except (OverflowError, MemoryError, ValueError):  # too little noise, or too long: the pair alone
        pass
    return _from_pairs(epsilons, deltas, epsilon, delta)


def _from_pairs(epsilons: Array, deltas: Array, epsilon: float, delta: float) -> Meaning:
    exception = EXCEPTION * delta
    loss = _loss(epsilons, deltas, epsilon, exception)
    finite = epsilons < STEEPEST
    steep = np.exp(-np.where(finite, epsilons, STEEPEST))
    variation = float(np.min(np.where(finite, (1 - steep + 2 * deltas * steep) / (1 + steep), 1.0)))
    curve = TradeOff("what was released", CERTIFIED, ALARMS, supported(epsilons, deltas, ALARMS))
    odds = math.exp(min(loss, STEEPEST))
    return Meaning(float(expit(loss)), exception, (1 + min(variation, 1.0)) / 2, odds, curve)


def _loss(epsilons: Array, deltas: Array, epsilon: float, exception: float) -> float:
    """Return a loss that is exceeded with at most this probability; the pair of epsilon always gives one."""
    low, high = 0.0, epsilon + (math.log(EXCEPTION / (EXCEPTION - 1)) if exception else 0.0)
    while high - low > 1e-9 * max(high, 1e-9):
        middle = (low + high) / 2
        below = epsilons < middle
        chances = deltas[below] / -np.expm1(epsilons[below] - middle)
        exceeded = float(chances.min()) if len(chances) else 1.0
        low, high = (low, middle) if exceeded <= exception and exception else (middle, high)
    return high


def percent(share: float) -> str:
    """Return a share as a percentage, rounded up and never to 100 unless it is 1.

    >>> percent(0.73105), percent(0.99995), percent(1.0)
    ('73.2 %', '99.995 %', '100 %')
    """
    if share >= 1:
        return "100 %"
    for digits in range(1 if share < 0.99 else 2, 12):
        shown = math.ceil(100 * share * 10**digits - 1e-9) / 10**digits
        if shown < 100:
            return f"{shown:.{digits}f} %"
    return "almost 100 %"


def meaning_lines(meaning: Meaning, unit: str) -> list[str]:
    """Return what a guarantee means in sentences, about one "example", "person" or "silo"."""
    whose, was = {
        "example": ("your record", "was used"),
        "person": ("your records", "were used"),
        "silo": ("your silo", "took part"),
    }[unit]
    rare = f", except with a probability of at most {meaning.exception:g}" if meaning.exception else ""
    same = ", with the same exception" if meaning.exception else ""
    return [
        f"Someone who is 50 % sure that {whose} {was} can become at most {percent(meaning.sure)} sure of it"
        f" from everything that this run released{rare}.",
        f"Someone who is 1 % sure can become at most {percent(meaning.from_prior(0.01))} sure{same}.",
        "This is the worst case. On average, the best possible guess of someone who is 50 % sure is right in"
        f" at most {percent(meaning.right)} of cases, where blind guessing is right in 50 %.",
    ]
