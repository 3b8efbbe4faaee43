"""Sums plus Gaussian noise, rounded to a public grid: the exact distribution, to the last bit.

What is released of a sum s with noise of deviation d is

    round((s + d N) / g) g,      N an ideal, real, standard normal number, g = 2^-20 times the power of two
                                 that is at most d, or a coarser grid, up to 2^-10 times that power.

The accountant certifies s + d N. Rounding it to a grid that does not depend on the data is
post-processing, so the certificate holds for what is released, provided that the cell of the grid is drawn
*exactly*. It is:

1. A normal number is the sign of a coin times the deviate x(q) of a uniform q (`quantile.py`). The bits of
   q come one after the other from a keystream, as many as are needed, so q is an ideal real number of
   which we know the first bits.
2. The first 63 bits give an interval of q, and with it one of s/g + (d/g) x. The compiled path computes a
   number that is within `doubt` of any number of the interval, by proved bounds: of the polynomial and its
   rounding (`quantile.errors`, times d/g < 2^21), and 2^-27 for the product and the sum below 2^24.
   Scaling by g, a power of two, is exact, and so is taking off the integer part of s/g.
3. If the number is further than `doubt` from the edge of a cell, all numbers of the interval lie in one
   cell, and that is the answer. Otherwise (about once in 2^22 draws, and in the far tail) `settle` draws
   more bits and computes the two ends of the interval with more digits, until both are in one cell.

Nothing is assumed of s: it is a number, however it was computed. That it moves by at most the clip when an
example is taken away is shown where it is computed. Assumed are: keystream bits that cannot be told from
ideal ones; float64 arithmetic of IEEE 754; mpmath's error function, whose results are checked from both
sides. Not covered: how long a draw takes (the slow path is taken by bits that nobody else knows, but it is
slower).

**Sums of noise drawn by several silos.** If n silos release round(u_k + d N_k) on one grid, the sum has
the distribution of round(sum of u_k + d sqrt(n) N + B), where B is the sum of n - 1 independent uniform
errors of a cell, up to a total variation of less than n exp(-(pi d / g)^2 / 2). That is below exp(-2^42), or
exp(-2^22) on the coarsest grid. The reason: a cell's probability is the Gaussian convolved with a box at a
point of the grid, the transform of such a sequence is that of the convolution plus aliases at distance
2 pi / g, and products of the main terms are the transform of what is claimed. So whoever sees only the sum
sees post-processing of one Gaussian with n times the variance."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Protocol

import mpmath
import numpy as np
from numba import njit

from .. import _grid
from .._grid import check_grid as check_grid
from .._grid import grid_exponent as grid_exponent
from ..errors import Problem
from .keystream import Keystream
from .quantile import BITS, DEGREE, OCTAVES, PARTS, deviate

ARITHMETIC = 2.0**-27
CHUNK = 256
REACH = 2.0**100  # cells: sums further out are refused, so that nothing overflows


class Doubting(Protocol):
    """Anything with a keystream for the bits that settle doubts."""

    @property
    def doubts(self) -> Keystream:
        """The keystream."""
        ...


def _table() -> tuple[np.ndarray, np.ndarray]:
    with (files(__package__) / "quantile.npz").open("rb") as file, np.load(file) as table:
        polynomials = table["polynomials"].reshape(-1, DEGREE + 1)
        return polynomials.T.copy(), np.repeat(table["errors"], PARTS)


POLYNOMIALS, ERRORS = _table()
COLUMNS = tuple(POLYNOMIALS)


def _grids(deviation: np.ndarray, given: int | None) -> np.ndarray:
    """Return the grid of each deviation, or the given one; 1 where there is no noise."""
    exponent = np.frexp(deviation)[1] - 1
    sound = (deviation > 0) & np.isfinite(deviation)
    sound &= (exponent >= _grid.SMALLEST) & (exponent <= _grid.LARGEST)
    for other in deviation[~sound & (deviation != 0)].tolist():
        grid_exponent(other)  # raises, and says why
    if given is None:
        return np.where(sound, np.ldexp(1.0, np.where(sound, exponent - _grid.GRID, 0)), 1.0)
    for other in set(deviation[sound].tolist()):
        check_grid(other, given)
    return np.where(sound, np.ldexp(1.0, given), 1.0)


def add_noise(
    sums: np.ndarray,
    deviation: np.ndarray,
    words: np.ndarray,
    doubting: Sequence[Doubting],
    exponent: int | None = None,
) -> None:
    """Add exact noise to the rows of `sums` `[rows, numbers]`, in place; a row with deviation 0 stays.

    `words` holds 64 secret bits for each number. `doubting` has the keystream of further bits for each row.
    With an `exponent`, all rows are rounded to multiples of 2 to that power, not each to its own grid.
    """
    grids = _grids(deviation, exponent)
    ratios = deviation / grids
    if not (np.abs(sums) <= REACH * np.where(deviation > 0, grids, np.inf)[:, None]).all():
        raise Problem("a sum that is to get noise is not finite, or far beyond it; nothing is released")
    if not sums.size:
        return
    if not words.reshape(len(sums), -1)[deviation > 0, :4].any(axis=1).all():
        raise ValueError("the words of a row were never drawn")  # by chance: once in 2^64 rows, or less
    doubtful = np.empty(64, dtype=np.int64)
    start, total = 0, sums.size
    flat, bits = sums.reshape(-1), words.reshape(-1)
    if not (np.shares_memory(flat, sums) and len(flat) == len(bits)):
        raise ValueError("sums must be contiguous, with a word for each number")
    while start < total:
        start, count = _add(flat, bits, ratios, grids, sums.shape[1], start, COLUMNS, ERRORS, doubtful)
        for place in doubtful[:count].tolist():
            row = place // sums.shape[1]
            cell = settle(flat[place], ratios[row], grids[row], int(bits[place]), doubting[row].doubts)
            flat[place] = cell * grids[row]


@njit(nogil=True, cache=True, error_model="numpy")
def _add(  # type: ignore[no-untyped-def]
    sums, words, ratios, grids, width, start, table, errors, doubtful
):  # pragma: no cover - compiled
    """Add noise from `start` on; return where it stopped, and how many `doubtful` numbers were put aside.

    Numbers are worked out a chunk at a time into a buffer, without branches. A chunk in which one is
    doubtful is gone through again.
    """
    count, place, total = 0, start, len(sums)
    buffer, doubts = np.empty(CHUNK), np.empty(CHUNK)
    c0, c1, c2, c3, c4, c5 = table
    while place < total:
        row = place // width
        end = min(total, (row + 1) * width, place + CHUNK)
        ratio, grid = ratios[row], grids[row]
        if ratio == 0.0:
            place = end
            continue
        inverse, worst = 1.0 / grid, 1.0
        for k in range(end - place):
            word = words[place + k]
            q = np.float64(np.int64(word >> np.uint64(1)))
            # the exponent of q tells its octave, the next five bits its part, the others the place in it
            raw = q.view(np.int64)
            index = ((np.int64(62 + 1023) - (raw >> 52)) << 5) + ((raw >> 47) & 31)
            far = index < 0 or index >= OCTAVES * PARTS
            index = np.int64(0) if far else index
            at = np.float64(raw & ((1 << 47) - 1)) * 2.0**-46 - 1.0
            x = (c5[index] * at + c4[index]) * at + c3[index]
            x = ((x * at + c2[index]) * at + c1[index]) * at + c0[index]
            x = -x if word & np.uint64(1) else x
            scaled = sums[place + k] * inverse
            whole = np.trunc(scaled)
            moved = (scaled - whole) + ratio * x
            nearest = np.rint(moved)
            buffer[k] = (whole + nearest) * grid
            doubt = 0.5 - abs(moved - nearest) - (ratio * errors[index] + ARITHMETIC)
            doubt = -1.0 if far or not doubt > 0.0 else doubt
            doubts[k] = doubt
            worst = min(worst, doubt)
        if worst > 0.0:
            sums[place:end] = buffer[: end - place]
            place = end
            continue
        first = place
        while place < end:
            if doubts[place - first] > 0.0:
                sums[place] = buffer[place - first]
            else:
                doubtful[count] = place
                count += 1
                if count == len(doubtful):
                    return place + 1, count
            place += 1
    return place, count


def settle(value: float, ratio: float, grid: float, word: int, stream: Keystream) -> int:
    """Return the cell of one number, with as many bits and digits as it takes."""
    sign, bits, known = -1 if word & 1 else 1, word >> 1, BITS
    while True:
        cells = {_cell(value, ratio, grid, sign, end, known) for end in (bits, bits + 1)}
        if len(cells) == 1 and None not in cells:
            return int(cells.pop())
        bits, known = (bits << 64) + stream.word(), known + 64


def _cell(value: float, ratio: float, grid: float, sign: int, bits: int, known: int) -> Any:
    """Return the cell for q = bits / 2^known, or None if it cannot be told."""
    if bits == 0:
        return None
    with mpmath.workprec(2 * known + 200):
        edges = deviate(mpmath.ldexp(bits, -known), known)
        cells = {mpmath.floor(mpmath.mpf(value) / grid + sign * ratio * x + 0.5) for x in edges}
        return cells.pop() if len(cells) == 1 else None
