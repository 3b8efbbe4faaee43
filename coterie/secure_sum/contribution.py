"""What a silo adds to a secure sum: its upload, clipped and noised, in cells of the public grid.

Formal guarantee: replacing an upload by zeros moves its contribution, before the noise, by at most `clip` in
Euclidean norm, whatever the upload holds. If its norm is not finite, it counts as zeros. The noise is exact
and on the grid (`coterie.noise.rounded`), with the deviation of the terms.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import Problem, Refused
from ..noise.dice import KeyedDice
from .terms import Terms

ROUNDING = 1e-5  # a share of the clip that pays for the rounding of norms and products


def contribution(upload: np.ndarray, terms: Terms, dice: KeyedDice, clip: float | None = None) -> np.ndarray:
    """Return a vector, clipped and noised, as int64 cells of the grid.

    `clip` is that of this silo, if it is smaller than that of the terms. `dice` are drawn for this upload and
    for nothing else.
    """
    length = terms.clip if clip is None else clip
    if not 0 < length <= terms.clip:
        raise Refused(f"secure sum: expected a clip from 0 to {terms.clip:g}, got {length!r}")
    vector = np.array(upload, dtype=np.float64).reshape(-1)
    if len(vector) != terms.size:
        raise Problem(f"secure sum: expected an upload of {terms.size} numbers, got {len(vector)}")
    noisy = dice.noisy(clipped(vector, length), terms.own_deviation, exponent=terms.exponent)
    return to_cells(noisy, terms)


def clipped(vector: np.ndarray, clip: float) -> np.ndarray:
    """Return a float64 vector, no longer than `clip`; zeros if its norm is not finite."""
    norm = _norm(vector)
    if not math.isfinite(norm):
        return np.zeros_like(vector)
    return vector * min(1.0, clip / (norm * (1 + ROUNDING))) if norm else vector


def _norm(vector: np.ndarray) -> float:
    """Return the Euclidean norm; squares neither overflow nor vanish."""
    largest = float(np.abs(vector).max(initial=0.0))
    if largest == 0 or not math.isfinite(largest):
        return largest
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    return scale * float(np.sqrt(np.square(vector / scale).sum()))


def to_cells(values: np.ndarray, terms: Terms) -> np.ndarray:
    """Return values on the grid as int64 cells; raise `Refused` if one is not on the grid or out of reach."""
    cells = np.ldexp(values, -terms.exponent)
    if not (np.abs(cells) <= terms.reach).all():
        raise Refused(f"secure sum: an upload is further out than {terms.reach} cells; nothing is sent")
    whole: np.ndarray = cells.astype(np.int64)
    if not (whole == cells).all():
        raise Refused("secure sum: an upload is not on the grid, so it has no noise; nothing is sent")
    return whole


def from_cells(cells: np.ndarray, terms: Terms) -> np.ndarray:
    """Return a sum of cells as float64 numbers."""
    values: np.ndarray = np.ldexp(cells.astype(np.float64), terms.exponent)
    return values
