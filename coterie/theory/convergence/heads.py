"""How fast training converges with shared layers and private heads.

A `Decay` says how much a round lowers the loss: E f(next) <= f - slope |gradient f|^2 + added. Bounds on
gradients and, with strong convexity, on the gap f - f* follow from it alone.

The setting is that of Wu, Chen, Wang 2020 (A Theoretical Perspective on Differentially Private Federated
Multi-Task Learning), section 5: f = 1/M sum_i f_i(h_i, s), with heads h_i and shared layers s. In each round
one silo, drawn uniformly, takes H steps on its f_i with noise on the gradient of s, and the server adopts
its s.

The paper prints no proofs. Its lemma 5.2 adds terms of different units: B^2 next to |gradient|^2 / L. So it
fails where L is small, and theorem 5.3 fails with it. `heads_decay` is what follows from smoothness, with one
silo per round. All f_i are L-smooth in (h_i, s), and the shared gradients satisfy

    1/M sum_i |d_s f_i|^2 <= lam |d_s f|^2 + zeta^2,

where lam >= 1 is the `diversity` and zeta^2 the `disagreement`. Assumption 5.5 of the paper has zeta = 0, so
all silos agree on the best s. V = d (S sigma)^2 is the expected squared length of the noise.

- One step of size eta moves h_i by g_h and s by g_s + noise. Second-order terms raise f by at most
  L/2 eta^2 (|g_h|^2 / M + |g_s + noise|^2), because only f_i depends on h_i. On average g is the gradient
  of f, so

      E f(next) <= f - eta (1 - lam L eta / 2) |gradient f|^2 + L eta^2 (zeta^2 + V) / 2.

- H steps are one step of size theta = H eta along the gradient at their start, plus a drift e. The root mean
  square of e is at most 1/H sum_{s<H} L eta (s B + sqrt(s V)), where B bounds |gradient f_i| on the way:

      E f(next) <= f - theta (3/4 - lam L theta) |gradient f|^2 + L theta^2 (zeta^2 + V / H)
                   + theta (1 + L theta) |e|^2.

- For convex f, a step lowers the distance |w - w*|^2 by 2 eta (f - f*) and raises it by at most
  eta^2 (2 lam L (f - f*) + zeta^2 + V), since |d_s f|^2 + 1/M sum_i |d_h f_i|^2 <= 2 L (f - f*).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import Problem
from .decay import Decay, check_count, check_not_negative, check_positive, drift_sum


@dataclass(frozen=True, kw_only=True)
class HeadsConstants:
    """M `silos`, L, lam, zeta^2 and V = d (S sigma)^2, as defined at the top of this file."""

    silos: int
    smoothness: float
    diversity: float = 1.0
    disagreement: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_count("silos", self.silos)
        check_positive("smoothness", self.smoothness)
        check_positive("diversity", self.diversity)
        check_not_negative("disagreement", self.disagreement)
        check_not_negative("noise", self.noise)

    @property
    def blur(self) -> float:
        """Return zeta^2 + V."""
        return self.disagreement + self.noise


def heads_published_step(constants: HeadsConstants) -> float:
    """Return the step size of theorems 5.1 to 5.3: 1 / (lam L)."""
    return 1 / (constants.diversity * constants.smoothness)


def heads_published_decay(
    constants: HeadsConstants, shared_gradient: float, interval: int = 1, power: int = 2
) -> Decay:
    """Return lemma 5.2 as printed, with B = `shared_gradient` and H = `interval`; it fails where L is small.

    The slope is 1 / (2 lam M L), and H^2 B^2 / (2 lam^2) + (2 H^2 + 1 / (2 M L)) V / lam^2 is added. Theorem
    5.1 is its `gradient_bound`, theorem 5.3 its `gap_bound`. Theorem 5.2 has B^2 times H, not H^2 (`power`).

    With one step per round, the L of every f_i and lam as in this file, 5.1 is a looser form of
    `heads_decay`, and so is 5.3 if 4 L >= 1 - 1/M. Taken literally, the assumptions make both fail: the L of
    f is M times smaller for heads, and assumption 5.5 divides by |sum_i d f|^2, which is M^2 times |d f|^2.
    """
    check_count("interval", interval)
    check_not_negative("shared_gradient", shared_gradient)
    lam, scale = constants.diversity, constants.silos * constants.smoothness
    drift = interval**power * shared_gradient**2 / 2
    noise = (2 * interval**2 + 1 / (2 * scale)) * constants.noise
    return Decay(1 / (2 * lam * scale), (drift + noise) / lam**2)


def heads_published_convex_bound(
    constants: HeadsConstants, radius: float, rounds: int, shared_gradient: float, interval: int = 1
) -> float:
    """Return theorem 5.2 as printed, 2 lam M L R^2 / T + alpha; it does not hold with noise.

    R is the radius of the set where f is at most its value at the start. Noise leaves that set: at the best
    point R = 0, so the bound is 0, but the effect of noise is not.
    """
    check_count("rounds", rounds)
    decay = heads_published_decay(constants, shared_gradient, interval, power=1)
    reach = radius**2 / decay.slope
    return reach / rounds + math.sqrt(reach * decay.added)


def heads_decay(
    constants: HeadsConstants,
    *,
    step: float | None = None,
    interval: int = 1,
    gradient: float | None = None,
) -> Decay:
    """Return how much a round lowers the loss, for any L-smooth f_i: lemma 5.2, rederived.

    `interval` is H. If it is above 1, `gradient` is needed: the bound B on |gradient f_i|, head and shared
    layers together. By default the step is 1 / (lam L), or 1 / (4 H lam L) if H > 1.

    >>> heads_decay(HeadsConstants(silos=10, smoothness=2.0, noise=0.4))
    Decay(slope=0.25, added=0.1)
    """
    check_count("interval", interval)
    smoothness, lam = constants.smoothness, constants.diversity
    if not lam >= 1:
        raise Problem(f"diversity must be a number >= 1, got {lam:g}")
    if step is None:
        step = 1 / (lam * smoothness * (1 if interval == 1 else 4 * interval))
    check_positive("step", step)
    if interval == 1:
        return Decay(step * (1 - lam * smoothness * step / 2), smoothness * step**2 * constants.blur / 2)
    if gradient is None:
        raise Problem("an interval above 1 needs `gradient`, a bound on the gradients")
    long = interval * step
    drift = smoothness * step * drift_sum(interval, gradient, constants.noise)
    chance = smoothness * long**2 * (constants.disagreement + constants.noise / interval)
    slope = long * (0.75 - lam * smoothness * long)
    return Decay(slope, chance + long * (1 + smoothness * long) * drift**2)


def heads_convex_bound(
    constants: HeadsConstants, distance: float, rounds: int, step: float | None = None
) -> float:
    """Return a bound on the mean over rounds of E f - f*, for convex f and H = 1: theorem 5.2, rederived.

    It is (distance^2 / T + eta^2 (zeta^2 + V)) / (2 eta (1 - lam L eta)), where `distance` is |w - w*| at the
    start. By default the step eta is 1 / (2 lam L). The bound also holds for the mean of all rounds' models.

    >>> heads_convex_bound(HeadsConstants(silos=10, smoothness=1.0, noise=0.4), distance=3.0, rounds=90)
    0.4
    """
    check_count("rounds", rounds)
    scale = constants.diversity * constants.smoothness
    step = 1 / (2 * scale) if step is None else step
    if not (constants.diversity >= 1 and 0 < step < 1 / scale):
        raise Problem(f"step must be a number above 0 and below {1 / scale:g}, and diversity >= 1")
    return (distance**2 / rounds + step**2 * constants.blur) / (2 * step * (1 - step * scale))
