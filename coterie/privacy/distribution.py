"""Privacy-loss distributions of events, discretised so that epsilon is bounded from above or below."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .events import Event


def distribution(
    events: Iterable[Event],
    interval: float,
    adjacency: str = "zero-out",
    upper: bool = True,
    lean: float = 0.5,
) -> Any:
    """Compose the privacy-loss distributions of events.

    With `upper` every epsilon read off it is an upper bound, without it a lower bound on that
    of the worst data sets (for a selection and a fixed-size sample: of some data sets; `lean`
    in (0, 1) picks the selection).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = None
        for event in events:
            one = _one(event, interval, adjacency, upper, lean)
            many = one if event.count == 1 else one.self_compose(event.count)
            whole = many if whole is None else whole.compose(many)
    return whole


def _one(event: Event, interval: float, adjacency: str, upper: bool, lean: float) -> Any:
    from dp_accounting import privacy_accountant
    from dp_accounting.pld import privacy_loss_distribution as pld

    replaced = adjacency == "replace-one"
    if event.mechanism == "laplace":
        return pld.from_laplace_mechanism(
            event.noise,
            2.0 if replaced else 1.0,
            upper,
            value_discretization_interval=interval,
            use_connect_dots=upper,
        )
    if event.mechanism == "selection":
        reach = (2 if replaced else 1) / event.noise
        return _selection(reach, interval) if upper else _some_selection(reach, interval, lean)
    if event.sampler == "fixed" and event.rate < 1 and upper:
        return _fixed_size(event.noise, event.rate, interval)
    relation = privacy_accountant.NeighboringRelation
    return pld.from_gaussian_mechanism(
        event.noise,
        pessimistic_estimate=upper,
        value_discretization_interval=interval,
        sampling_prob=event.rate,
        use_connect_dots=upper,
        neighboring_relation=relation.REPLACE_ONE if replaced else relation.ADD_OR_REMOVE_ONE,
    )


def _selection(epsilon: float, interval: float) -> Any:
    """Bound all selections whose privacy losses lie in a range of length epsilon.

    The curve of Dong, Durfee and Rogers (2020): delta(a) = (1 - e^(-(epsilon - a) / 2))^2 / (1 - e^-epsilon).
    """

    def curve(a: np.ndarray) -> np.ndarray:
        inside = np.expm1(-(epsilon - np.clip(a, -epsilon, epsilon)) / 2) ** 2 / -math.expm1(-epsilon)
        return np.asarray(np.where(a <= -epsilon, -np.expm1(a), inside))

    return _from_curve(curve, epsilon + interval, interval)


def _some_selection(epsilon: float, interval: float, lean: float) -> Any:
    """Give one selection of that kind: two candidates, losses t and t - epsilon, t = lean * epsilon."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    high, low = lean * epsilon, (lean - 1) * epsilon
    chance = math.expm1(-low) / (math.exp(-low) - math.exp(-high))
    upper = {0: math.log(chance), 1: math.log1p(-chance)}
    lower = {0: upper[0] - high, 1: upper[1] - low}
    return pld.from_two_probability_mass_functions(
        lower, upper, pessimistic_estimate=False, value_discretization_interval=interval
    )


def _fixed_size(noise: float, rate: float, interval: float) -> Any:
    """Give the distribution of a Gaussian on a sample of fixed size, drawn without replacement.

    In a sample of fixed size the unit that left is another's place: sums differ by twice the
    clip, whatever the adjacency. delta'(a) = rate delta(log(1 + (e^a - 1) / rate)) for a >= 0
    (Balle, Barthe, Gaboardi 2018, theorem 9); for a < 0 by symmetry of the two data sets.
    """
    from scipy.special import log_ndtr, ndtr

    mu = 2 / noise

    def of_gaussian(a: np.ndarray) -> np.ndarray:
        return np.asarray(ndtr(mu / 2 - a / mu) - np.exp(a + log_ndtr(-mu / 2 - a / mu)))

    def curve(a: np.ndarray) -> np.ndarray:
        size = np.abs(a)
        inner = np.where(size > 30, size - math.log(rate), np.log1p(np.expm1(np.minimum(size, 30)) / rate))
        positive = np.clip(rate * of_gaussian(inner), 0, 1)
        return np.asarray(np.where(a >= 0, positive, 1 - np.exp(a) * (1 - positive)))

    widest = 10 * mu + mu**2 / 2
    return _from_curve(curve, widest, interval)


def _from_curve(curve: Callable[[np.ndarray], np.ndarray], widest: float, interval: float) -> Any:
    """Connect the dots of a curve delta(a) between -widest and widest: an upper bound of it."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    end = math.ceil(widest / interval)
    deltas = np.minimum.accumulate(np.clip(curve(np.arange(-end, end + 1) * interval), 0, 1))
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -end, end, deltas)
    )
