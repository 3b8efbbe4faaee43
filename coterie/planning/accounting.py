"""How each unit is planned, charged and stated: one object per unit, so no other code branches on it."""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from ..privacy.accountant import quick_lower
from ..privacy.adversaries import seen_by, table
from ..privacy.events import Event
from ..privacy.ledger.claim import Claim
from ..privacy.merges import MergeEvents
from ..privacy.published.dual import published_dual
from ..privacy.published.formulas import Published, published_for, warning
from ..privacy.published.merges import merge_warnings, published_for_merges
from ..privacy.statement.build import OpenedDoor, merge_door
from ..protocol.doors import CHOICE, SAMPLES, Calls, Door, Noise, released
from ..protocol.units import EXAMPLE, PERSON, SILO, Unit
from .example_plan import plan_examples
from .plan import Plan, SiloPlan
from .request import Request
from .silo_plan import plan_silos

Spans = Sequence[tuple[int, int]]
Clips = Mapping[float, int]  # how many trials trained with each clip; one trial, unless it is a sweep


class Account(NamedTuple):
    """What a run released, its charge, the budget that covers it, and the facts of its ledger, if any.

    `rounds` lists the spans of rounds that happened; repeated rounds are listed twice.
    """

    events: tuple[Event, ...]
    epsilon: float
    delta: float
    budget: float
    rounds: tuple[tuple[int, int], ...]
    facts: dict[str, Any] | None


@dataclass(frozen=True)
class Released:
    """What a statement says a silo released: doors, events, the adversaries who saw them, and merges."""

    doors: list[OpenedDoor]
    events: tuple[Event, ...]
    seen: tuple[str, ...] = ()
    merges: MergeEvents | None = None


class Accounting(ABC):
    """How a unit is planned, charged and stated.

    `columns` are the headings, in tables, of the rate and the number of a silo's releases.
    """

    unit: ClassVar[Unit]
    columns: ClassVar[tuple[str, str]]

    @abstractmethod
    def plan(self, request: Request) -> Plan:
        """Return what every silo will do and spend."""

    @abstractmethod
    def protected(self, sizes: Sequence[int]) -> list[int]:
        """Return, for each silo, the number of units that its unit is one of.

        `sizes` counts examples, or persons if these are protected.
        """

    @abstractmethod
    def claim(self, label: str, plan: Plan, run: int, k: int) -> Claim:
        """Return the claim that a run makes on silo k's data set."""

    @abstractmethod
    def account(self, plan: Plan, run: int, k: int) -> Account:
        """Return what silo k releases and spends in a run that follows its plan, without a ledger."""

    @abstractmethod
    def released(self, plan: Plan, run: int, k: int, account: Account, clips: Clips) -> Released:
        """Return what a statement says silo k released in the rounds of an account."""

    @abstractmethod
    def adversaries(self, silo: SiloPlan) -> dict[str, float | None]:
        """Return epsilon against each adversary: None without protection, 0 if it sees nothing."""

    @abstractmethod
    def published(
        self, silo: SiloPlan, settings: Mapping[str, Any], doors: Sequence[Door]
    ) -> tuple[Sequence[Published], list[str]]:
        """Return what papers report for a silo, and a warning for each value below the proven lower bound."""


class DoorAccounting(Accounting):
    """The unit is an example or a person: doors add noise, and silos are charged for what they release."""

    columns = ("rate", "steps")

    def plan(self, request: Request) -> Plan:
        """Return a plan with the noise of each silo's doors."""
        return plan_examples(request, self.unit)

    def protected(self, sizes: Sequence[int]) -> list[int]:
        """Return the silos' numbers of examples, or of persons."""
        return list(sizes)

    def claim(self, label: str, plan: Plan, run: int, k: int) -> Claim:
        """Return a claim of what the doors release in each round."""
        silo = plan.silos[run][k]
        present = None if plan.present is None else tuple(plan.present[:, run, k].tolist())
        steps = None if plan.steps is None else tuple(plan.steps[:, run, k].tolist())
        stages = tuple(
            (rounds, _round_events(silo, doors, each))
            for rounds, doors, each in stages_of(plan.counts.calls, present, steps)
        )
        seen = seen_by(silo.bytes_up > 0) if any(events for _, events in stages) else ()
        return Claim(label, self.unit.name, silo.delta, silo.epsilon, stages, seen)

    def account(self, plan: Plan, run: int, k: int) -> Account:
        """Return the sum of the claim's events."""
        silo, claim = plan.silos[run][k], self.claim("", plan, run, k)
        spans = ((0, claim.rounds),)
        return Account(claim.events(0, claim.rounds), silo.epsilon, silo.delta, silo.budget, spans, None)

    def released(self, plan: Plan, run: int, k: int, account: Account, clips: Clips) -> Released:
        """Return the doors counted by the dry run, not derived from the events.

        Rounds after those of the training open no door of the method.
        """
        most = len(plan.counts.calls)
        rounds = [number for first, last in account.rounds for number in range(first, min(last, most))]
        doors = _opened_doors(plan, run, k, rounds, clips)
        return Released(doors, account.events, self.claim("", plan, run, k).seen)

    def adversaries(self, silo: SiloPlan) -> dict[str, float | None]:
        """Return the same epsilon against every adversary who sees anything."""
        return table(silo.epsilon, seen_by(silo.bytes_up > 0))

    def published(
        self, silo: SiloPlan, settings: Mapping[str, Any], doors: Sequence[Door]
    ) -> tuple[Sequence[Published], list[str]]:
        """Return what the formulas report for the noisy sums."""
        event = silo.sums(silo.noise)
        used = [(door.name, silo.rounds, 1 if silo.whole else silo.work.steps) for door in doors]
        if event.in_passes:
            return (), []  # no formula is for passes
        formulas = published_for(silo.noise, silo.rate, silo.steps, silo.delta, quick=True)
        formulas += published_dual(settings, used, (event,), silo.delta)
        lower = quick_lower((event,), silo.delta)
        return formulas, [line for line in (warning(each, lower) for each in formulas) if line]


class ExampleAccounting(DoorAccounting):
    """The unit is one example of a silo."""

    unit = EXAMPLE


class PersonAccounting(DoorAccounting):
    """The unit is one person of a silo: all rows of theirs."""

    unit = PERSON


class SiloAccounting(Accounting):
    """The unit is a whole silo: uploads are clipped and noised as they are merged, and charged per merge."""

    unit = SILO
    columns = ("share", "merges")

    def plan(self, request: Request) -> Plan:
        """Return a plan with the noise of the merges."""
        return plan_silos(request)

    def protected(self, sizes: Sequence[int]) -> list[int]:
        """Return the number of silos, once per silo."""
        return [len(sizes)] * len(sizes)

    def claim(self, label: str, plan: Plan, run: int, k: int) -> Claim:
        """Return a claim of what is seen by the best-informed adversary the silo is protected against."""
        silo = plan.silos[run][k]
        seen = replace(_merges(silo), metered=True).releases()
        each = tuple(replace(event, count=1) for event in _merges(silo).strongest())
        flags = itertools.groupby(merged_rounds(plan, run, k))
        stages = tuple((len(list(same)), each if merged else ()) for merged, same in flags)
        bare = tuple(name for name, events in seen.items() if events is None)
        protected = tuple(name for name in seen if name not in bare) if each else ()
        return Claim(label, self.unit.name, silo.delta, silo.epsilon, stages, protected, None, bare)

    def account(self, plan: Plan, run: int, k: int) -> Account:
        """Return what the plan says; if the noise was given, the budget is the epsilon that results."""
        silo, rounds = plan.silos[run][k], len(plan.counts.calls)
        budget = silo.budget if math.isfinite(silo.budget) else silo.epsilon
        return Account((), 0.0, silo.delta, budget, ((0, rounds),), None)

    def released(self, plan: Plan, run: int, k: int, account: Account, clips: Clips) -> Released:
        """Return the planned merges or, for a metered run, those of the reserved rounds."""
        merges = _merges(plan.silos[run][k])
        if account.facts is not None:
            merges = merges_done(plan, run, k, account.rounds)
        return Released(merge_door(merges), merges.strongest(), (), merges)

    def adversaries(self, silo: SiloPlan) -> dict[str, float | None]:
        """Return the epsilons that follow from the merges."""
        return _merges(silo).against(silo.delta)

    def published(
        self, silo: SiloPlan, settings: Mapping[str, Any], doors: Sequence[Door]
    ) -> tuple[Sequence[Published], list[str]]:
        """Return what the formulas report for the merges."""
        merges = _merges(silo)
        return published_for_merges(merges, silo.delta), merge_warnings(merges, silo.delta)


ACCOUNTING: dict[str, Accounting] = {
    each.unit.name: each for each in (ExampleAccounting(), PersonAccounting(), SiloAccounting())
}


def accounting_of(plan: Plan) -> Accounting:
    """Return the accounting of a plan's unit."""
    return ACCOUNTING[plan.unit.name]


def merged_rounds(plan: Plan, run: int, k: int) -> list[bool]:
    """Return, for each round, whether silo k's upload is merged or, if that is secret, whether it may be."""
    merged = list(plan.counts.merged)
    if plan.present is None or _merges(plan.silos[run][k]).hidden:
        return merged
    present = plan.present[:, run, k].tolist()
    return [flag and came for flag, came in zip(merged, present, strict=True)]


def merges_done(plan: Plan, run: int, k: int, spans: Spans) -> MergeEvents:
    """Return the merges of silo k in the rounds that it reserved; repeated rounds count twice."""
    rounds = [number for first, last in spans for number in range(first, last)]
    came = merged_rounds(plan, run, k)
    merges = sum(plan.counts.merged[number] for number in rounds)
    uploads = sum(came[number] for number in rounds)
    return replace(_merges(plan.silos[run][k]), merges=merges, came=uploads, metered=True)


def _merges(silo: SiloPlan) -> MergeEvents:
    assert silo.merges is not None
    return silo.merges


def _round_events(silo: SiloPlan, doors: tuple[Door, ...], steps: int | None) -> tuple[Event, ...]:
    """Return what a silo releases in a round that opens these doors, each for `steps` steps."""
    each = silo.work.steps if steps is None else steps
    used = [Calls(door, 1, each) for door in doors]
    return released(used, silo.work, Noise(silo.noise, silo.choice_noise))


@functools.lru_cache(maxsize=4096)
def stages_of(
    calls: tuple[tuple[Door, ...], ...], present: tuple[bool, ...] | None, steps: tuple[int, ...] | None
) -> tuple[tuple[int, tuple[Door, ...], int | None], ...]:
    """Return (rounds, doors of each, steps per door) in order; no doors while the silo is absent."""
    doors = calls
    if present is not None:
        doors = tuple(opened if came else () for opened, came in zip(calls, present, strict=True))
    each: list[int | None] = [None] * len(doors)
    if steps is not None:
        each = [count if opened else None for opened, count in zip(doors, steps, strict=True)]
    stages = itertools.groupby(zip(doors, each, strict=True))
    return tuple((len(list(same)), opened, count) for (opened, count), same in stages)


def _opened_doors(plan: Plan, run: int, k: int, rounds: list[int], clips: Clips) -> list[OpenedDoor]:
    """Return the doors that the dry run opened in some rounds.

    Calls with other steps, and trials with other clips, are listed apart.
    """
    silo = plan.silos[run][k]
    counts: Counter[tuple[Door, int]] = Counter()
    for number in rounds:
        if plan.present is None or bool(plan.present[number, run, k]):
            steps = silo.work.steps if plan.steps is None else int(plan.steps[number, run, k])
            for door in plan.counts.calls[number]:
                counts[door, door.sums_per_call(steps)] += 1
    opened = []
    for ((door, steps), calls), (clip, trials) in itertools.product(
        sorted(counts.items()), sorted(clips.items())
    ):
        sample = (silo.work.sampler, silo.work.rate, silo.work.expected)
        if door.kind != SAMPLES:
            sample = ("all examples", 1.0, float(silo.work.size))
        bound = (1.0, silo.choice_noise) if door.kind == CHOICE else (clip, silo.noise)
        opened.append(OpenedDoor(door.name, calls * trials, steps, *sample, *bound))
    return opened
