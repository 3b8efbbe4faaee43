"""Whether the ledgers of a study cover it, before anything is claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..guard.claims import claims_of
from ..guard.coverage import find_coverage
from ..planning.plan import Plan
from .study import Study, StudyPlan


def new_budgets(study: Study, alone: Plan | None) -> Sequence[tuple[float, float] | None]:
    """Return the budgets with which a single run makes ledgers where there are none; None for any other."""
    if alone is None:
        return [None] * len(study.experiments[0].federation)
    most = max(silo.budget for silo in alone.silos[0])
    given = (
        study.config.privacy.noise is not None
    )  # then a budget is what a silo spends, by how often it comes
    return [(most if given else silo.budget, silo.delta) for silo in alone.silos[0]]


def covered(planned: StudyPlan) -> StudyPlan:
    """Return a plan that says whether the ledgers of its study cover it; without ledgers, the same plan.

    Ledgers are only read. What a sweep costs is known when it begins, so nothing is said about one.
    """
    study, tuning = planned.study, planned.study.config.tuning
    if study.ledger is None or (tuning is not None and tuning.trials != "all"):
        return planned
    for experiment in study.experiments:
        experiment.check_metered()
    federation = study.experiments[0].federation
    asked = [
        [
            claim
            for experiment, plan in planned.pairs()
            for claim in claims_of(experiment.method.title, plan, k)
        ]
        for k in range(len(federation))
    ]
    budgets = new_budgets(study, planned.plans[0] if study.alone else None)
    found = find_coverage(study.ledger, federation, asked, budgets, study.custody.witness, study.alone)
    return replace(planned, coverage=found)
