"""Privacy losses on a grid: rounding, composing and reading them.

dp-accounting does the same point by point and needs about fifty milliseconds per epsilon. Here every
step is one operation on arrays, which is ten times as fast (`python -m benchmarks accountant`). That
matters to a ledger, which trusts no cached number, and to a study of many budgets. Tests compare both.

Composition raises Fourier coefficients to a power (Koskela, Jaelkoe and Honkela 2020). Upper bounds
connect the dots of a curve delta(epsilon) (Doroshenko and others 2022); `lower` explains lower bounds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Array = NDArray[np.float64]
TAIL = 1e-15  # what a composition may drop at both ends together; upper bounds count it as infinite loss
LONGEST = 2**25
LEAST = 1e-290
STEEPEST = 500.0
TILTS = 2.0 ** np.arange(-6, 3)  # multiples of the tilt that is best for a normal distribution


@dataclass(frozen=True, eq=False)
class Losses:
    """Probabilities of the losses `lowest`, `lowest + 1`, ... times `interval`, and of an `infinite` loss."""

    interval: float
    lowest: int
    masses: Array
    infinite: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.masses).all() and 0 <= self.infinite <= 1 and self.interval > 0):
            raise ValueError("privacy losses are not finite")

    def delta_at(self, epsilons: Array) -> Array:
        """Return delta at each epsilon."""
        above, shrunk = self._tails
        place = np.clip(np.floor(epsilons / self.interval) + 1 - self.lowest, 0, len(self.masses))
        at = place.astype(int)
        return np.asarray(above[at] - np.exp(np.minimum(epsilons - self._before(at), 700)) * shrunk[at])

    def epsilon_at(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 that holds with delta; infinite if there is none."""
        if self.infinite > delta:
            return math.inf
        above, shrunk = self._tails
        # delta at the loss just before each place: all losses from that place on are larger
        too_much = np.flatnonzero(above - shrunk > delta)
        at = int(too_much[-1]) if len(too_much) else 0
        if not len(too_much) and above[0] <= delta:
            return 0.0
        if above[at] <= delta or shrunk[at] <= 0:
            return max(0.0, float(self._before(at)) + self.interval)
        found = float(self._before(at)) + math.log((above[at] - delta) / shrunk[at])
        return max(0.0, found)

    def _before(self, place: int | NDArray[np.int64]) -> Array:
        return np.asarray((self.lowest + place - 1) * self.interval)

    @functools.cached_property
    def _tails(self) -> tuple[Array, Array]:
        """The probability of losses from each place on, and the same weighted by e^(previous loss - loss).

        The latter is summed in blocks, over which e^-loss falls so far that only the block before matters.
        """
        back = self.masses[::-1]
        above = np.concatenate([[0.0], np.cumsum(back)])[::-1] + self.infinite
        if self.interval > STEEPEST / 2:
            shrunk = back * math.exp(-self.interval)
        else:
            length = min(len(back), int(STEEPEST / self.interval))
            blocks = np.zeros(math.ceil(len(back) / length) * length)
            blocks[: len(back)] = back
            grown = np.exp(np.arange(length) * self.interval)
            sums = np.cumsum(blocks.reshape(-1, length) * grown, axis=1)
            sums[1:] += (sums[:-1, -1:] / grown[-1]) * math.exp(-self.interval)
            shrunk = (sums / grown * math.exp(-self.interval)).reshape(-1)[: len(back)]
        return above, np.concatenate([[0.0], shrunk])[::-1]


def connected(interval: float, lowest: int, deltas: Array) -> Losses:
    """Connect the dots of delta(epsilon), given at `lowest`, `lowest + 1`, ... times `interval`.

    Formal guarantee: if the given deltas are upper bounds for a mechanism, so are those of the losses, at
    every epsilon and after every composition. Losses below the first dot are rounded up to it; losses
    above the last one count as infinite.
    """
    known = np.minimum.accumulate(np.clip(deltas, 0, 1))
    slope = -np.diff(known)
    up = np.concatenate([[1 - known[0]], slope / -math.expm1(-interval)])
    down = np.concatenate([slope / math.expm1(interval), [0.0]])
    return Losses(interval, lowest, np.maximum(up - down, 0.0), float(known[-1]))


def composed(parts: Sequence[tuple[Losses, int]], upper: bool) -> Losses:
    """Compose losses on one grid, each as often as its count says."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    interval = parts[0][0].interval
    first, last = _window(parts)
    size = fft.next_fast_len(max(last - first + 1, *(len(one.masses) for one, _ in parts)), real=True)
    if size > LONGEST:
        raise MemoryError(f"a distribution over {size} losses is too large")
    spectrum = np.ones(size // 2 + 1, dtype=complex)
    for one, count in parts:
        raise_to(spectrum, fft.rfft(one.masses, size), count)
    masses = np.roll(fft.irfft(spectrum, size), -first)[: last - first + 1]
    lowest = sum(one.lowest * count for one, count in parts)
    kept = sum(math.log1p(-min(one.infinite, 1 - 1e-16)) * count for one, count in parts)
    return Losses(interval, lowest + first, masses, TAIL - math.expm1(kept) if upper else 0.0)


def raise_to(into: NDArray[np.complex128], power: NDArray[np.complex128], count: int) -> None:
    """Multiply in place by a power, by repeated squaring."""
    while True:
        if count % 2:
            into *= power
        count //= 2
        if not count:
            return
        power *= power


def _window(parts: Sequence[tuple[Losses, int]]) -> tuple[int, int]:
    """Return the range, in steps above the lowest loss, of all but `TAIL` of a composition (Chernoff)."""
    most = sum((len(one.masses) - 1) * count for one, count in parts)
    spread = math.sqrt(sum(_variance(one.masses) * count for one, count in parts))
    if spread == 0:
        return 0, most
    tilts = TILTS * math.sqrt(2 * math.log(2 / TAIL)) / spread
    first, last = 0.0, float(most)
    for tilt in tilts.tolist():
        up = sum(_cumulant(one.masses, tilt) * count for one, count in parts)
        down = sum(_cumulant(one.masses, -tilt) * count for one, count in parts)
        last = min(last, (up + math.log(2 / TAIL)) / tilt)
        first = max(first, -(down + math.log(2 / TAIL)) / tilt)
    return math.floor(first), max(math.ceil(last), math.floor(first))


def _variance(masses: Array) -> float:
    at, whole = np.arange(len(masses)), masses.sum()
    if whole <= 0:
        return 0.0
    mean = (masses @ at) / whole
    return float(masses @ (at - mean) ** 2 / whole)


def _cumulant(masses: Array, tilt: float) -> float:
    """Return an upper bound on the log of the sum of masses times e^(tilt place)."""
    at = np.arange(len(masses)) * tilt
    high = float(at[-1]) if tilt > 0 else 0.0
    return high + math.log(max(float(masses @ np.exp(at - high)), LEAST))
