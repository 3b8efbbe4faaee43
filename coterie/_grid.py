"""The public grid that exact noise is rounded to. It follows from the deviation of the noise alone."""

from __future__ import annotations

import math

from .errors import Problem

GRID = 20  # a cell is this many powers of two below the noise
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
