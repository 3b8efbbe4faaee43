"""Recompute a stated epsilon with dp-accounting, which shares no arithmetic with our own accountant.

Planning and charging use `accountant`. Whoever verifies a statement or a ledger uses this module: here
dp-accounting (by Google) makes, rounds, composes and reads the privacy losses, so that a mistake in one of
the two is found. Every step of dp-accounting is pessimistic, so it *confirms* a stated epsilon that is not
below its own.

dp-accounting knows Gaussian and Laplace noise, on all units or on Poisson samples. It does not know samples
of a fixed size or private choices. It is given the curve delta(epsilon) of one such release, written down
here from the paper, and does the rest (`Recheck.curves` names them). It does not know passes by random
allocation either: those it can only confirm as if they were not sampled. There are three verdicts:

- "confirmed": the stated epsilon is at least dp-accounting's, to a ten-thousandth (`TOLERANCE`), which is
  what its grid may cost; or at least its bound by Renyi privacy.
- "refuted": the stated epsilon is below dp-accounting's lower estimate, or, for Gaussian noise, further below
  the upper one than its grid explains: a grid four times as fine moves the upper one by less.
- "undecided": dp-accounting's bound is looser than the stated epsilon, and a finer grid is not affordable
  (more than `MOST_POINTS` losses). Then our own accountant decides, and whoever verifies is told so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as losses
from dp_accounting.pld import privacy_loss_mechanism as mechanisms
from dp_accounting.privacy_accountant import NeighboringRelation
from numpy.typing import NDArray

from .accountant import ADJACENCY, LEAST_NOISE, renyi_epsilon
from .events import Event, check_adjacency, check_delta, grouped

VERDICTS = ("confirmed", "undecided", "refuted")
TOLERANCE = 1e-4
GRIDS = (4e-4, 2.5e-5, 1.5e-6)  # the share of epsilon that rounding to the grid may cost, about
MOST_POINTS = 2**22
MOST_RELEASES = 10**9  # with more, rounding in Fourier transforms would reach any delta
STAGE = 1000  # dp-accounting composes a few releases much faster than many
TAIL = 1e-15
LOWER = 0.5  # of Renyi's epsilon: about where the true one lies at least
Array = NDArray[np.float64]
Curve = Callable[[Array], Array]


@dataclass(frozen=True)
class Recheck:
    """What dp-accounting says about a stated epsilon.

    `epsilon` is its own upper bound, by "privacy-loss distributions", "Renyi privacy" or "closed form".
    `curves` names the mechanisms whose curve it was given.
    """

    verdict: str
    stated: float
    epsilon: float
    by: str
    curves: tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def recheck(events: tuple[Event, ...], delta: float, stated: float, adjacency: str = ADJACENCY) -> Recheck:
    """Return whether dp-accounting confirms that events have at most the stated epsilon at delta."""
    check_delta(delta)
    check_adjacency(adjacency)
    whole = tuple(event for event in grouped(events) if math.isfinite(event.noise))
    curves = tuple(sorted({name for name in map(_curve_name, whole) if name}))
    if not whole or math.isinf(stated):
        return Recheck("confirmed", stated, 0.0 if not whole else math.inf, "closed form")
    if any(event.noise < LEAST_NOISE for event in whole):
        return Recheck("refuted", stated, math.inf, "closed form")
    if any(event.in_passes for event in whole):
        more = recheck(_unsampled(whole), delta, stated, adjacency)
        return more if more.verdict == "confirmed" else replace(more, verdict="undecided")
    plain = _plain_noise(whole)
    if plain is not None:
        return _by_closed_form(plain / _reach(adjacency), delta, stated)
    renyi = renyi_epsilon(whole, delta, adjacency)
    smooth = all(
        event.mechanism == "gaussian" for event in whole
    )  # others have losses of positive probability
    found: list[float] = []
    about = max(LOWER * renyi if renyi < 1e9 else 0.0, stated)
    for share, scale, finest in zip(GRIDS, (about, about, stated), (False, False, True), strict=True):
        step, affordable = _step(whole, adjacency, share * scale, finest)
        found.append(_epsilon(whole, delta, adjacency, step))
        if _covers(stated, found[-1]):
            return Recheck("confirmed", stated, found[-1], "privacy-loss distributions", curves)
        if not affordable or (smooth and _is_far_below(stated, found)):
            break
    if _covers(stated, renyi):
        return Recheck("confirmed", stated, renyi, "Renyi privacy")
    below = smooth and _is_far_below(stated, found)
    if not below and not curves:
        below = stated < _epsilon(whole, delta, adjacency, step, pessimistic=False)
    verdict = "refuted" if below else "undecided"
    return Recheck(verdict, stated, found[-1], "privacy-loss distributions", curves)


def recheck_mu(
    events: tuple[Event, ...], delta0: float, mu: float, adjacency: str = ADJACENCY
) -> bool | None:
    """Return whether dp-accounting confirms that events are (mu, delta0)-approximately Gaussian.

    Its delta at many epsilons may exceed what mu and delta0 allow by a percent, for its grid. None means
    that it cannot tell.
    """
    whole = tuple(event for event in grouped(events) if math.isfinite(event.noise))
    if any(event.in_passes for event in whole):
        return recheck_mu(_unsampled(whole), delta0, mu, adjacency) or None
    plain = _plain_noise(whole) if whole else math.inf
    if plain is not None:
        return mu >= _reach(adjacency) / plain * (1 - TOLERANCE)
    about = recheck(whole, max(delta0, 1e-12), 0.0, adjacency).epsilon
    step, affordable = _step(whole, adjacency, GRIDS[1] * about if math.isfinite(about) else 1.0, False)
    made = _composed(whole, adjacency, step) if affordable else None
    if made is None:
        return None
    epsilons = np.linspace(0.0, about, 200)
    loss = mechanisms.GaussianPrivacyLoss(1 / mu, adjacency_type=mechanisms.AdjacencyType.ADD)
    allowed = delta0 + (1 - delta0) * np.asarray(loss.get_delta_for_epsilon(epsilons))
    return bool(np.all(np.asarray(made.get_delta_for_epsilon(epsilons)) <= allowed * 1.01))


def _is_far_below(stated: float, found: Sequence[float]) -> bool:
    """Return whether the last two grids differ by less than what the stated epsilon is below."""
    if len(found) < 2 or not math.isfinite(found[-2]):
        return False
    return stated < found[-1] * (1 - TOLERANCE) - 2 * (found[-2] - found[-1])


def _unsampled(whole: Sequence[Event]) -> tuple[Event, ...]:
    """Return events with each pass by random allocation as one release of all units, which tells more."""
    return tuple(replace(event, rate=1.0, sampler="poisson") if event.in_passes else event for event in whole)


def _covers(stated: float, bound: float) -> bool:
    return stated >= bound * (1 - TOLERANCE) - 1e-9


def _reach(adjacency: str) -> float:
    return 2.0 if adjacency == "replace-one" else 1.0


def _curve_name(event: Event) -> str | None:
    if event.mechanism == "selection":
        return "private choice"
    return "sample of fixed size" if event.sampler == "fixed" and event.rate < 1 else None


def _plain_noise(whole: Sequence[Event]) -> float | None:
    """Return the noise of one Gaussian release that equals all of these; None if others are among them."""
    if any(event.mechanism != "gaussian" or event.rate < 1 for event in whole):
        return None
    return 1 / math.sqrt(math.fsum(event.count / event.noise**2 for event in whole))


def _by_closed_form(noise: float, delta: float, stated: float) -> Recheck:
    """Compare delta at the stated epsilon; a ten-thousandth more of epsilon must be enough."""
    loss = mechanisms.GaussianPrivacyLoss(noise, adjacency_type=mechanisms.AdjacencyType.ADD)
    high = max(stated, 1e-9)
    while float(loss.get_delta_for_epsilon(high)) > delta and high < 1e9:
        high *= 2
    low = 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if float(loss.get_delta_for_epsilon(middle)) > delta else (low, middle)
    verdict = "confirmed" if _covers(stated, high) else "refuted"
    return Recheck(verdict, stated, high, "closed form")


def _step(whole: Sequence[Event], adjacency: str, error: float, finest: bool) -> tuple[float, bool]:
    """Return the grid's step at which rounding costs about `error`, and whether that is affordable.

    The `finest` grid is also fine compared with the losses of each single release.
    """
    count, square, widest, narrowest = 0, 0.0, 0.0, math.inf
    for event in whole:
        twice = event.sampler == "fixed" or event.mechanism == "selection"
        mu = (2.0 if twice else _reach(adjacency)) / event.noise
        one = min(mu**2, (event.rate**2 * math.expm1(mu**2)) if mu < 20 else math.inf)
        square += event.count * one
        widest = max(widest, 10 * mu + mu**2 / 2)
        narrowest = min(narrowest, math.sqrt(one))
        count += event.count
    wanted = min(math.sqrt(8 * max(error, 1e-12) / count), 25 * max(error, 1e-12) ** 0.5)
    wanted = min(wanted, narrowest / 40) if finest else wanted
    least = max(2 * widest, 25 * math.sqrt(square) + square) / MOST_POINTS
    return max(wanted, least), wanted >= least and count <= MOST_RELEASES


def _epsilon(
    whole: Sequence[Event], delta: float, adjacency: str, step: float, pessimistic: bool = True
) -> float:
    """Return dp-accounting's epsilon, or its lower estimate; the trivial bound if it cannot compute one."""
    made = _composed(whole, adjacency, step, pessimistic)
    try:
        if made is not None:
            return float(made.get_epsilon_for_delta(delta))
    except OverflowError:
        pass
    return math.inf if pessimistic else 0.0


def _composed(whole: Sequence[Event], adjacency: str, step: float, pessimistic: bool = True) -> Any:
    """Return dp-accounting's composition of events, or None if it cannot compute it."""
    if sum(event.count for event in whole) > MOST_RELEASES:
        return None
    try:
        with np.errstate(all="ignore"):
            parts = [_power(_one(event, step, adjacency, pessimistic), event.count) for event in whole]
            return functools.reduce(lambda a, b: a.compose(b), parts)
    except (OverflowError, MemoryError, ValueError, FloatingPointError):
        return None


def _power(one: Any, count: int) -> Any:
    """Return the composition of `count` equal releases, in stages."""
    rest = []
    while count > STAGE:
        count, left = divmod(count, STAGE)
        if left:
            rest.append(one.self_compose(left, TAIL))
        one = one.self_compose(STAGE, TAIL / count)
    return functools.reduce(lambda a, b: a.compose(b), rest, one.self_compose(count, TAIL))


def _one(event: Event, step: float, adjacency: str, pessimistic: bool) -> Any:
    """Return dp-accounting's losses of one release."""
    reach = _reach(adjacency)
    grid = {
        "value_discretization_interval": step,
        "pessimistic_estimate": pessimistic,
        "use_connect_dots": pessimistic,
    }
    if event.mechanism == "laplace":
        return losses.from_laplace_mechanism(event.noise, reach, **grid)
    if event.mechanism == "selection":
        return _connected(_choice_curve(reach / event.noise), reach / event.noise, step)
    if _curve_name(event):
        return _connected(_fixed_curve(event.noise, event.rate), 20 / event.noise + 2 / event.noise**2, step)
    if event.rate == 1:
        return losses.from_gaussian_mechanism(event.noise, reach, **grid)
    relation = NeighboringRelation.REPLACE_ONE if reach == 2 else NeighboringRelation.ADD_OR_REMOVE_ONE
    return losses.from_gaussian_mechanism(
        event.noise, **grid, sampling_prob=event.rate, neighboring_relation=relation
    )


def _choice_curve(most: float) -> Curve:
    """Return delta(a), for a >= 0, of a choice whose losses span `most` (Dong, Durfee, Rogers 2020)."""
    return lambda a: np.expm1(np.minimum(a - most, 0.0) / 2) ** 2 / -math.expm1(-most)


def _fixed_curve(noise: float, rate: float) -> Curve:
    """Return delta(a), for a >= 0, of a Gaussian sum over a sample of fixed size.

    One unit takes another's place, so the sum moves by two clips (Balle, Barthe, Gaboardi 2018, theorem 9).
    """
    loss = mechanisms.GaussianPrivacyLoss(noise, 2.0, adjacency_type=mechanisms.AdjacencyType.ADD)

    def curve(a: Array) -> Array:
        inner = np.where(a < 30, np.log1p(np.expm1(np.minimum(a, 30.0)) / rate), a - math.log(rate))
        return np.asarray(rate * np.asarray(loss.get_delta_for_epsilon(inner)))

    return curve


def _connected(curve: Curve, widest: float, step: float) -> Any:
    """Return losses that connect the dots of a symmetric curve: delta(-a) = 1 - e^-a (1 - delta(a))."""
    last = math.ceil(widest / step)
    places: Array = step * np.arange(last + 1, dtype=np.float64)
    right = np.clip(curve(places), 0.0, 1.0)
    left = 1 - np.exp(-places[1:]) * (1 - right[1:])
    deltas = np.minimum.accumulate(np.concatenate([left[::-1], right]))
    return losses.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -last, last, deltas)
    )
