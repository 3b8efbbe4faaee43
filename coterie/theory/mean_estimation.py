"""Mean estimation: why pulling silos together helps, and what choosing the pull costs.

This is the model of Liu, Hu, Wu, Smith 2022 (On Privacy and Personalization in Cross-Silo Federated
Learning), section 6. Silo k has a hidden centre w_k ~ N(theta, tau^2), with theta unknown, and n examples
~ N(w_k, sigma^2). It publishes the mean of its examples with noise N(0, sigma_DP^2) on their *sum*. MR-MTL
predicts (own mean + lam * mean of all) / (1 + lam): lam = 0 is Local, lam = infinity is FedAvg.

Assumptions: all silos have the same n, sigma and sigma_DP; sizes are public; no example is clipped (the clip
only sets the scale of the noise); the noise is independent of the data. An error is the expected squared
error of one silo's prediction of its w_k, over centres, examples and noise. (The paper writes its errors as
expectations *given* the published means, but prints their averages. Given that a silo's own mean differs by
d from the mean of the others, the error is best_error + (alpha - alpha*)^2 d^2, where alpha = (K + lam) /
(K + K lam) is the weight of the silo's own mean.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Problem

Array = NDArray[np.float64]
Trials = TypeVar("Trials")


@dataclass(frozen=True, kw_only=True)
class MeanEstimation:
    """K `silos` with n `examples` each, and three standard deviations.

    `deviation` (sigma) is that of examples around their silo's centre, `silo_spread` (tau) that of the
    centres, and `noise` (sigma_DP) that of the privacy noise on the sum of a silo's examples (multiplier x
    clip).
    """

    silos: int
    examples: int
    deviation: float
    silo_spread: float
    noise: float = 0.0

    def __post_init__(self) -> None:
        for key in ("silos", "examples"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise Problem(f"{key} must be a whole number >= 1, got {value}")
        for key in ("deviation", "silo_spread", "noise"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise Problem(f"{key} must be a finite number >= 0, got {value:g}")


def local_variance(model: MeanEstimation) -> float:
    """Return sigma_loc^2 = sigma^2 / n + sigma_DP^2 / n^2, the variance of a published mean (equation 5)."""
    return model.deviation**2 / model.examples + (model.noise / model.examples) ** 2


def best_lam(model: MeanEstimation) -> float:
    """Return lam* = sigma_loc^2 / tau^2, the lam with the smallest error (theorem 6.3).

    It is infinite if silos do not differ (tau = 0): FedAvg is best then. With a single silo, every lam is
    equally good.
    """
    return (
        local_variance(model) / model.silo_spread / model.silo_spread if model.silo_spread > 0 else math.inf
    )


def error(model: MeanEstimation, lam: ArrayLike) -> Array:
    """Return the error of MR-MTL at each lam, which may be infinite (lemma 6.7).

    It is (1 - 1/K) (sigma_loc^2 + lam^2 tau^2) / (1 + lam)^2 + sigma_loc^2 / K: falling up to lam*, then
    rising.
    """
    personal = _own_share(lam)
    variance = local_variance(model)
    apart = personal**2 * variance + (1 - personal) ** 2 * model.silo_spread**2
    return np.asarray((1 - 1 / model.silos) * apart + variance / model.silos)


def local_error(model: MeanEstimation) -> float:
    """Return the error of Local (lam = 0): sigma_loc^2."""
    return local_variance(model)


def fedavg_error(model: MeanEstimation) -> float:
    """Return the error of FedAvg (lam = infinity): (1 - 1/K) tau^2 + sigma_loc^2 / K."""
    return (1 - 1 / model.silos) * model.silo_spread**2 + local_variance(model) / model.silos


def best_error(model: MeanEstimation) -> float:
    """Return the error at lam* (corollary 6.4).

    It is sigma_loc^2 (sigma_loc^2 + K tau^2) / (K (sigma_loc^2 + tau^2)). No weighting of the published
    means that is unbiased for every theta has less error.
    """
    personal = float(_own_share(best_lam(model)))
    return local_variance(model) * (personal + (1 - personal) / model.silos)


def gap_to_local(model: MeanEstimation) -> float:
    """Return what Local loses against lam* (proposition 6.5).

    It is (1 - 1/K) sigma_loc^4 / (sigma_loc^2 + tau^2).
    """
    pulled = 1 - float(_own_share(best_lam(model)))
    return (1 - 1 / model.silos) * local_variance(model) * pulled


def gap_to_fedavg(model: MeanEstimation) -> float:
    """Return what FedAvg loses against lam* (proposition 6.6).

    It is (1 - 1/K) tau^4 / (sigma_loc^2 + tau^2).
    """
    return (1 - 1 / model.silos) * model.silo_spread**2 * float(_own_share(best_lam(model)))


def privacy_gap(model: MeanEstimation, lam: ArrayLike) -> Array:
    """Return what privacy costs at each lam: the error with noise minus the error without (theorem 6.8).

    It is ((1 - 1/K) / (1 + lam)^2 + 1/K) sigma_DP^2 / n^2, for the *same* lam with and without noise. It
    falls from sigma_DP^2 / n^2 at lam = 0 to one K-th of that, and does not depend on tau or sigma. The
    theorem holds as printed. It is not the cost if lam* is chosen again with the noise: that cost lies
    between the gap at the private lam* and the gap at the other.
    """
    share = (1 - 1 / model.silos) * _own_share(lam) ** 2 + 1 / model.silos
    return np.asarray(share * (model.noise / model.examples) ** 2)


def _own_share(lam: ArrayLike) -> Array:
    """Return 1 / (1 + lam)."""
    lams = np.asarray(lam, dtype=np.float64)
    if not (lams >= 0).all():
        wrong = lams[~(lams >= 0)].flat[0]
        raise Problem(f"lam must be a number >= 0, got {wrong:g}")
    return np.asarray(1 / (1 + lams))


# The three panels of figure 7, which differ in tau, with ten trials on average and a clip of 1. These numbers
# are not in the paper's text but in the authors' public code. Their figure is simulated with real clipping,
# which raises errors by up to 6 % with privacy and 17 % without (tau .2).
FIGURE_MODELS = {
    name: MeanEstimation(silos=20, examples=200, deviation=0.4, silo_spread=silo_spread)
    for name, silo_spread in (("low", 0.03), ("moderate", 0.08), ("high", 0.2))
}
FIGURE_EPSILON, FIGURE_DELTA, FIGURE_TRIALS = 0.25, 1e-5, 10
FIGURE_LAMS = (0.0, *np.logspace(-3, 2, 100).tolist())


@dataclass(frozen=True, eq=False)
class Curve:
    """Errors as a function of lam, and the model (with its noise) that they come from."""

    label: str
    model: MeanEstimation
    lams: Array
    errors: Array


@dataclass(frozen=True, eq=False)
class TuningFigure:
    """The curves of figure 7, and for each way of tuning its gain.

    A gain is the error of the better untuned end (Local or FedAvg, private) minus the lowest point of the
    tuned curve. If it is negative, it is better not to tune.
    """

    without_privacy: Curve
    private: Curve
    tuned: tuple[Curve, ...]
    gains: dict[str, float]


def tuning_figure(
    model: MeanEstimation,
    epsilon: float,
    trials: Mapping[str, Trials],
    noise_for: Callable[[float, Trials | None], float],
    *,
    clip: float = 1.0,
    lams: ArrayLike = FIGURE_LAMS,
) -> TuningFigure:
    """Return the data of figure 7: the error by lam if choosing lam is paid from the same budget.

    Each curve is the error of `model` at each lam, with different noise: none; the noise for epsilon if lam
    is simply known; and, for each entry of `trials`, the noise for epsilon if lam is chosen among a random
    number of private trials. `noise_for(epsilon, how)` does the accounting. It returns the noise multiplier
    of one trial if their number is drawn as `how` says (Poisson, truncated negative binomial, ...), and the
    one without tuning if `how` is None. Both should come from the same kind of bound; otherwise the slack of
    two bounds is compared. The noise of `model` itself is not used.

    The lowest point of a tuned curve flatters tuning. It assumes that the trials hit lam*, that the best of
    them is chosen and, for a Poisson number, that there is at least one.
    """

    def curve(label: str, multiplier: float) -> Curve:
        noisy = replace(model, noise=clip * multiplier)
        return Curve(label, noisy, grid, error(noisy, grid))

    grid = np.asarray(lams, dtype=np.float64)
    private = curve("private", noise_for(epsilon, None))
    tuned = tuple(curve(label, noise_for(epsilon, how)) for label, how in trials.items())
    end = min(local_error(private.model), fedavg_error(private.model))
    gains = {line.label: end - best_error(line.model) for line in tuned}
    return TuningFigure(curve("without privacy", 0.0), private, tuned, gains)
