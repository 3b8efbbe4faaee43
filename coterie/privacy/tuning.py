"""The cost of tuning: trying settings on private data and keeping the best one is a release, too.

Train a random number of times, each time with a setting drawn from a public list, and publish only
the best model. Papernot and Steinke 2022 (Hyperparameter Tuning with Renyi Differential Privacy)
bound the cost against anyone who sees the chosen model. Koskela, Redberg and Wang 2024 (Privacy
Profiles for Private Selection) bound it by the privacy profile of one trial. Both bounds hold, so the
smaller one is used. Neither holds against anyone who knows the number of trials or saw the other
trials: the server, and all silos that it broadcasts to. Against them, all trials add up. In general
there is no better bound than that for a fixed number of trials either.
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

PROFILE_POINTS = 1_000  # for the excess, which needs less precision than the epsilon it is added to
COVERED = (
    "the epsilon of the chosen model holds against anyone who sees only that model and its setting, not the"
    " other trials, their scores or their number",
    "the epsilon against the server reveals the number of trials, so do not show it to anyone who receives"
    " the chosen model",
    "the server, and every silo that it broadcasts to, saw all trials, so against them all trials add up",
    "the score that chose the best trial must be public, or noised and part of the trial",
    "the number of trials must be drawn before the first trial, without looking at data, and never changed",
    "each trial must draw its setting at random from one public list, whatever the results of other trials;"
    " each is charged as the costliest setting",
)


@dataclass(frozen=True)
class TuningSpent:
    """What tuning costs a silo: epsilons at one delta.

    `one` is the cost of a single trial, never that of tuning. `chosen` holds against anyone who sees
    only the chosen model, `server` against anyone who saw all trials. `notes` are the assumptions
    behind the numbers, for the statement.
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
    """Return an upper bound on the epsilon against anyone who sees only the chosen model.

    `events` are those of one trial including its score. They are fixed in advance and are the same for
    every setting that may be drawn. The bound is infinite if none is known. If more than `trials.most`
    trials are refused, half of delta pays for that: it must cover (1 + e^epsilon) times the probability.

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
    """Return the Renyi divergences of the best of some trials, from those of one trial, at `ORDERS`.

    Papernot and Steinke 2022, theorem 2 (negative binomial) and theorem 6 (Poisson). In theorem 2 the
    second order may also be 1, where its term is log(1 / gamma) whatever the divergence. Drawing no
    trial at all is an outcome, too. Its probability e^-mean is added to the divergence's sum, which
    matters only for small means. `delta_at` returns a delta of one trial at an epsilon; the default
    derives it from `curve`.
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
    """Return the excess with which the chosen model is (epsilon(delta / mean) + excess, delta)-private.

    `delta_at` returns the delta of one trial at an epsilon; epsilon(.) is its inverse. The proof follows
    Koskela, Redberg and Wang 2024, with the best constant. Let f be the generating function of the number
    of trials. Consider an outcome that one trial beats with probability a. It is chosen with f'(1 - a)
    times its probability in one trial. On a neighbouring data set it is beaten with some probability b,
    and b <= r a + delta_at(log r) for every r >= 1. Since f' <= f'(1) = mean, it is enough that
    e^excess >= f'(1 - a) / f'(1 - b).

    For the negative binomial, the ratio is ((gamma + (1 - gamma) b) / (gamma + (1 - gamma) a))^(1 + shape).
    It is at most r^(1 + shape) as soon as (1 - gamma) delta_at(log r) <= gamma (r - 1). For Poisson, it is
    e^(mean (b - a)), and b - a <= delta_at(0).
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
    """Return the function from epsilon to a delta of one trial, by privacy-loss distribution and by Renyi."""
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
    """Return divergences as numbers >= 0; a divergence that could not be computed counts as infinite."""
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
    """Return an upper bound on the epsilon against the server, which saw every trial: all trials compose.

    `most_trials` is the number of trials that ran, or any larger number. Its randomness neither costs nor
    saves anything: it was drawn in advance and does not depend on data, so it may be known. Given the
    number, this is a composition fixed in advance.
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
    """Return what tuning cost: `ran` trials, drawn from `trials`, each of which released `events`."""
    one = tuple(events)
    check_count(ran)
    if ran == 0 and trials.distribution != "poisson":
        raise Problem(f"a {trials.distribution} number of trials is at least 1, got 0")
    nothing = (
        f"with probability {math.exp(-trials.mean):.2g} no trial is drawn and nothing is chosen; drawing"
        " again would break the guarantee"
    )
    return TuningSpent(
        one=epsilon_of(one, delta, adjacency),
        chosen=chosen_epsilon(one, trials, delta, adjacency),
        server=server_epsilon(one, ran, delta, adjacency),
        delta=delta,
        notes=(*COVERED, nothing) if trials.distribution == "poisson" else COVERED,
    )


def noise_for_tuning(
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    trials: Trials,
    beside: tuple[Event, ...] = (),
    sampler: str = "poisson",
) -> Calibrated:
    """Return the noise of each trial (`steps` sums on samples) that keeps the chosen model in budget.

    With the `sampler` "allocation", `steps` counts passes (see `Event`). `beside` is what else a trial
    releases, such as its score.

    Formal guarantee: the returned epsilon is `chosen_epsilon` of the returned noise, and at most
    `epsilon`. It is more than 0.99 of it, except for a tiny epsilon, where the bound may drop to 0 at once.
    """
    target = Target(epsilon, delta, rate, steps, sampler=sampler)
    single = noise_for(target)
    if math.isinf(epsilon):
        return single
    at, aim = math.log(single.noise), math.log(epsilon * (1 - SLACK / 2))
    low, high, kept = at - math.log(4), math.log(MOST_NOISE), None
    known: list[tuple[float, float]] = []
    while high - low > 1e-5:
        noise = math.exp(at)
        found = chosen_epsilon((target.event(noise), *beside), trials, delta)
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
                f"tuning.most: more than {trials.most} trials are drawn with probability {chance:.2g}, but"
                f" delta covers only {room:.2g}; raise tuning.most or lower tuning.mean"
            )
    if kept is None:
        raise Problem(
            f"epsilon {epsilon:g} at delta {delta:g} cannot be reached for {trials.mean:g} trials on average"
            f" with noise up to {MOST_NOISE:g} (rate {rate:g}, {steps} steps); raise epsilon or delta, or"
            " plan fewer trials"
        )
    return kept


def noise_for_server(epsilon: float, delta: float, rate: float, steps: int, most_trials: int) -> Calibrated:
    """Return the noise of each trial that keeps `most_trials` trials in budget against the server.

    Fix `most_trials` before the number of trials is drawn. Noise that depends on the draw would reveal
    it, and `chosen_epsilon` would not hold (see `chance_above` for the price of refusing more trials).
    """
    check_count(most_trials, least=1)
    Event("gaussian", 1.0, rate, steps)
    return noise_for(Target(epsilon, delta, rate, steps * most_trials))
