"""The cost of tuning: trying settings on private data and keeping the best is a release, too.

Run one private training a random number of times, each time with a setting drawn from a public
list, and give away the best model only. Papernot and Steinke 2022 (Hyperparameter Tuning with
Renyi Differential Privacy) bound what that costs against whoever sees the chosen model; Koskela,
Redberg and Wang 2024 (Privacy Profiles for Private Selection) bound it by the privacy profile
of one trial. Both hold, the smaller is taken. Neither holds against whoever knows the number of
trials, or saw the others: the server, and all silos that it broadcasts to. Against them all
trials add up; nor is there in general a better bound than that for a fixed number of trials.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import Problem
from .accountant import ADJACENCY, LEAST_NOISE, ORDERS, epsilon_of, interval, renyi_curve, rounding
from .calibration import MOST_NOISE, SLACK, Calibrated, Target, next_guess, noise_for
from .events import Event, check_adjacency, check_delta, joined
from .pld.mechanisms import distribution
from .trials import Trials, chance_above, check_count, decay_of, shape_of

PROFILE_POINTS = 1_000  # of the excess, which needs less than the epsilon it is added to
COVERED = (
    "the epsilon of the chosen model holds against whoever sees that model and its setting only: not the"
    " other trials, not their scores, not how many there were",
    "the epsilon against the server tells how many trials there were, so keep it from those who get the"
    " chosen model",
    "the server, and every silo that it broadcasts to, saw all trials: against them all trials add up",
    "the score by which the best trial was chosen must be public or noised and part of the trial",
    "the number of trials must be drawn before the first one, without looking at data, and not be changed",
    "each trial must draw its setting at random from one public list, whatever the other trials gave, and"
    " is charged as the costliest setting",
)


@dataclass(frozen=True)
class TuningSpent:
    """What tuning cost a silo: epsilons at one delta.

    `one` is the cost of a single trial, never that of tuning; `chosen` is against whoever sees
    the chosen model only, `server` against whoever saw all trials that ran. `notes` say, for the
    statement, what the numbers rest on.
    """

    one: float
    chosen: float
    server: float
    delta: float
    notes: tuple[str, ...]


@functools.lru_cache(maxsize=1024)
def chosen_epsilon(
    events: tuple[Event, ...], trials: Trials, delta: float, adjacency: str = ADJACENCY
) -> float:
    """Bound from above the epsilon against whoever sees the chosen model only.

    `events` are those of one trial, its score included, fixed beforehand and the same for every
    setting that may be drawn. Infinite where no bound is known. Where more than `trials.most` are
    refused, half of delta pays for that: (1 + e^epsilon) times its chance must be within it.

    >>> one = (Event("gaussian", 5.0, 0.3, 603),)
    >>> round(chosen_epsilon(one, Trials("geometric", 10.0), 1e-3), 1)
    8.6
    """
    check_delta(delta)
    check_adjacency(adjacency)
    if trials.most is not None:
        found = chosen_epsilon(events, replace(trials, most=None), delta / 2, adjacency)
        lost = (1 + math.exp(min(found, 700))) * chance_above(trials, trials.most)
        return found if lost <= delta / 2 else math.inf
    curve = renyi_curve(events, adjacency)
    delta_at = _profile(events, curve, delta, adjacency)
    one = epsilon_of(events, delta / trials.mean, adjacency)
    by_profile = one + profile_excess(trials, delta_at)
    by_renyi = _converted(selected_curve(curve, trials, delta_at), delta)
    return min(by_profile, by_renyi)


def selected_curve(
    curve: Sequence[float], trials: Trials, delta_at: Callable[[float], float] | None = None
) -> list[float]:
    """Give the Renyi divergences of the best of some trials, from those of one trial, at `ORDERS`.

    Papernot and Steinke 2022, theorem 2 (negative binomial; the second order may also be 1, where
    its term is log(1 / gamma) whatever the divergence) and theorem 6 (Poisson). That there is no
    trial at all is an outcome, too: its chance e^-mean is added to the divergence's sum, which
    matters for small means only. `delta_at` gives a delta of one trial at an epsilon, by default
    from `curve` itself.
    """
    orders, one = np.asarray(ORDERS, dtype=float), _known(curve)
    size = math.log(trials.mean) / (orders - 1)
    if trials.distribution == "poisson":
        known = delta_at or (lambda at: _renyi_delta(curve, at))
        deltas = np.array([known(math.log1p(1 / (order - 1))) for order in orders.tolist()])
        some = (orders - 1) * (one + trials.mean * deltas + size)
        return [float(value) for value in np.logaddexp(-trials.mean, some) / (orders - 1)]
    decay = decay_of(trials)
    second = min(decay, float(np.min((1 - 1 / orders) * one + decay / orders)))
    return [float(value) for value in one + (1 + shape_of(trials)) * second + size]


def profile_excess(trials: Trials, delta_at: Callable[[float], float]) -> float:
    """Give the excess with which the chosen model is (epsilon(delta / mean) + excess, delta)-private.

    `delta_at` gives the delta of one trial at an epsilon, epsilon(.) is its inverse. After
    Koskela, Redberg and Wang 2024, with the best constant. Let f be the generating function of
    the number of trials. An outcome that one trial beats with chance a is chosen with f'(1 - a)
    times its chance in one trial. On a neighbouring data set it is beaten with some chance b, and
    b <= r a + delta_at(log r) for every r >= 1. Since f' <= f'(1) = mean, all that is needed is
    e^excess >= f'(1 - a) / f'(1 - b).

    Negative binomial: the ratio is ((gamma + (1 - gamma) b) / (gamma + (1 - gamma) a))^(1 + shape),
    which is at most r^(1 + shape) as soon as (1 - gamma) delta_at(log r) <= gamma (r - 1). Poisson:
    it is e^(mean (b - a)), and b - a <= delta_at(0).
    """
    if trials.distribution == "poisson":
        return trials.mean * delta_at(0.0)
    decay = decay_of(trials)
    low, high = 0.0, decay
    for _ in range(50):
        middle = (low + high) / 2
        enough = delta_at(middle) * math.expm1(decay) <= math.expm1(middle)
        low, high = (low, middle) if enough else (middle, high)
    return (1 + shape_of(trials)) * high


def _profile(
    events: Iterable[Event], curve: Sequence[float], delta: float, adjacency: str
) -> Callable[[float], float]:
    """Give a function from epsilon to a delta of one trial, by privacy-loss distribution and by Renyi."""
    whole = joined(event for event in events if math.isfinite(event.noise))
    made, spare = None, 0.0
    if whole and all(event.noise >= LEAST_NOISE for event in whole):
        step = interval(whole, delta, adjacency, PROFILE_POINTS)
        try:
            made, spare = distribution(whole, step, adjacency), rounding(whole, step)
        except (OverflowError, MemoryError, ValueError):  # too little noise, or too long a distribution
            made = None

    def delta_at(epsilon: float) -> float:
        if not whole:
            return 0.0
        by_curve = _renyi_delta(curve, epsilon)
        if made is None:
            return by_curve
        return min(by_curve, float(made.delta_at(np.array([epsilon]))[0]) + spare)

    return delta_at


def _known(curve: Sequence[float]) -> np.ndarray:
    """Give divergences as numbers >= 0; one that could not be computed counts as infinite."""
    return np.nan_to_num(np.maximum(curve, 0.0), nan=math.inf, posinf=math.inf)


def _renyi_delta(curve: Sequence[float], epsilon: float) -> float:
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    return float(rdp.compute_delta(ORDERS, _known(curve), epsilon)[0])


def _converted(curve: Sequence[float], delta: float) -> float:
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    return max(0.0, float(rdp.compute_epsilon(ORDERS, _known(curve), delta)[0]))


def server_epsilon(
    events: Iterable[Event], most_trials: int, delta: float, adjacency: str = ADJACENCY
) -> float:
    """Bound from above the epsilon against the server, who saw every trial: all of them compose.

    `most_trials` is the number that ran, or any larger one. That it was drawn at random costs
    nothing and saves nothing: it was drawn beforehand and does not depend on data, so it may be
    known, and given it this is a composition fixed beforehand.
    """
    check_delta(delta)
    check_count(most_trials)
    check_adjacency(adjacency)
    if most_trials == 0:
        return 0.0
    return epsilon_of(tuple(replace(e, count=e.count * most_trials) for e in events), delta, adjacency)


def spent_by_tuning(
    events: Iterable[Event], trials: Trials, ran: int, delta: float, adjacency: str = ADJACENCY
) -> TuningSpent:
    """Give what tuning cost: `ran` trials drawn from `trials`, each of them `events`."""
    one = tuple(events)
    check_count(ran)
    if ran == 0 and trials.distribution != "poisson":
        raise Problem(f"a {trials.distribution} number of trials is at least 1, got 0")
    nothing = (
        f"with chance {math.exp(-trials.mean):.2g} there is no trial and nothing is chosen: do not draw again"
    )
    return TuningSpent(
        one=epsilon_of(one, delta, adjacency),
        chosen=chosen_epsilon(one, trials, delta, adjacency),
        server=server_epsilon(one, ran, delta, adjacency),
        delta=delta,
        notes=(*COVERED, nothing) if trials.distribution == "poisson" else COVERED,
    )


def noise_for_tuning(
    epsilon: float, delta: float, rate: float, steps: int, trials: Trials, beside: tuple[Event, ...] = ()
) -> Calibrated:
    """Find the noise of each trial, `steps` Poisson-sampled sums, with which the chosen model is in budget.

    `beside` is what else a trial releases, as its score.

    Formal guarantee: the epsilon returned is `chosen_epsilon` of the noise returned, and at most
    `epsilon`. It is more than 0.99 of it, save for a tiny epsilon where the bound falls to 0 at once.
    """
    single = noise_for(Target(epsilon, delta, rate, steps))
    if math.isinf(epsilon):
        return single
    at, aim = math.log(single.noise), math.log(epsilon * (1 - SLACK / 2))
    low, high, kept = at - math.log(4), math.log(MOST_NOISE), None
    known: list[tuple[float, float]] = []
    while high - low > 1e-5:
        noise = math.exp(at)
        found = chosen_epsilon((Event("gaussian", noise, rate, steps), *beside), trials, delta)
        if found <= epsilon:
            high, kept = at, Calibrated(noise, found)
        else:
            low = at
        if epsilon * (1 - SLACK) < found <= epsilon:
            break
        if 0 < found < math.inf:
            known.append((at, math.log(found)))
            at = next_guess(known, aim, low, high)
        else:
            at = (low + high) / 2
    if kept is None and trials.most is not None:
        chance, room = chance_above(trials, trials.most), delta / 2 / (1 + math.exp(epsilon))
        if chance > room:
            raise Problem(
                f"tuning.most: more than {trials.most} trials have a chance of {chance:.2g}, delta pays for"
                f" {room:.2g} only: raise tuning.most, or lower tuning.mean"
            )
    if kept is None:
        raise Problem(
            f"epsilon {epsilon:g} at delta {delta:g} cannot be reached for {trials.mean:g} trials on average"
            f" with noise up to {MOST_NOISE:g} (rate {rate:g}, {steps} steps): raise epsilon or delta, or try"
            " less"
        )
    return kept


def noise_for_server(epsilon: float, delta: float, rate: float, steps: int, most_trials: int) -> Calibrated:
    """Find the noise of each trial with which `most_trials` of them are in budget against the server.

    Fix `most_trials` before the number of trials is drawn: noise that follows the draw tells it,
    and then `chosen_epsilon` does not hold (see `chance_above` for what stopping there costs).
    """
    check_count(most_trials, least=1)
    Event("gaussian", 1.0, rate, steps)
    return noise_for(Target(epsilon, delta, rate, steps * most_trials))
