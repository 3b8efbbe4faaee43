"""How fast mean-regularised learning of whole silos converges: what was proved, and what is so.

Hu, Wu, Smith 2023 (Private Multi-Task Learning), algorithm 1 and theorems 6 and 7. Silo k has its model
w_k and f_k(w; v) = l_k(w) + lam/2 |w - v|^2. In a round q of m silos take E steps on f_k(.; v); the server
moves v by the mean of their moves plus noise N(0, sigma^2) in d coordinates. l_k >= 0 is L-smooth and,
in theorem 7, mu-strongly convex; p = q/m; nothing is clipped.

What is printed:
- Its proofs take the expectation of a squared coin for p^2, where it is p. So the step of theorem 6 may
  be above 2 / (L + lam), where descent diverges.
- Theorem 7 turns a sign between (104) and (105). So each step it admits is above 2 / (L + lam), or
  negative. Its bound holds nevertheless: it is never below m B, B the largest f_k, whatever was trained.
- The server divides by q, so v moves m/q times as far as the mean of all models does. On losses of
  curvature mu it runs away if p < lam / (mu + lam), at any step: `least_share`.

What is so, if v moves by the mean over *all* m, silos that are absent adding 0 (for q = m that is the
algorithm as printed). Then v = mean of all w_k + n, where n is the sum of all noise so far: a random walk,
E |n|^2 = t d sigma^2 after t rounds. Write V = d sigma^2, G(W) = sum_k f_k(w_k; mean of W), and let the step
eta be at most 1 / (L + lam).

- A local step takes at least a = eta (1 - eta (L + lam) / 2) times |gradient f_k|^2 off f_k; then the server
  adds lam m/2 (|noise|^2 - |move|^2 + 2 <move + noise, n>), exactly; so sum_k f_k grows by at most lam m/2
  (V + t V) - p a sum_k |gradient f_k|^2. That is `gradient_bound`.
- G is (L + lam)-smooth and mu-strongly convex (not mu + lam: the pull does not act on the mean), and a
  round of one step is a descent on G with the error lam n in each silo. That is `gap_bound`.

Without noise both go to 0: what remains is due to noise, and grows with the number of rounds.
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
    """L, lam and mu of each l_k (`convexity`), the `share` p of silos in a round, `noise` V = d sigma^2."""

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
            raise Problem("convexity must be at most the smoothness")

    @property
    def total(self) -> float:
        """Give L + lam, the smoothness of f_k."""
        return self.smoothness + self.lam


def published_nonconvex_step(constants: PullConstants) -> float:
    """Give the step of theorem 6: 1 / (p L + (p + 1/p) lam); above 2 / (L + lam) descent diverges."""
    share = constants.share
    return 1 / (share * constants.total + constants.lam / share)


def published_nonconvex_bound(
    constants: PullConstants, gap: float, broadcasts: ArrayLike, local_steps: int = 1
) -> float:
    """Give theorem 6 with the constants of its proof, (70) and (71); for p < 1 it may fail.

    It bounds the mean over steps and silos of |gradient f_k|^2. `gap` is the mean of f_k - f_k* at the
    start; `broadcasts` are B, the largest f_k, after each of the T/E broadcasts. The theorem prints
    the constants of B and sigma^2 as O(.), and the latter once divided by m, (29), once not, (75).
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
    """Give the least and the largest step that theorem 7 admits; each is above 2 / (p (L + lam)).

    c p / ((L + lam) p^2 - 2 lam), with 1/2 <= eta p (c - 2) (mu + lam) <= 1. Refused where it is negative.
    """
    square = constants.share**2
    room = constants.total - 2 * constants.lam / square
    if not room > 0:
        raise Problem(
            f"theorem 7 has a negative step size here: it needs (L + lam) p^2 > 2 lam, got"
            f" {constants.total * square:g} and {2 * constants.lam:g}"
        )
    scale = room / (constants.convexity + constants.lam)
    least, most = (1 + math.sqrt(1 + value * scale) for value in (0.5, 1.0))
    return least / (constants.share * room), most / (constants.share * room)


def published_convex_bound(
    constants: PullConstants, gap: float, steps: int, largest: float, local_steps: int = 1
) -> float:
    """Give theorem 7, (78), over m: a bound on the mean of f_k - f_k* after `steps`; it says nothing.

    `gap` is that mean at the start, `largest` is B, the largest f_k of all silos and steps. The bound is
    at least B, and losses are not negative, so it holds whatever is done.

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
    """Give the three terms of (10), each up to a factor that is not printed; `cost` is log(1/delta) / eps^2.

    They are said of T = O(m / (lam d gamma^2)) rounds. The second is no rate: it stays as T grows.
    """
    return {
        "descent": dimension * clip**2 / silos,
        "pull": lam * largest / local_steps,
        "privacy": cost / (silos * local_steps),
    }


def least_share(curvature: float, lam: float) -> float:
    """Give the share of silos a round, lam / (a + lam), below which algorithm 1 as printed runs away.

    For losses of curvature a in some direction, at any step size, without noise. At a share p above it the
    mean of all models goes to w_0 + (c - w_0) a / (a - lam (1/p - 1)), c being the mean of the best
    models, instead of c: further than c from where it began.

    >>> least_share(curvature=1.0, lam=3.0)
    0.75
    """
    check_not_negative("lam", lam)
    check_positive("curvature", curvature)
    return lam / (curvature + lam)


def best_step(constants: PullConstants) -> float:
    """Give 1 / (L + lam), the step at which `gradient_bound` is least."""
    return 1 / constants.total


def gradient_bound(constants: PullConstants, gap: float, rounds: int, step: float | None = None) -> float:
    """Give a bound on the mean over rounds and silos of E |gradient f_k|^2 at each broadcast.

    gap / (p a T) + lam V (T + 1) / (4 p a), a = eta (1 - eta (L + lam) / 2); `gap` is the mean of f_k - f_k*
    at the start, E any number. On flat losses its last term is exact but for (T - 1) / (T + 1).

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
    """Give a bound on the mean over silos of E f_k(w_k; v) - f_k(w_k*; v*) after all rounds.

    Theorem 7, derived anew. A round keeps k = 1 - p eta mu of the gap of G and adds b E |n|^2, b = p eta
    lam^2 / 2; the noise in the last broadcast costs lam T V / 2. With E > 1 local steps k = 1 - p eta mu / 2
    and b = lam (1 + p eta lam) / 2.
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
