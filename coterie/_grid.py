"""The public grid that exact noise is rounded to. It follows from the deviation of the noise alone."""

from __future__ import annotations

import math

from .errors import Problem

GRID = 20  # a cell is this many powers of two below the noise
COARSEST = 10  # and at least this many, if the grid is given
SMALLEST, LARGEST = -900, 900  # exponents of deviations that are accepted


def grid_exponent(deviation: float) -> int:
    """Return the exponent of the grid, a power of two, on which noise of this deviation is released.

    >>> grid_exponent(1.0), grid_exponent(7.9)
    (-20, -18)
    """
    if not (math.isfinite(deviation) and deviation > 0):
        raise ValueError(f"the deviation of noise must be a finite number > 0, got {deviation}")
    exponent = math.frexp(deviation)[1] - 1
    if not SMALLEST <= exponent <= LARGEST:
        raise Problem(f"noise of deviation {deviation:g} cannot be drawn: use a clip of ordinary size")
    return exponent - GRID


def check_grid(deviation: float, exponent: int) -> None:
    """Raise `Problem` unless noise of this deviation may be released on the grid of this exponent."""
    finest = grid_exponent(deviation)
    if not finest <= exponent <= finest + GRID - COARSEST:
        raise Problem(
            f"noise of deviation {deviation:g} cannot be released on a grid of 2^{exponent}: expected an"
            f" exponent from {finest} to {finest + GRID - COARSEST}"
        )
