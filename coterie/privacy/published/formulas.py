"""The formulas with which papers compute their epsilon: shown next to the certified number, never instead.

Each formula is given as its paper states it, with the conditions under which it is proven. If a
condition or the proof does not hold, the docstring says so. `noise` is a multiplier: the standard
deviation of the noise divided by the sensitivity. In closed forms, `steps` may be a fraction (an
expected number). Logarithms are natural unless stated otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp, ndtr

from ...errors import Problem
from .. import gaussian
from ..accountant import LEAST_NOISE, renyi_epsilon
from ..events import Event, check_delta
from ..tradeoff import TradeOff

MOMENTS = 256  # the highest moment of the moments accountant
MOMENTS_CONSTANT = 2.0
DUAL_CONSTANT = math.sqrt(2)


@dataclass(frozen=True)
class Published:
    """The epsilon that a paper's formula reports."""

    paper: str
    formula: str
    epsilon: float


@functools.lru_cache(maxsize=4096)
def published_for(
    noise: float, rate: float, steps: int, delta: float, quick: bool = False
) -> tuple[Published, ...]:
    """Return what papers report for `steps` Poisson-sampled Gaussian sums with multiplier `noise`.

    `quick` omits the moments accountant, the slowest formula and always above Renyi privacy. Formulas
    for other mechanisms (`pmtl_epsilon`, `dual_epsilon`) and bounds with unpublished constants
    (`moments_epsilon`) are not included.

    >>> [round(one.epsilon, 2) for one in published_for(0.6, 0.01, 500, 1e-5)]
    [3.72, 8.33, 7.91, 6.95]
    """
    event = Event("gaussian", noise, rate, steps)
    check_delta(delta)
    setting = (noise, rate, steps, delta)
    found = (
        Published(
            "Wu, Chen, Wang 2020",
            "Gaussian DP by the central limit, mu = p sqrt(T (e^(1/sigma^2) - 1))",
            central_limit_epsilon(*setting),
        ),
        Published(
            "Liu, Lou, Xiong, Liu, Meng 2022",
            "closed form of the authors' code, 10 q sqrt(T (-log10 delta)) / sigma",
            pfa_epsilon(*setting),
        ),
        Published(
            "Abadi et al. 2016",
            f"moments accountant, numerical, moments up to {MOMENTS}",
            math.nan if quick else moments_accountant_epsilon(*setting),
        ),
        Published(
            "Liu, Hu, Wu, Smith 2022; Hu, Wu, Smith 2023",
            "Renyi privacy of the sampled Gaussian",
            renyi_epsilon((event,), delta),
        ),
    )
    return tuple(one for one in found if not math.isnan(one.epsilon))


def warning(published: Published, lower: float) -> str | None:
    """Return a sentence if a published epsilon is below a proven lower bound of the true one, else None.

    `lower` is that bound, such as `accountant.bounds(..., tight=True).lower`.
    """
    if not published.epsilon < lower:
        return None
    for digits in range(2, 17):
        said, least = round(published.epsilon, digits), _floor(lower, digits)
        if said < least:
            break
    return (
        f"the formula of {published.paper} ({published.formula}) gives epsilon {said:.{digits}f}, which is"
        f" below {least:.{digits}f}, a proven lower bound for these settings"
    )


def _floor(value: float, digits: int) -> float:
    return value if math.isinf(value) else math.floor(value * 10**digits) / 10**digits


# Classic Gaussian mechanism


def classic_noise(epsilon: float, delta: float) -> float:
    """Return sqrt(2 log(1.25 / delta)) / epsilon, the classic multiplier of one Gaussian release.

    Dwork and Roth 2014, theorem A.1. It is proven only for epsilon <= 1. Above, it may be too small: for
    epsilon 45 and delta 1e-5, the true epsilon is 82. Wu, Chen, Wang 2020 use it for 45, 8, 2 and 0.5.

    >>> [round(classic_noise(epsilon, 1e-5), 2) for epsilon in (45, 8, 2, 0.5)]
    [0.11, 0.61, 2.42, 9.69]
    """
    _check_positive(epsilon=epsilon)
    return _classic(delta) / epsilon


def classic_epsilon(noise: float, delta: float) -> float:
    """Return the epsilon at which `classic_noise` is `noise`; it is proven only up to 1."""
    return _over(_classic(delta), noise)


# Gaussian differential privacy: Wu, Chen, Wang 2020 (heads)


def heads_sensitivity(clip: float, cohort: float, silos: int) -> float:
    """Return S = 2 C K / M, the sensitivity of Wu, Chen, Wang 2020, lemma 4.1, for `cohort` K of `silos` M.

    It does not hold. Replacing one silo changes its upload by 2 C and the mean of K uploads by 2 C / K.
    The former exceeds S if K < M, the latter if K^2 < M. Their proof weights uploads by K / M, their
    algorithm by 1 / K.
    """
    _check_positive(clip=clip, cohort=cohort, silos=silos)
    if cohort > silos:
        raise Problem(f"cohort must be at most the {silos} silos, got {cohort:g}")
    return 2 * clip * cohort / silos


def central_limit_mu(noise: float, rate: float, steps: float) -> float:
    """Return mu = p sqrt(T (e^(1/sigma^2) - 1)), the limit of T Poisson-sampled steps.

    In this limit T grows while p sqrt(T) and sigma stay fixed (Bu, Dong, Long, Su 2019). Wu, Chen,
    Wang 2020, theorem 4.2, prints one sqrt(T) too many. At a finite T, mu is too small for small p,
    especially with little noise, and too large for p near 1.
    """
    _check_setting(noise, rate, steps)
    if noise < 0.04:  # e^625, beyond any use
        return math.inf
    return rate * math.sqrt(steps * math.expm1(1 / noise**2))


def central_limit_epsilon(noise: float, rate: float, steps: float, delta: float) -> float:
    """Return the epsilon at delta of a mu-Gaussian mechanism, with the mu of `central_limit_mu`.

    >>> round(central_limit_epsilon(0.6, 0.01, 500, 1e-5), 2)  # the true value is 5.8
    3.72
    """
    check_delta(delta)
    mu = central_limit_mu(noise, rate, steps)
    if mu > 1e100:
        return math.inf
    return gaussian.epsilon_of(mu, delta) if mu > 0 else 0.0


def uniform_limit_mu(noise: float, rate: float, steps: float) -> float:
    """Return the mu that the T-fold composition of C_p(G_{1/sigma}) tends to, with p sqrt(T) fixed.

    It is p sqrt(2 T (e^(1/sigma^2) Phi(1.5 / sigma) + 3 Phi(-0.5 / sigma) - 2)): Dong, Roth, Su 2022,
    section 5, for samples of a fixed size. Wu, Chen, Wang 2020, theorem 4.2, describe this composition,
    but print the smaller limit for Poisson samples (`central_limit_mu`).
    """
    _check_setting(noise, rate, steps)
    if noise < 0.04:
        return math.inf
    if noise > 1e4:  # the sum would cancel; its first term is 1 / (2 sigma^2)
        return rate * math.sqrt(steps) / noise
    risen = math.expm1(1 / noise**2) * ndtr(1.5 / noise)
    return rate * math.sqrt(2 * steps * (risen + ndtr(1.5 / noise) + 3 * ndtr(-0.5 / noise) - 2))


def sampled_curve(curve: TradeOff, rate: float) -> TradeOff:
    """Apply the p-sampling operator: C_p(f) = min(f_p, f_p^-1)**, f_p = p f + (1 - p)(1 - alpha).

    Dong, Roth, Su 2022, section 4: the curve of a mechanism with symmetric curve f that runs on a
    sample at rate p. ** is the largest convex curve below. The points are connected by straight
    lines, so the result lies slightly above the true C_p(f) between them.
    """
    _check_share(rate=rate)
    alpha = curve.type_one
    beta = rate * curve.type_two + (1 - rate) * (1 - alpha)
    corners = _lower_hull(np.concatenate([np.stack([alpha, beta], 1), np.stack([beta, alpha], 1)]))
    return TradeOff(curve.label, "p-sampling operator", alpha, np.interp(alpha, *corners.T))


# Moments accountant: Abadi et al. 2016; Liu, Lou, Xiong, Liu, Meng 2022 (PFA)


def moments_noise(
    epsilon: float, rate: float, steps: float, delta: float, constant: float = MOMENTS_CONSTANT
) -> float:
    """Return sigma = c2 q sqrt(T log(1/delta)) / epsilon, the moments accountant's *asymptotic* form.

    Abadi et al. 2016, theorem 1; PFA's theorem 1, where T is participation x rounds x local steps;
    PMTL's theorem 1. They state that constants c1, c2 exist such that it holds for epsilon < c1 q^2 T,
    without giving them. We assume c2 = 2. It solves the inequalities of their proof with the leading
    term q^2 lambda^2 / sigma^2, which requires sigma >= 1, q < 1 / (16 sigma) and
    2 log(1/delta) / epsilon <= sigma^2 log(1 / (q sigma)). Otherwise, it may be far too small.
    """
    _check_positive(epsilon=epsilon, constant=constant)
    return constant * _scale(rate, steps, delta) / epsilon


def moments_epsilon(
    noise: float, rate: float, steps: float, delta: float, constant: float = MOMENTS_CONSTANT
) -> float:
    """Return the epsilon at which `moments_noise` is `noise`."""
    _check_positive(constant=constant)
    return _over(constant * _scale(rate, steps, delta), noise)


def moments_accountant_epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """Return min over lambda of (T alpha(lambda) + log(1/delta)) / lambda, the full moments accountant.

    Abadi et al. 2016, theorem 2. alpha(lambda) is the exact log-moment of one Poisson-sampled
    Gaussian, a sum over binomial coefficients (Mironov, Talwar, Zhang 2019, section 3.3). lambda is a
    whole number up to 256; the paper finds 32 enough. This is an upper bound, looser than the certified one.

    >>> round(moments_accountant_epsilon(4.0, 0.01, 10_000, 1e-5), 2)  # the paper's example, 100 epochs
    1.26
    """
    Event("gaussian", noise, rate, steps)
    check_delta(delta)
    if noise < LEAST_NOISE:
        return math.inf
    tail = math.log(1 / delta)
    found = min((steps * _log_moment(noise, rate, k) + tail) / k for k in range(1, MOMENTS + 1))
    return max(found, 0.0)


def pfa_noise(epsilon: float, rate: float, steps: float, delta: float) -> float:
    """Return sigma = 10 q sqrt(T (-log10 delta)) / epsilon, the closed form of PFA's public code.

    `steps` is T = participation x rounds x local steps. The formula is `moments_noise` with
    c2 = 10 / sqrt(log 10) = 6.59. In the paper's settings, this is two to seven times the noise that is
    needed. There is no proof for large epsilon, where it can be too small.

    >>> [round(pfa_noise(epsilon, 8 / 1200, 8000, 1e-5), 2) for epsilon in (0.1, 10)]
    [133.33, 1.33]
    """
    _check_positive(epsilon=epsilon)
    return _pfa(rate, steps, delta) / epsilon


def pfa_epsilon(noise: float, rate: float, steps: float, delta: float) -> float:
    """Return the epsilon at which `pfa_noise` is `noise`; the authors' code stops a silo by it."""
    return _over(_pfa(rate, steps, delta), noise)


# Whole silos: Hu, Wu, Smith 2023 (PMTL)


def pmtl_noise(epsilon: float, rounds: float, delta: float, clip: float, silos: int) -> float:
    """Return sigma = 4 gamma sqrt(T log(1/delta)) / (epsilon m), with all `silos` m in every round.

    Hu, Wu, Smith 2023, theorem 1. sigma is the *standard deviation* of the noise on the mean of uploads
    clipped to `clip` gamma. The multiplier is m sigma / gamma if a silo is zeroed out, and half of that if
    it is replaced. The last step of the proof needs epsilon <= 2 log(1/delta), a condition that the paper
    omits: for delta 1/205 and epsilon 40, the true epsilon of a replaced silo is 59.
    """
    _check_positive(epsilon=epsilon)
    return _pmtl(rounds, delta, clip, silos) / epsilon


def pmtl_epsilon(deviation: float, rounds: float, delta: float, clip: float, silos: int) -> float:
    """Return the epsilon at which `pmtl_noise` is `deviation`."""
    return _over(_pmtl(rounds, delta, clip, silos), deviation, "deviation")


# Dual coordinates: Hu, Guo, Li, Pei, Gong 2020


class DualSetting(NamedTuple):
    """The parameters of the dual formula.

    `live` is p, the probability that a device takes part; `rate` is q, the share of examples that a round
    touches; `ratio` is r, the ratio of the budgets of upload and dual; `constant` is c2.
    """

    live: float
    rate: float
    ratio: float
    constant: float = DUAL_CONSTANT


def dual_noise(epsilon: float, rounds: float, delta: float, setting: DualSetting) -> tuple[float, float]:
    """Return sigma1 = c2 p sqrt((q^2 + r^2) K log(1/delta)) / epsilon (duals) and sigma1 / r (uploads).

    Hu, Guo, Li, Pei, Gong 2020, theorem 5, for `rounds` K and epsilon < c1 p^2 K. The paper gives neither
    c1 nor c2. We assume c2 = sqrt(2), which follows from their lemma 4 with log(1.25/delta) taken as
    log(1/delta); the inequality in their proof needs c2 >= 2. Only the K inner rounds of one outer round
    are counted. For devices that drop out, the bound uses a factor p instead of sqrt(p), which does not
    hold against a server that sees which devices take part. And the sensitivity of the uploads, 2 xi |a|,
    is itself private.
    """
    _check_positive(epsilon=epsilon)
    first = _dual(rounds, delta, setting) / epsilon
    return first, first / setting.ratio


def dual_epsilon(noise: float, rounds: float, delta: float, setting: DualSetting) -> float:
    """Return the epsilon at which the first value of `dual_noise` is `noise`."""
    return _over(_dual(rounds, delta, setting), noise)


def _classic(delta: float) -> float:
    check_delta(delta)
    return math.sqrt(2 * math.log(1.25 / delta))


def _scale(rate: float, steps: float, delta: float) -> float:
    """Return q sqrt(T log(1/delta))."""
    _check_setting(1.0, rate, steps)
    check_delta(delta)
    return rate * math.sqrt(steps * math.log(1 / delta))


def _pfa(rate: float, steps: float, delta: float) -> float:
    return 10 / math.sqrt(math.log(10)) * _scale(rate, steps, delta)


def _pmtl(rounds: float, delta: float, clip: float, silos: int) -> float:
    _check_positive(rounds=rounds, clip=clip, silos=silos)
    check_delta(delta)
    return 4 * clip * math.sqrt(rounds * math.log(1 / delta)) / silos


def _dual(rounds: float, delta: float, setting: DualSetting) -> float:
    live, rate, ratio, constant = setting
    _check_positive(rounds=rounds, ratio=ratio, constant=constant)
    _check_share(live=live, rate=rate)
    check_delta(delta)
    return constant * live * math.sqrt((rate**2 + ratio**2) * rounds * math.log(1 / delta))


def _log_moment(noise: float, rate: float, moment: int) -> float:
    """Return log E[(P / Q)^(moment + 1)] under Q, P = (1 - q) N(0, s^2) + q N(1, s^2), Q = N(0, s^2)."""
    order = moment + 1
    k = np.arange(order + 1)
    spread = k * (k - 1) / (2 * noise**2)
    if rate == 1:
        return float(spread[-1])
    chosen = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    return float(logsumexp(chosen + k * math.log(rate) + (order - k) * math.log1p(-rate) + spread))


def _lower_hull(points: np.ndarray) -> np.ndarray:
    """Return the corners of the largest convex curve below all points."""
    corners: list[Sequence[float]] = []
    for x, y in sorted(map(tuple, points.tolist())):
        if corners and corners[-1][0] == x:
            continue  # the lowest point at this x came first
        while len(corners) > 1 and _turns_right(corners[-2], corners[-1], (x, y)):
            corners.pop()
        corners.append((x, y))
    return np.array(corners)


def _turns_right(a: Sequence[float], b: Sequence[float], c: Sequence[float]) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) <= (b[1] - a[1]) * (c[0] - a[0])


def _over(top: float, noise: float, name: str = "noise") -> float:
    if not noise >= 0:
        raise Problem(f"{name} must be a number >= 0, got {noise:g}")
    return top / noise if noise > 0 else math.inf


def _check_setting(noise: float, rate: float, steps: float) -> None:
    if not noise >= 0:
        raise Problem(f"noise must be a number >= 0, got {noise:g}")
    _check_share(rate=rate)
    _check_positive(steps=steps)


def _check_share(**numbers: float) -> None:
    for key, value in numbers.items():
        if not 0 < value <= 1:
            raise Problem(f"{key} must be a number in (0, 1], got {value:g}")


def _check_positive(**numbers: float) -> None:
    for key, value in numbers.items():
        if not value > 0:
            raise Problem(f"{key} must be a number > 0, got {value:g}")
