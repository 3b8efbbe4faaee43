"""Statements of what each silo spent in a run."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from ..guard.claims import merges_done, run_plans
from ..guard.meter import Account, Meter
from ..planning.plan import Plan
from ..privacy.cache import Cache
from ..privacy.statement.build import OpenedDoor, build_statement, merge_door
from ..protocol.doors import CHOICE, SAMPLES, Door
from .experiment import Experiment


def published_facts(statement: dict[str, Any]) -> dict[str, Any]:
    """Give what papers' formulas say of a statement's events, and where that is too little."""
    found = {one["paper"]: one["epsilon"] for one in statement["published"]}
    return {"epsilon": found, "warnings": statement["warnings"]}


def statement_of(
    experiment: Experiment,
    plan: Plan,
    run: int,
    k: int,
    meter: Meter | None = None,
    cache: Cache | None = None,
) -> dict[str, Any]:
    """Give the statement of one silo in one run."""
    silo = plan.silos[run][k]
    if silo.merges is not None:
        return silo_statement(experiment, plan, run, k, meter, cache)
    asked = run_plans(experiment.method.name, plan, k)[run]
    account = Account(
        asked.events(0, asked.rounds), silo.epsilon, silo.delta, silo.budget, ((0, asked.rounds),), None
    )
    if meter is not None:
        account = meter.account(k, run)
    return statement_for(experiment, plan, run, k, account, asked.seen, cache=cache)


def silo_statement(
    experiment: Experiment, plan: Plan, run: int, k: int, meter: Meter | None, cache: Cache | None
) -> dict[str, Any]:
    """Give the statement of a whole silo in one run, from the plan or, if it was metered, from its ledger."""
    silo = plan.silos[run][k]
    merges, epsilon, delta = silo.merges, 0.0, silo.delta
    budget, facts = silo.budget if math.isfinite(silo.budget) else silo.epsilon, None
    if meter is not None:
        _, epsilon, delta, budget, rounds, facts = meter.account(k, run)
        merges = merges_done(plan, run, k, rounds)
    assert merges is not None
    return build_statement(
        silo=silo.name,
        method=experiment.method.title,
        settings=experiment.variants[experiment.keys[run][1]].shown,
        size=silo.work.size,
        doors=merge_door(merges),
        events=merges.strongest(),
        seen=(),
        budget=budget,
        delta=delta,
        not_covered=experiment.not_covered(run, k),
        charged=epsilon,
        ledger=facts,
        cache=cache,
        merges=merges,
    )


def statement_for(
    experiment: Experiment,
    plan: Plan,
    run: int,
    k: int,
    account: Account,
    seen: tuple[str, ...],
    tuning: dict[str, Any] | None = None,
    scored: bool = False,
    cache: Cache | None = None,
) -> dict[str, Any]:
    """Give the statement of one silo from its account; `scored` if it releases scores.

    How often doors were opened is counted from the dry run, not from the events.
    """
    silo = plan.silos[run][k]
    trials = 1 if tuning is None else tuning["ran"]
    rounds = [number for first, last in account.rounds for number in range(first, last)]
    scores = trials * rounds.count(len(plan.counts.calls) - 1) if scored else 0
    tests = len(experiment.federation.silos[k].test_y)
    doors = [
        *opened_doors(plan, run, k, rounds, trials, float(experiment.clip[run, k])),
        OpenedDoor("score", scores, 1, "all test examples", 1.0, tests, 1.0),
    ]
    return build_statement(
        silo=silo.name,
        method=experiment.method.title,
        settings=experiment.variants[experiment.keys[run][1]].shown,
        size=silo.work.size,
        doors=[door for door in doors if door.calls],
        events=account.events,
        seen=seen,
        budget=account.budget,
        delta=account.delta,
        not_covered=experiment.not_covered(run, k),
        charged=account.epsilon,
        ledger=account.facts,
        tuning=tuning,
        cache=cache,
    )


def opened_doors(
    plan: Plan, run: int, k: int, rounds: list[int], trials: int, clip: float
) -> list[OpenedDoor]:
    """Give the doors that a silo opened in some rounds, by the dry run; where steps differ, each apart."""
    silo = plan.silos[run][k]
    counts: Counter[tuple[Door, int]] = Counter()
    for number in rounds:
        if plan.present is None or bool(plan.present[number, run, k]):
            steps = silo.work.steps if plan.steps is None else int(plan.steps[number, run, k])
            for door in plan.counts.calls[number]:
                counts[door, door.sums_per_call(steps)] += trials
    found = []
    for (door, steps), calls in sorted(counts.items()):
        if door.kind == SAMPLES:
            sample = ("poisson", silo.work.rate, silo.work.expected, clip)
        else:
            sample = ("all examples", 1.0, float(silo.work.size), 1.0 if door.kind == CHOICE else clip)
        found.append(OpenedDoor(door.name, calls, steps, *sample))
    return found
