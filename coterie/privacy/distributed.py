"""Noise that silos add in parts: how much each adds, and what must hold so that the sum has enough.

Of n silos, at most `dropouts` send nothing and at most `colluding` tell the server their noise. The sum of
the others' uploads contains the noise of at least n - dropouts - colluding honest silos. If each adds a
variance of sigma^2 / (n - dropouts - colluding), the honest noise has a variance of at least sigma^2.

The masks of a secure sum (`coterie.secure_sum`) open with the shares of `least_threshold` silos. More than
(n + colluding) / 2 are needed, so that a server cannot have two different sets of silos confirmed: an honest
silo confirms one set only, and a colluding silo may confirm both.
"""

from __future__ import annotations

import math
from fractions import Fraction

from ..errors import Problem

FEWEST = 3  # silos: the sum of two tells each of them the other's upload
MOST = 255  # silos: shares of secrets are points of a field with 256 elements


def least_threshold(silos: int, colluding: int) -> int:
    """Return the smallest number above (silos + colluding) / 2: the silos needed to open masks.

    >>> least_threshold(10, 1), least_threshold(9, 1)
    (6, 6)
    """
    return (silos + colluding) // 2 + 1


def assumption_problems(silos: int, dropouts: int, colluding: int) -> list[str]:
    """Return what is wrong with the numbers of silos that may drop out and collude in a secure sum."""
    given = {"dropouts": dropouts, "colluding": colluding}
    problems = [
        f"{name}: expected a whole number >= 0, got {number!r}"
        for name, number in given.items()
        if isinstance(number, bool) or not isinstance(number, int) or number < 0
    ]
    if not FEWEST <= silos <= MOST:
        problems.append(f"a secure sum needs from {FEWEST} to {MOST} silos, got {silos}")
    if problems:
        return problems
    if colluding >= silos:
        return [f"colluding: expected fewer than all {silos} silos, got {colluding}"]
    most = silos - least_threshold(silos, colluding)
    if dropouts > most:
        return [
            f"dropouts: with {silos} silos of which {colluding} may collude, at most {most} may drop out, got"
            f" {dropouts}"
        ]
    return []


def check_assumptions(silos: int, dropouts: int, colluding: int) -> None:
    """Raise `Problem` unless a secure sum can withstand so many dropouts and colluding silos."""
    problems = assumption_problems(silos, dropouts, colluding)
    if problems:
        raise Problem("\n".join(problems))


def noise_share(noise: float, silos: int, dropouts: int, colluding: int) -> float:
    """Return the noise that each of `silos` silos adds, so that the honest part of any sum has `noise`.

    It is noise / sqrt(silos - dropouts - colluding), rounded up: variances never add up to less.

    >>> noise_share(6.0, silos=12, dropouts=2, colluding=1)
    2.0
    """
    check_assumptions(silos, dropouts, colluding)
    if not (math.isfinite(noise) and noise >= 0):
        raise Problem(f"noise: expected a finite number >= 0, got {noise}")
    honest = silos - dropouts - colluding
    share = noise / math.sqrt(honest)
    while Fraction(share) ** 2 * honest < Fraction(noise) ** 2:
        share = math.nextafter(share, math.inf)
    return share
