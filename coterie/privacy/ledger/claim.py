"""The claim a run makes on one data set, fixed before the run begins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...errors import Problem
from ..accountant import ADJACENCY, MACHINE_TOLERANCE, ORDERS, epsilon_of, least_of, renyi_curve
from ..adversaries import ADVERSARIES
from ..calibration import certified
from ..events import Event, grouped, joined
from ..trials import Trials
from ..tuning import chosen_epsilon, selected_curve

# Zeroing out one example replaces what its person contributes, or what its silo uploads, by something else.
OTHER = "replace-one"


# The units in which a run is charged, its own first.
CHARGED = {"example": ("example",), "person": ("person", "example"), "silo": ("silo", "example", "person")}


@dataclass(frozen=True)
class Claim:
    """What a run will release of a data set: `stages` are (rounds, events per round), in order.

    `epsilon` is certified for the whole run at `delta`. `seen` names the adversaries who see its releases.
    With `trials`, the run is one of a random number of trials, of which only the best is seen.

    Under the unit 'silo', `unprotected` names the adversaries who see the silo's raw uploads, or more than is
    charged. Under the units 'person' and 'silo', `as_example` is the epsilon in the smaller units, or None if
    it is infinite. It is accounted as replace-one: zeroing out one example may turn the mean gradient of its
    person, or the upload of its silo, into any other. Ledgers compute it when they grant the claim.

    `facts` are digests of what a statement about the run will say besides, by name.
    """

    label: str
    unit: str
    delta: float
    epsilon: float
    stages: tuple[tuple[int, tuple[Event, ...]], ...]
    seen: tuple[str, ...] = tuple(ADVERSARIES)
    trials: Trials | None = None
    unprotected: tuple[str, ...] = ()
    as_example: float | None = None
    facts: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.seen and any(events for _, events in self.stages):
            raise Problem(f"run '{self.label}' releases something, so at least one adversary must see it")
        if self.unprotected and (self.unit != "silo" or set(self.seen) & set(self.unprotected)):
            raise Problem(
                f"run '{self.label}': an adversary who sees raw uploads cannot also see protected releases;"
                " only the unit 'silo' has such adversaries"
            )
        if self.trials is not None and self.unit != "example":
            raise Problem(f"run '{self.label}': the best of several trials needs the unit 'example'")

    @property
    def units(self) -> tuple[str, ...]:
        """The units in which the run is charged: protecting a silo also protects its persons and examples."""
        return CHARGED[self.unit]

    @property
    def rounds(self) -> int:
        """The number of planned rounds."""
        return sum(rounds for rounds, _ in self.stages)

    def events(self, first: int, last: int) -> tuple[Event, ...]:
        """Return the events of rounds `first` up to, not including, `last`."""
        found: list[Event] = []
        start = 0
        for rounds, events in self.stages:
            count = min(last, start + rounds) - max(first, start)
            if count > 0:
                found += [Event(e.mechanism, e.noise, e.rate, e.count * count, e.sampler) for e in events]
            start += rounds
        return tuple(found)

    def stated(self, unit: str) -> float:
        """Return the epsilon stated for the whole run in a unit."""
        if unit == self.unit:
            return self.epsilon
        return math.inf if self.as_example is None else self.as_example

    def certified(self, first: int, last: int, anew: bool = False, unit: str | None = None) -> float:
        """Return an upper bound on the epsilon of some rounds, at the claim's delta.

        With `anew`, ignore what calibration found for the same events. In a `unit` other than the claim's
        own, the bound is for replacing a silo by any other.
        """
        events = grouped(self.events(first, last))
        if unit not in (None, self.unit):
            return epsilon_of(events, self.delta, OTHER)
        if self.trials is None:
            return epsilon_of(events, self.delta) if anew else certified(events, self.delta)
        return chosen_epsilon(joined(events), self.trials, self.delta)

    def least(self, first: int, last: int, unit: str) -> float:
        """Return the smallest epsilon of some rounds that another machine or version could have certified."""
        if self.trials is not None:
            return self.certified(first, last, anew=True, unit=unit) * (1 - MACHINE_TOLERANCE)
        adjacency = ADJACENCY if unit == self.unit else OTHER
        return least_of(grouped(self.events(first, last)), self.delta, adjacency)

    def divergence(self, first: int, last: int, order: int, unit: str | None = None) -> float:
        """Return an upper bound on the Renyi divergence of some rounds; a best trial is never split."""
        if self.trials is None:
            adjacency = ADJACENCY if unit in (None, self.unit) else OTHER
            return renyi_curve(self.events(first, last), adjacency)[ORDERS.index(order)]
        curve = renyi_curve(joined(self.events(0, self.rounds)))
        return selected_curve(curve, self.trials)[ORDERS.index(order)]

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain data."""
        stages = [{"rounds": r, "events": [dict(vars(e)) for e in events]} for r, events in self.stages]
        trials = None if self.trials is None else dict(vars(self.trials))
        plain = {**vars(self), "stages": stages, "seen": list(self.seen), "trials": trials}
        del plain["facts"]
        facts = {"facts": dict(self.facts)} if self.facts else {}
        return {**plain, "unprotected": list(self.unprotected), **facts}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Claim:
        """Read a claim from plain data."""
        stages = tuple((s["rounds"], tuple(Event(**e) for e in s["events"])) for s in body["stages"])
        trials = Trials(**body["trials"]) if body.get("trials") else None
        return cls(
            body["label"], body["unit"], body["delta"], body["epsilon"], stages, tuple(body["seen"]), trials,
            tuple(body.get("unprotected", ())), body.get("as_example"),
            tuple(sorted(body.get("facts", {}).items())),
        )  # fmt: skip
