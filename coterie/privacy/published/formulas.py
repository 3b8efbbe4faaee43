"""What the papers compute as their epsilon: shown beside the certified number, never instead of it.

Each formula is given as its paper has it, with the conditions under which it is proven; where
they do not hold, or the proof does not, the docstring says so. `noise` is a multiplier: the
deviation of the noise over the sensitivity. `steps` may be a fraction in closed forms (an
expected number). Logarithms are natural unless said otherwise.
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

MOMENTS = 256  # highest moment of the moments accountant
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
    """Give what papers report for `steps` Poisson-sampled Gaussian sums with multiplier `noise`.

    `quick` leaves out the moments accountant, the slowest of them and always above Renyi privacy.
    Left out are formulas for other mechanisms (`pmtl_epsilon`, `dual_epsilon`), and bounds whose
    constants are not published (`moments_epsilon`).

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
    """Give the line that warns of a published epsilon below a lower bound of the true one, if it is.

    `lower` is the certified lower bound (`accountant.bounds(..., tight=True).lower`).
    """
    if not published.epsilon < lower:
        return None
    for digits in range(2, 17):
        said, least = round(published.epsilon, digits), _floor(lower, digits)
        if said < least:
            break
    return (
        f"{published.paper} report epsilon {said:.{digits}f} ({published.formula}), but no less than"
        f" {least:.{digits}f} is true: their formula reports too little here"
    )


def _floor(value: float, digits: int) -> float:
    return value if math.isinf(value) else math.floor(value * 10**digits) / 10**digits


# Classic Gaussian mechanism


def classic_noise(epsilon: float, delta: float) -> float:
    """Give sqrt(2 log(1.25 / delta)) / epsilon, the classic multiplier of one Gaussian release.

    Dwork and Roth 2014, theorem A.1. Proven for epsilon <= 1 only: above, it may be too little (for
    epsilon 45 and delta 1e-5 the true epsilon is 82). Wu, Chen, Wang 2020 take it for 45, 8, 2 and .5.

    >>> [round(classic_noise(epsilon, 1e-5), 2) for epsilon in (45, 8, 2, 0.5)]
    [0.11, 0.61, 2.42, 9.69]
    """
    _check_positive(epsilon=epsilon)
    return _classic(delta) / epsilon


def classic_epsilon(noise: float, delta: float) -> float:
    """Give the epsilon at which `classic_noise` is `noise`; proven only where it is at most 1."""
    return _over(_classic(delta), noise)


# Gaussian differential privacy: Wu, Chen, Wang 2020 (heads)


def heads_sensitivity(clip: float, cohort: float, silos: int) -> float:
    """Give S = 2 C K / M, the sensitivity of Wu, Chen, Wang 2020, lemma 4.1, for `cohort` K of `silos` M.

    It does not hold: one silo, replaced, changes its own upload by 2 C and the mean of K uploads by
    2 C / K, both more than S whenever K < M (the mean: K^2 < M). Their proof weighs uploads by K / M,
    their algorithm by 1 / K.
    """
    _check_positive(clip=clip, cohort=cohort, silos=silos)
    if cohort > silos:
        raise Problem(f"cohort must be at most the {silos} silos, got {cohort:g}")
    return 2 * clip * cohort / silos


def central_limit_mu(noise: float, rate: float, steps: float) -> float:
    """Give mu = p sqrt(T (e^(1/sigma^2) - 1)), the limit of T Poisson-sampled steps.

    T grows while p sqrt(T) and sigma stay (Bu, Dong, Long, Su 2019). Wu, Chen, Wang 2020, theorem 4.2,
    prints a sqrt(T) too many. At a finite T it reports too little where p is small, the more so the
    less noise there is, and too much where p is near 1.
    """
    _check_setting(noise, rate, steps)
    if noise < 0.04:  # e^625, beyond any use
        return math.inf
    return rate * math.sqrt(steps * math.expm1(1 / noise**2))


def central_limit_epsilon(noise: float, rate: float, steps: float, delta: float) -> float:
    """Give the epsilon at delta of the mu-Gaussian mechanism that `central_limit_mu` finds.

    >>> round(central_limit_epsilon(0.6, 0.01, 500, 1e-5), 2)  # in truth 5.8
    3.72
    """
    check_delta(delta)
    mu = central_limit_mu(noise, rate, steps)
    if mu > 1e100:
        return math.inf
    return gaussian.epsilon_of(mu, delta) if mu > 0 else 0.0


def uniform_limit_mu(noise: float, rate: float, steps: float) -> float:
    """Give the mu to which T-fold composition of C_p(G_{1/sigma}) tends as T grows and p sqrt(T) stays.

    p sqrt(2 T (e^(1/sigma^2) Phi(1.5 / sigma) + 3 Phi(-0.5 / sigma) - 2)): Dong, Roth, Su 2022,
    section 5, for samples of a fixed size. Wu, Chen, Wang 2020, theorem 4.2, speak of this
    composition, yet print the smaller limit of Poisson samples (`central_limit_mu`).
    """
    _check_setting(noise, rate, steps)
    if noise < 0.04:
        return math.inf
    if noise > 1e4:  # the sum cancels: its first term is 1 / (2 sigma^2)
        return rate * math.sqrt(steps) / noise
    risen = math.expm1(1 / noise**2) * ndtr(1.5 / noise)
    return rate * math.sqrt(2 * steps * (risen + ndtr(1.5 / noise) + 3 * ndtr(-0.5 / noise) - 2))


def sampled_curve(curve: TradeOff, rate: float) -> TradeOff:
    """Apply the p-sampling operator: C_p(f) = min(f_p, f_p^-1)**, f_p = p f + (1 - p)(1 - alpha).

    Dong, Roth, Su 2022, section 4: the curve of a mechanism with symmetric curve f, run on a
    sample at rate p. ** is the largest convex curve below. The points given are joined by straight
    lines, so between them the result lies a little above the true C_p(f).
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
    """Give sigma = c2 q sqrt(T log(1/delta)) / epsilon, the moments accountant's *asymptotic* form.

    Abadi et al. 2016, theorem 1; PFA's theorem 1, T being share taking part x rounds x local steps;
    PMTL's theorem 1. They say that constants c1, c2 exist such that it holds for epsilon < c1 q^2 T,
    and give neither. c2 = 2 is assumed here: it solves the inequalities of their proof with its
    leading term q^2 lambda^2 / sigma^2, which wants sigma >= 1, q < 1 / (16 sigma) and
    2 log(1/delta) / epsilon <= sigma^2 log(1 / (q sigma)). Outside it may be far too little.
    """
    _check_positive(epsilon=epsilon, constant=constant)
    return constant * _spread(rate, steps, delta) / epsilon


def moments_epsilon(
    noise: float, rate: float, steps: float, delta: float, constant: float = MOMENTS_CONSTANT
) -> float:
    """Give the epsilon at which `moments_noise` is `noise`."""
    _check_positive(constant=constant)
    return _over(constant * _spread(rate, steps, delta), noise)


def moments_accountant_epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """Give min over lambda of (T alpha(lambda) + log(1/delta)) / lambda, the moments accountant in full.

    Abadi et al. 2016, theorem 2. alpha(lambda) is the exact log-moment of one Poisson-sampled
    Gaussian, a sum over binomial coefficients (Mironov, Talwar, Zhang 2019, section 3.3), lambda a whole
    number up to 256 (the paper finds 32 enough). An upper bound, looser than the certified one.

    >>> round(moments_accountant_epsilon(4.0, 0.01, 10_000, 1e-5), 2)  # their example of 100 epochs
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
    """Give sigma = 10 q sqrt(T (-log10 delta)) / epsilon, the closed form of PFA's public code.

    `steps` T: share taking part x rounds x local steps. It is `moments_noise` with c2 = 10 / sqrt(log 10)
    = 6.59: two to seven times the noise that is needed in their settings. Nothing proves it for large
    epsilon, and there it can be too little.

    >>> [round(pfa_noise(epsilon, 8 / 1200, 8000, 1e-5), 2) for epsilon in (0.1, 10)]
    [133.33, 1.33]
    """
    _check_positive(epsilon=epsilon)
    return _pfa(rate, steps, delta) / epsilon


def pfa_epsilon(noise: float, rate: float, steps: float, delta: float) -> float:
    """Give the epsilon at which `pfa_noise` is `noise`; by it their code stops a silo."""
    return _over(_pfa(rate, steps, delta), noise)


# Whole silos: Hu, Wu, Smith 2023 (PMTL)


def pmtl_noise(epsilon: float, rounds: float, delta: float, clip: float, silos: int) -> float:
    """Give sigma = 4 gamma sqrt(T log(1/delta)) / (epsilon m), with all `silos` m in every round.

    Hu, Wu, Smith 2023, theorem 1. sigma is the *deviation* of the noise on the mean of uploads clipped
    to `clip` gamma: the multiplier is m sigma / gamma where a silo is zeroed out, half of that where it
    is replaced. Their last step needs epsilon <= 2 log(1/delta), which they do not say: for delta 1/205
    and epsilon 40, a replaced silo's true epsilon is 59.
    """
    _check_positive(epsilon=epsilon)
    return _pmtl(rounds, delta, clip, silos) / epsilon


def pmtl_epsilon(deviation: float, rounds: float, delta: float, clip: float, silos: int) -> float:
    """Give the epsilon at which `pmtl_noise` is `deviation`."""
    return _over(_pmtl(rounds, delta, clip, silos), deviation, "deviation")


# Dual coordinates: Hu, Guo, Li, Pei, Gong 2020


class DualSetting(NamedTuple):
    """A setting of dual learning.

    Chance `live` p of a device to take part, `rate` q of examples touched
    in a round, `ratio` r of the budgets of upload and dual, and the constant c2.
    """

    live: float
    rate: float
    ratio: float
    constant: float = DUAL_CONSTANT


def dual_noise(epsilon: float, rounds: float, delta: float, setting: DualSetting) -> tuple[float, float]:
    """Give sigma1 = c2 p sqrt((q^2 + r^2) K log(1/delta)) / epsilon on duals, sigma2 = sigma1 / r on uploads.

    Hu, Guo, Li, Pei, Gong 2020, theorem 5, for `rounds` K and epsilon < c1 p^2 K. c1
    and c2 are not given. c2 = sqrt(2) is assumed here: it is what their
    lemma 4 gives, log(1.25/delta) taken as log(1/delta); their proof's own inequality wants c2 >= 2.
    Counted are the K inner rounds of one outer round. The bound takes a factor p, not sqrt(p), for
    devices that drop, which does not hold against a server that sees who is live; and the
    sensitivity of uploads, 2 xi |a|, is itself private.
    """
    _check_positive(epsilon=epsilon)
    first = _dual(rounds, delta, setting) / epsilon
    return first, first / setting.ratio


def dual_epsilon(noise: float, rounds: float, delta: float, setting: DualSetting) -> float:
    """Give the epsilon at which the first of `dual_noise` is `noise`."""
    return _over(_dual(rounds, delta, setting), noise)


def _classic(delta: float) -> float:
    check_delta(delta)
    return math.sqrt(2 * math.log(1.25 / delta))


def _spread(rate: float, steps: float, delta: float) -> float:
    """Give q sqrt(T log(1/delta))."""
    _check_setting(1.0, rate, steps)
    check_delta(delta)
    return rate * math.sqrt(steps * math.log(1 / delta))


def _pfa(rate: float, steps: float, delta: float) -> float:
    return 10 / math.sqrt(math.log(10)) * _spread(rate, steps, delta)


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
    """Give log E[(P / Q)^(moment + 1)] under Q, P = (1 - q) N(0, s^2) + q N(1, s^2), Q = N(0, s^2)."""
    order = moment + 1
    k = np.arange(order + 1)
    spread = k * (k - 1) / (2 * noise**2)
    if rate == 1:
        return float(spread[-1])
    chosen = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    return float(logsumexp(chosen + k * math.log(rate) + (order - k) * math.log1p(-rate) + spread))


def _lower_hull(points: np.ndarray) -> np.ndarray:
    """Give the corners of the largest convex curve below all points."""
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
