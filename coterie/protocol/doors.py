"""What a call of a door releases: the one place where the plan, the ledgers and the statements read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import Refused

DESCEND = "descend"
DUAL = "solve_dual"
DUAL_WHOLE = "solve_dual whole"
DUAL_UNPROVEN = "solve_dual unproven"  # with a paper's noise, which certifies nothing
SAMPLED = (DESCEND, DUAL)  # doors that release a sum a step, of a Poisson sample each
WHOLE = 2.0  # stands for the rate of whole uploads: 1, but not that of a sample


@dataclass(frozen=True)
class Work:
    """One silo's local work in one call of a door: `steps` Poisson batches at `rate`.

    The sampler and the privacy event are both made from this record, so they agree.
    `size` is the declared number of examples; sums are divided by `expected`, never by
    the batch that happened to be drawn.
    """

    size: int
    batch: int
    steps: int

    @property
    def rate(self) -> float:
        """Chance of each example to be in a batch."""
        return min(1.0, self.batch / self.size)

    @property
    def expected(self) -> float:
        """Expected size of a batch."""
        return float(min(self.batch, self.size))


def epochs_of_work(size: int, batch: int, epochs: float) -> Work:
    """Give the work of so many expected passes over the silo's examples."""
    return Work(size, min(batch, size), max(1, round(epochs * size / min(batch, size))))


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
