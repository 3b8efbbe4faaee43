"""Private choices with exact probabilities.

Candidate c is chosen with probability proportional to exp(-penalty_c / scale). The penalties are float64
numbers, taken as they are. A uniform number, whose bits come from a keystream as they are needed, falls
between two of the cumulated probabilities. Float64 finds the place unless the number is close to a limit;
then more bits are drawn and the limits are computed with more digits, until it is clear. So nothing has to
be added to delta."""

from __future__ import annotations

import mpmath
import numpy as np

from .keystream import Keystream

# Each weight is within 2^-50 (1 + 740) of its value: one rounding of the exponent, which is at most 740 where
# the weight is not 0, and one of the exponential. Adding up and dividing costs less than 2^-50 per weight.
DOUBT = 2.0**-38
MANY = 1024  # candidates for which this holds with room to spare; for more it is larger in proportion


def choose(penalties: np.ndarray, scale: float, stream: Keystream) -> int:
    """Return the index of the chosen candidate."""
    if not (len(penalties) and np.isfinite(penalties).all() and np.isfinite(scale) and scale > 0):
        raise ValueError("a choice needs finite penalties and a finite scale > 0")
    weights = np.exp((penalties.min() - penalties) / scale)
    limits = np.cumsum(weights)[:-1] / weights.sum()
    bits, known = stream.word(), 64
    place = bits * 2.0**-64
    if not len(limits) or np.abs(limits - place).min() > DOUBT * max(1.0, len(limits) / MANY):
        return int(np.searchsorted(limits, place))
    while True:
        with mpmath.workprec(known + 80):
            smallest = mpmath.mpf(float(penalties.min()))
            exact = [mpmath.exp((smallest - mpmath.mpf(float(p))) / mpmath.mpf(scale)) for p in penalties]
            whole = mpmath.fsum(exact)
            exact_limits = [mpmath.fsum(exact[: k + 1]) / whole for k in range(len(exact) - 1)]
            doubt = mpmath.ldexp(1, -known - 40)
            ends = mpmath.ldexp(bits, -known) - doubt, mpmath.ldexp(bits + 1, -known) + doubt
            low, high = (sum(bool(limit < end) for limit in exact_limits) for end in ends)
        if low == high:
            return low
        bits, known = (bits << 64) + stream.word(), known + 64
