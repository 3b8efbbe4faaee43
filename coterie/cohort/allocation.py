"""Random allocation: in one pass over the data, every example is in exactly one step, drawn on its own.

This is the sampler of the event "allocation" (see `coterie.privacy.pld.allocation`). Examples are drawn
independently, so batches differ in size and may be empty. That is not the same as cutting a shuffled data set
into batches of equal size, for which the accountant's bound does not hold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import Problem
from ..privacy.events import Event


def allocate(generator: np.random.Generator, size: int, steps: int) -> NDArray[np.int64]:
    """Return the step of each of `size` examples in one pass, uniform and independent; steps count from 0."""
    if steps < 1 or size < 0:
        raise Problem(
            f"a pass needs at least one step and no negative number of examples, got {steps}, {size}"
        )
    return generator.integers(0, steps, size=size, dtype=np.int64)


def hits_of(allocation: NDArray[np.int64], steps: int) -> NDArray[np.bool_]:
    """Return which examples are in which step, `[steps, size]`, as the coins of other samplers are."""
    return np.asarray(np.arange(steps)[:, None] == allocation[None, :], dtype=np.bool_)


def pass_event(noise: float, steps: int, passes: int) -> Event:
    """Return what passes of this many noisy sums release."""
    return Event("gaussian", noise, 1 / steps, passes, "allocation")
