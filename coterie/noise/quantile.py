"""The normal quantile function, to any precision, and the table that the compiled sampler reads.

`deviate(q)` is the number x >= 0 that the absolute value of a standard normal exceeds with probability q.
The table approximates it by a polynomial on each of `PARTS` equal parts of each octave 2^-(e+1) <= q <
2^-e. A polynomial goes through Chebyshev points, so its error has a closed bound:

    |x^(n)(q)| (h / 4)^n 2 / n!      with n = DEGREE + 1 points on a part of width h.

The derivatives of x are known: with v = q / 2, dx/dv = -1/density(x), and by induction the n-th derivative
has the absolute value P_n(x) / density(x)^n, where P_1 = 1 and P_(n+1) = P_n' + n x P_n. These polynomials
have no negative coefficient, so the largest derivative of a part is at its smallest q. `errors` adds what
rounding the coefficients and evaluating in float64 can cost, and what the bits after the first 63 can
change."""

from __future__ import annotations

import math

import mpmath
import numpy as np

BITS = 63  # of q that are drawn first; the 64th bit of a word is the sign
OCTAVES = 24  # further out (once in 2^24 draws) the slow path takes over
PARTS = 32
DEGREE = 5
UNIT = 2.0**-53


def deviate(q: mpmath.mpf, precision: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Return two numbers, at most about 2^-precision apart, with the deviate of `q` in (0, 1] between them.

    Newton's method, on the logarithm of the tail, finds the middle. That the deviate lies between the two is
    then checked by their tails.
    """
    # the tail may be tiny, and near x = 0 it hardly changes: more digits than asked for
    with mpmath.workprec(2 * precision + 64 + max(0, int(-mpmath.log(q, 2)))):
        apart = mpmath.ldexp(1, -precision)
        if q >= 1:
            return mpmath.mpf(0), mpmath.mpf(0)
        x, wanted = mpmath.mpf(_rough(q)), mpmath.log(q)
        for _ in range(200):
            tail = mpmath.erfc(x / mpmath.sqrt(2))
            step = (mpmath.log(tail) - wanted) * tail / (2 * mpmath.npdf(x))
            x += step
            if abs(step) < apart / 8:
                break
        low, high = max(x - apart / 2, mpmath.mpf(0)), x + apart / 2
        root = mpmath.sqrt(2)
        if not mpmath.erfc(high / root) <= q <= mpmath.erfc(low / root):
            raise ArithmeticError(f"the normal quantile of {mpmath.nstr(q, 20)} was not found")
        return low, high


def _rough(q: mpmath.mpf) -> float:
    """Return the deviate of `q` to a few digits, where Newton's method can begin."""
    if q > mpmath.mpf("1e-250"):
        from scipy.special import erfcinv

        return max(0.0, math.sqrt(2) * float(erfcinv(float(q))))
    return float(mpmath.sqrt(-2 * mpmath.log(q)))


def part_of(octave: int, part: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Return the smallest q and the width of one part of an octave."""
    width = mpmath.ldexp(1, -octave - 1) / PARTS
    return mpmath.ldexp(1, -octave - 1) + part * width, width


def polynomials() -> np.ndarray:
    """Return coefficients `[octaves, parts, degree + 1]`, in powers of the place from -1 to 1 in a part."""
    table = np.empty((OCTAVES, PARTS, DEGREE + 1))
    points = [mpmath.cos(mpmath.pi * (2 * k + 1) / (2 * DEGREE + 2)) for k in range(DEGREE + 1)]
    with mpmath.workprec(160):
        powers = mpmath.matrix([[point**k for k in range(DEGREE + 1)] for point in points])
        for octave in range(OCTAVES):
            for part in range(PARTS):
                start, width = part_of(octave, part)
                values = [sum(deviate(start + width * (1 + point) / 2, 120)) / 2 for point in points]
                table[octave, part] = [float(c) for c in mpmath.lu_solve(powers, mpmath.matrix(values))]
    return table


def derivative_bounds(order: int) -> list[int]:
    """Return the coefficients of P_order, lowest power first."""
    coefficients = [1]
    for n in range(1, order):
        raised = [0, *(n * c for c in coefficients)]
        for k, c in enumerate(coefficients[1:]):
            raised[k] += (k + 1) * c
        coefficients = raised
    return coefficients


def errors(table: np.ndarray) -> np.ndarray:
    """Return a bound for each octave on how far the computed deviate may be from the true one."""
    order, found = DEGREE + 1, np.empty(OCTAVES)
    growth = derivative_bounds(order)
    for octave in range(OCTAVES):
        worst = 0.0
        for part in range(PARTS):
            start, width = part_of(octave, part)
            high = deviate(start, 80)[1]
            derivative = sum(c * high**k for k, c in enumerate(growth)) / (2 * mpmath.npdf(high)) ** order
            between = 2 * (width / 4) ** order / mpmath.factorial(order) * derivative
            # each coefficient is rounded once, each step of Horner's rule twice
            rounding = UNIT * (2 * order + 2) * float(np.abs(table[octave, part]).sum())
            # q is known to its first 63 bits, and rounded to float64
            unknown = (mpmath.ldexp(1, -BITS) + UNIT * (start + width)) / (2 * mpmath.npdf(high))
            worst = max(worst, float(between) + rounding + 1.01 * float(unknown))
        found[octave] = 1.01 * worst
    return found


if __name__ == "__main__":  # python -m coterie.noise.quantile writes the table anew
    from pathlib import Path

    made = polynomials()
    np.savez(Path(__file__).with_name("quantile.npz"), polynomials=made, errors=errors(made))
