"""Statements of what each silo spent in a run."""

from __future__ import annotations

from typing import Any

from ..guard.meter import Meter
from ..planning.accounting import Account, accounting_of
from ..planning.plan import Plan
from ..privacy.cache import Cache
from ..privacy.statement.build import OpenedDoor, build_statement
from .experiment import Experiment


def published_facts(statement: dict[str, Any]) -> dict[str, Any]:
    """Return what papers' formulas report for a statement's events, and warnings where that is too low."""
    formulas = {each["paper"]: each["epsilon"] for each in statement["published"]}
    return {"epsilon": formulas, "warnings": statement["warnings"]}


def statement_of(
    experiment: Experiment,
    plan: Plan,
    run: int,
    k: int,
    meter: Meter | None = None,
    cache: Cache | None = None,
) -> dict[str, Any]:
    """Return the statement of one silo in one run, from its ledger if the run was metered."""
    account = accounting_of(plan).account(plan, run, k) if meter is None else meter.account(k, run)
    return statement_for(experiment, plan, run, k, account, cache=cache)


def statement_for(
    experiment: Experiment,
    plan: Plan,
    run: int,
    k: int,
    account: Account,
    tuning: dict[str, Any] | None = None,
    scored: bool = False,
    seen: tuple[str, ...] | None = None,
    cache: Cache | None = None,
) -> dict[str, Any]:
    """Return the statement of one silo from its account; `scored` if the silo releases scores.

    `seen` names the adversaries who saw what was released, if they differ from those of a single run.
    """
    silo = plan.silos[run][k]
    trials = 1 if tuning is None else tuning["ran"]
    released = accounting_of(plan).released(plan, run, k, account, float(experiment.clip[run, k]), trials)
    doors = list(released.doors)
    if scored:
        last = len(plan.counts.calls) - 1
        scores = trials * sum(first <= last < end for first, end in account.rounds)
        tests = len(experiment.federation.silos[k].test_y)
        doors.append(OpenedDoor("score", scores, 1, "all test examples", 1.0, tests, 1.0))
    return build_statement(
        silo=silo.name,
        method=experiment.method.title,
        settings=experiment.variants[experiment.keys[run][1]].shown,
        size=silo.work.size,
        doors=[door for door in doors if door.calls],
        events=released.events,
        seen=released.seen if seen is None else seen,
        budget=account.budget,
        delta=account.delta,
        not_covered=experiment.not_covered(run, k),
        charged=account.epsilon,
        ledger=account.facts,
        tuning=tuning,
        cache=cache,
        merges=released.merges,
    )
