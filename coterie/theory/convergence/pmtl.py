"""How fast mean-regularised learning of whole silos converges: what was printed, and what holds.

The setting is that of Hu, Wu, Smith 2023 (Private Multi-Task Learning), algorithm 1 and theorems 6 and 7.
Silo k has a model w_k and the loss f_k(w; v) = l_k(w) + lam/2 |w - v|^2. In each round q of m silos take E
steps on f_k(.; v), and the server moves v by the mean of their moves plus noise N(0, sigma^2) in d
coordinates. l_k >= 0 is L-smooth and, in theorem 7, mu-strongly convex; p = q/m; nothing is clipped.

What is printed:
- The proofs take the expectation of a squared coin to be p^2, but it is p. So the step of theorem 6 may be
  above 2 / (L + lam), where descent diverges.
- Theorem 7 flips a sign between (104) and (105). So every step it admits is negative or above 2 / (L + lam).
  Its bound holds nevertheless: it is never below m B, where B is the largest f_k, whatever was trained.
- The server divides by q, so v moves m/q times as far as the mean of all models does. On losses of curvature
  mu it runs away if p < lam / (mu + lam), at any step size: see `least_share`.

What holds, if v moves by the mean over *all* m silos, where absent silos contribute 0 (for q = m this is the
algorithm as printed). Then v = mean of all w_k + n, where n is the sum of all noise so far: a random walk
with E |n|^2 = t d sigma^2 after t rounds. Write V = d sigma^2 and G(W) = sum_k f_k(w_k; mean of W), and let
the step eta be at most 1 / (L + lam).

- A local step lowers f_k by at least a |gradient f_k|^2, where a = eta (1 - eta (L + lam) / 2). The server
  then adds exactly lam m/2 (|noise|^2 - |move|^2 + 2 <move + noise, n>). So sum_k f_k grows by at most
  lam m/2 (V + t V) - p a sum_k |gradient f_k|^2. This gives `gradient_bound`.
- G is (L + lam)-smooth and mu-strongly convex (not mu + lam: the pull does not act on the mean). A round of
  one step is a descent on G with an error of lam n in each silo. This gives `gap_bound`.

Without noise both bounds go to 0. What remains is due to noise, and grows with the number of rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...errors import Problem
from .decay import check_count, check_not_negative, check_positive


@dataclass(frozen=True, kw_only=True)
class PullConstants:
    """L = `smoothness`, lam, mu = `convexity` of each l_k, p = `share` of silos per round, V = `noise`."""

    smoothness: float
    lam: float
    convexity: float = 0.0
    share: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("smoothness", "lam", "convexity", "noise"):
            check_not_negative(name, getattr(self, name))
        check_positive("smoothness + lam", self.total)
        if not 0 < self.share <= 1:
            raise Problem(f"share must be a number above 0 and at most 1, got {self.share:g}")
        if self.convexity > self.smoothness:
            raise Problem(
                f"convexity must be at most the smoothness {self.smoothness:g}, got {self.convexity:g}"
            )

    @property
    def total(self) -> float:
        """Return L + lam, the smoothness of f_k."""
        return self.smoothness + self.lam


def published_nonconvex_step(constants: PullConstants) -> float:
    """Return the step of theorem 6, 1 / (p L + (p + 1/p) lam); above 2 / (L + lam) descent diverges."""
    share = constants.share
    return 1 / (share * constants.total + constants.lam / share)


def published_nonconvex_bound(
    constants: PullConstants, gap: float, broadcasts: ArrayLike, local_steps: int = 1
) -> float:
    """Return theorem 6 with the constants of its proof, (70) and (71); for p < 1 it may fail.

    It bounds the mean over steps and silos of |gradient f_k|^2. `gap` is the mean of f_k - f_k* at the start.
    `broadcasts` lists B, the largest f_k, after each of the T/E broadcasts. The theorem prints the constants
    of B and sigma^2 as O(.); the latter is divided by m in (29) but not in (75).
    """
    check_count("local_steps", local_steps)
    smoothness, lam, noise = constants.smoothness, constants.lam, constants.noise
    square = constants.share**2
    largest = np.asarray(broadcasts, dtype=np.float64)
    steps = largest.size * local_steps
    first = 4 * (constants.total + lam / square)
    first += 2 * lam / (local_steps * (constants.total * square + 2 * lam))
    mixed = lam * noise + 2 * np.sqrt(2 * lam * noise * largest)
    each = (smoothness + lam + 2 * lam / square) * mixed + 4 * lam * largest / square
    return first * gap / steps + 2 * float(each.sum()) / steps


def published_convex_steps(constants: PullConstants) -> tuple[float, float]:
    """Return the smallest and the largest step that theorem 7 admits; both are above 2 / (p (L + lam)).

    The steps are eta = c p / ((L + lam) p^2 - 2 lam), with 1/2 <= eta p (c - 2) (mu + lam) <= 1. Raise
    Problem if they are negative or undefined.
    """
    square = constants.share**2
    room = constants.total - 2 * constants.lam / square
    if not room > 0:
        raise Problem(
            f"theorem 7 admits no positive step here: it needs (L + lam) p^2 > 2 lam, got"
            f" {constants.total * square:g} and {2 * constants.lam:g}"
        )
    scale = room / (constants.convexity + constants.lam)
    least, most = (1 + math.sqrt(1 + value * scale) for value in (0.5, 1.0))
    return least / (constants.share * room), most / (constants.share * room)


def published_convex_bound(
    constants: PullConstants, gap: float, steps: int, largest: float, local_steps: int = 1
) -> float:
    """Return theorem 7, (78), over m: a vacuous bound on the mean of f_k - f_k* after `steps`.

    `gap` is that mean at the start, and `largest` is B, the largest f_k of all silos and steps. The bound is
    at least B, and losses are not negative, so it holds whatever is trained.

    >>> published_convex_bound(PullConstants(smoothness=3, lam=1), gap=1.0, steps=4, largest=1.0)
    2.0
    """
    check_count("local_steps", local_steps)
    check_count("steps", steps)
    root = 2 * math.sqrt(2 * constants.lam * constants.noise * largest)
    around = constants.lam * constants.noise + root + largest
    return 0.5**steps * (gap - around) + around / (1 - 0.5**local_steps)


def published_rates(
    *, silos: int, local_steps: int, dimension: int, clip: float, lam: float, largest: float, cost: float
) -> dict[str, float]:
    """Return the three terms of (10), each up to a factor that is not printed.

    `cost` is log(1/delta) / eps^2. The terms are stated for T = O(m / (lam d gamma^2)) rounds. The second is
    not a rate: it does not shrink as T grows.
    """
    return {
        "descent": dimension * clip**2 / silos,
        "pull": lam * largest / local_steps,
        "privacy": cost / (silos * local_steps),
    }


def least_share(curvature: float, lam: float) -> float:
    """Return the share of silos per round, lam / (a + lam), below which algorithm 1 as printed runs away.

    This holds for losses of curvature a in some direction, at any step size, even without noise. At a larger
    share p, the mean of all models goes to w_0 + (c - w_0) a / (a - lam (1/p - 1)) instead of c, the mean of
    the best models: it overshoots c.

    >>> least_share(curvature=1.0, lam=3.0)
    0.75
    """
    check_not_negative("lam", lam)
    check_positive("curvature", curvature)
    return lam / (curvature + lam)


def best_step(constants: PullConstants) -> float:
    """Return 1 / (L + lam), the step at which `gradient_bound` is smallest."""
    return 1 / constants.total


def gradient_bound(constants: PullConstants, gap: float, rounds: int, step: float | None = None) -> float:
    """Return a bound on the mean over rounds and silos of E |gradient f_k|^2 at each broadcast.

    It is gap / (p a T) + lam V (T + 1) / (4 p a), with a = eta (1 - eta (L + lam) / 2) and any number E of
    local steps. `gap` is the mean of f_k - f_k* at the start. On flat losses the last term is exact up to a
    factor of (T - 1) / (T + 1).

    >>> gradient_bound(PullConstants(smoothness=0, lam=2.0, noise=0.1), gap=0.0, rounds=9)
    2.0
    """
    check_count("rounds", rounds)
    step = best_step(constants) if step is None else step
    if not 0 < step < 2 / constants.total:
        raise Problem(f"step must be a number above 0 and below {2 / constants.total:g}, got {step:g}")
    decrease = constants.share * step * (1 - step * constants.total / 2)
    noise = constants.lam * constants.noise * (rounds + 1) / 4
    return gap / (decrease * rounds) + noise / decrease


def gap_bound(
    constants: PullConstants, gap: float, rounds: int, step: float | None = None, local_steps: int = 1
) -> float:
    """Return a bound on the mean over silos of E f_k(w_k; v) - f_k(w_k*; v*) after all rounds.

    This is theorem 7, rederived. A round multiplies the gap of G by k = 1 - p eta mu and adds b E |n|^2, with
    b = p eta lam^2 / 2. The noise in the last broadcast costs lam T V / 2. With E > 1 local steps,
    k = 1 - p eta mu / 2 and b = lam (1 + p eta lam) / 2.
    """
    check_count("rounds", rounds)
    check_count("local_steps", local_steps)
    check_positive("convexity", constants.convexity)
    step = best_step(constants) if step is None else step
    if not 0 < step <= best_step(constants) * (1 + 1e-12):
        raise Problem(f"step must be a number above 0 and at most {best_step(constants):g}, got {step:g}")
    lam, moved = constants.lam, constants.share * step
    kept, added = 1 - moved * constants.convexity, moved * lam**2 / 2
    if local_steps > 1:
        kept, added = 1 - moved * constants.convexity / 2, lam * (1 + moved * lam) / 2
    before = np.arange(rounds)
    walked = float((kept ** (rounds - 1 - before)) @ before)
    return kept**rounds * gap + (added * walked + lam * rounds / 2) * constants.noise
