"""Privacy events: what doors release, in the accountant's terms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import Problem, nearest

MECHANISMS = ("gaussian", "laplace", "selection")
SAMPLERS = ("poisson", "fixed", "allocation")
MOST_NOISE, LEAST_RATE = 1e100, 1e-15
ADJACENCIES = ("zero-out", "replace-one")


@dataclass(frozen=True, order=True)
class Event:
    """`count` releases of one mechanism, each on a sample of the units.

    `noise` is the scale of the noise divided by the sensitivity, when one unit is zeroed out. The scale
    is the standard deviation (gaussian), the scale of the Laplace distribution, or that of the Gumbel noise
    on the scores (the exponential mechanism with parameter e has noise 2 / e). `rate` is the probability
    that a unit is in a sample. `sampler` says whether units are drawn independently ("poisson"), a fixed
    number of them is drawn without replacement ("fixed"), or each unit is in exactly one of the 1 / rate
    releases of a pass over the data, drawn on its own ("allocation"): then `count` is the number of passes.
    """

    mechanism: str
    noise: float
    rate: float = 1.0
    count: int = 1
    sampler: str = "poisson"

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise Problem(
                f"mechanism: unknown mechanism '{self.mechanism}'; {nearest(self.mechanism, MECHANISMS)}"
            )
        if self.sampler not in SAMPLERS:
            raise Problem(f"sampler: unknown sampler '{self.sampler}'; {nearest(self.sampler, SAMPLERS)}")
        if math.isnan(self.noise) or self.noise < 0:
            raise Problem(f"noise must be a number >= 0, got {self.noise}")
        if MOST_NOISE < self.noise < math.inf:
            raise Problem(f"noise must be at most {MOST_NOISE:g} (or infinite), got {self.noise}")
        if not 0 < self.rate <= 1:
            raise Problem(f"rate must be a number in (0, 1], got {self.rate}")
        if self.rate < LEAST_RATE:
            raise Problem(f"rate must be at least {LEAST_RATE:g}, got {self.rate}")
        if isinstance(self.count, bool) or int(self.count) != self.count or self.count < 1:
            raise Problem(f"steps must be a whole number >= 1, got {self.count}")
        if self.sampler == "allocation" and abs(1 / self.rate - round(1 / self.rate)) > 1e-6:
            raise Problem(f"rate must be 1 / (a whole number) for the sampler 'allocation', got {self.rate}")
        if self.rate < 1 and self.mechanism != "gaussian":
            raise Problem(f"mechanism '{self.mechanism}' has no certified bound for rate < 1; use rate 1")

    @property
    def releases(self) -> int:
        """How many releases there are: `count`, or those of `count` passes.

        >>> Event("gaussian", 2.0, 1 / 50, 3, "allocation").releases
        150
        """
        return self.count * round(1 / self.rate) if self.sampler == "allocation" else self.count

    @property
    def in_passes(self) -> bool:
        """Whether units are drawn by passes; a pass of a single release draws nothing."""
        return self.sampler == "allocation" and self.rate < 1


def check_delta(delta: float) -> None:
    """Raise `Problem` unless delta is in (0, 1)."""
    if not 0 < delta < 1:
        raise Problem(f"delta must be a number in (0, 1), got {delta}")


def check_adjacency(adjacency: str) -> None:
    """Raise `Problem` if the accountant does not know the adjacency."""
    if adjacency not in ADJACENCIES:
        raise Problem(f"adjacency: unknown adjacency '{adjacency}'; {nearest(adjacency, ADJACENCIES)}")


def grouped(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merge equal events by adding their counts.

    >>> [event.count for event in grouped([Event("gaussian", 2.0), Event("gaussian", 2.0, count=3)])]
    [4]
    """
    given = tuple(events)
    if len(given) == 1:
        return given
    counts: dict[Event, int] = {}
    for event in given:
        one = replace(event, count=1)
        counts[one] = counts.get(one, 0) + event.count
    return tuple(sorted(replace(event, count=count) for event, count in counts.items()))


def joined(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merge equal events, and all unsampled Gaussians into one: they compose exactly.

    >>> joined([Event("gaussian", 2.0), Event("gaussian", 2.0, count=3)])
    (Event(mechanism='gaussian', noise=1.0, rate=1.0, count=1, sampler='poisson'),)
    """
    found = []
    precision = 0.0
    for event in grouped(events):
        if event.mechanism == "gaussian" and event.rate == 1:
            precision += math.inf if event.noise < 1e-150 else event.count / event.noise**2
        else:
            found.append(event)
    if precision > 0:
        found.append(Event("gaussian", 1 / math.sqrt(precision)))
    return tuple(sorted(found))
