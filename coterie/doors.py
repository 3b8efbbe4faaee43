"""What a call of a door releases: the one place where the plan, the ledgers and the statements read it."""

from __future__ import annotations

from collections.abc import Iterable

from .cohort.sampling import Work
from .errors import Refused

DESCEND = "descend"
DUAL = "solve_dual"
DUAL_WHOLE = "solve_dual whole"
DUAL_UNPROVEN = "solve_dual unproven"  # with a paper's noise, which certifies nothing
SAMPLED = (DESCEND, DUAL)  # doors that release a sum a step, of a Poisson sample each
WHOLE = 2.0  # stands for the rate of whole uploads: 1, but not that of a sample


def all_sums(calls: Iterable[tuple[str, int, int]], work: Work) -> tuple[float, int]:
    """Give the rate and number of the Gaussian sums of calls: (door, how often, steps of all of them).

    They have one noise, so there must be one rate.
    """
    counts: dict[float, int] = {}
    for door, times, steps in calls:
        if door in SAMPLED:
            counts[work.rate] = counts.get(work.rate, 0) + steps
        elif door in (DUAL_WHOLE, DUAL_UNPROVEN):
            counts[WHOLE] = counts.get(WHOLE, 0) + times
    if len(counts) > 1:
        raise Refused("a method releases sampled sums and whole uploads: one noise fits only one of them")
    rate, count = next(iter(counts.items()), (work.rate, 0))
    return min(rate, 1.0), count
