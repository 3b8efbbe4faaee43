"""How many rounds dual coordinates need: theorems 3 and 4 of Hu, Guo, Li, Pei, Gong 2020, as functions.

The theorems apply if Omega is fixed, features have norm at most 1, duals carry no noise (the paper's
algorithm adds noise, but its bounds have no term for it), and xi < 1. Both bounds divide by 1 - xi, although
the algorithm allows xi = 1, and CoCoA, from which they are taken, has no such factor. `quality` is the
paper's Theta: 1 minus the smallest share of a round's possible progress that a silo is expected to make,
counting the chance that it drops out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import Problem


def quality(drop: float, work: float) -> float:
    """Return Theta = p_max + (1 - p_max) Theta_max.

    `drop` is p_max, the chance that a silo drops out. `work` is Theta_max, the quality of those that do not
    (0: they solve their problem exactly).

    >>> quality(0.5, 0.5)
    0.75
    """
    for key, value in (("drop", drop), ("work", work)):
        if not 0 <= value < 1:
            raise Problem(f"{key} must be a number in [0, 1), got {value:g}")
    return drop + (1 - drop) * work


def smooth_step(bend: float, beta: float, lam: float, sizes: Sequence[int], relation: float) -> float:
    """Return an s for theorem 3, which only says that one exists, for losses that are 1/mu-smooth.

    It follows from the proof: with mu = `bend` (1/2 for the squared loss and squared hinge), the largest
    Omega_tt = `relation` and |X_t v|^2 <= n_t |v|^2, s = mu / (mu + beta Omega_tt n_t / (2 lam)) for the
    largest silo.
    """
    _positive(bend=bend, beta=beta, lam=lam, relation=relation)
    return bend / (bend + beta * relation * max(sizes) / (2 * lam))


def smooth_rounds(examples: int, gap: float, xi: float, theta: float, step: float) -> int:
    """Return how many rounds it takes until E D(a) - D(a*) is at most `gap`, for smooth losses.

    Theorem 3: K >= log(n / gap) / ((1 - xi) xi (1 - Theta) s), where n counts all examples. Losses at zero
    must be at most 1.
    """
    _positive(examples=examples, gap=gap)
    _inside(xi, theta)
    if not 0 < step < 1:
        raise Problem(f"step must be a number in (0, 1), got {step:g}")
    return max(0, math.ceil(math.log(examples / gap) / ((1 - xi) * xi * (1 - theta) * step)))


def lipschitz_rounds(
    sizes: Sequence[int], gap: float, xi: float, theta: float, lam: float, lipschitz: float, start: float
) -> int:
    """Return the number of rounds of theorem 4 as printed, for losses that are L-Lipschitz (hinge: L = 1).

    `start` is D(a_0) - D(a*). The theorem bounds D - D* at the *mean* of the duals after K0 rounds, which
    the algorithm does not use. Its k0 has a product where CoCoA's theorem, from which it is taken, has a
    quotient. Its n^2 comes from losses that are averaged there, while the paper adds them up.
    """
    _positive(gap=gap, lam=lam, lipschitz=lipschitz, start=start)
    _inside(xi, theta)
    count, examples = len(sizes), sum(sizes)
    speed = (1 - xi) * (1 - theta)
    weight = count * lipschitz**2 * sum(size**2 for size in sizes) / (lam * examples**2)
    first = max(0, math.ceil(speed * math.log(2 * start / weight)))
    before = first + max(0, math.ceil(2 / speed * (4 * weight / gap - 1)))
    return before + math.ceil(max(1.0, 2 * weight / gap) / speed)


def _inside(xi: float, theta: float) -> None:
    if not 0 < xi < 1:
        raise Problem(f"xi must be a number in (0, 1), got {xi:g}: the bounds divide by 1 - xi")
    if not 0 <= theta < 1:
        raise Problem(f"theta must be a number in [0, 1), got {theta:g}")


def _positive(**numbers: float) -> None:
    for key, value in numbers.items():
        if not value > 0:
            raise Problem(f"{key} must be a number > 0, got {value:g}")
