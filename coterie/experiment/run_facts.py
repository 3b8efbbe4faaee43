"""The facts of a run that are fixed when it is claimed, so that its statement cannot say others."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from ..guard.session import Charging
from ..planning.accounting import accounting_of
from ..planning.plan import Plan
from ..privacy.ledger.claim import Claim
from ..privacy.statement.run_facts import CLIP, clip_fact, digests_of, merging_facts
from .experiment import Experiment
from .statements import Issue, model_facts, stayed_home


def facts_for(
    experiment: Experiment, plan: Plan, run: int, k: int, issue: Issue, swept: bool = False
) -> dict[str, Any]:
    """Return what a statement of silo k in a run will say, as far as it is known before the run.

    The setting and the seed of a sweep are known only when a trial is chosen. If the noise was given, the
    budget is not a fact but a result.
    """
    seed, variant = experiment.keys[run]
    silo = plan.silos[run][k]
    facts: dict[str, Any] = {
        "digests.configuration": issue.configuration,
        "data.name": experiment.federation.name,
        "declared_size": silo.work.size,
        "method": experiment.method.title,
        "model": model_facts(experiment, issue),
        "not_covered": list(experiment.not_covered(run, k)),
        "run.rounds": experiment.training.rounds,
        "stayed_home": stayed_home(plan, run, k),
    }
    if issue.run is not None:
        facts["run.id"] = issue.run
    if experiment.privacy.noise is None:
        facts["guarantee.budget"] = accounting_of(plan).account(plan, run, k).budget
    if not swept:
        facts |= {"settings": experiment.variants[variant].shown, "run.seed": seed}
    if silo.merges is not None:
        return {**facts, "merges": merging_facts(asdict(silo.merges))}
    trials = range(len(experiment.clip)) if swept else [run]
    return {**facts, CLIP: clip_fact(float(experiment.clip[trial, k]) for trial in trials)}


def charging_for(experiment: Experiment, issue: Issue, charging: Charging | None = None) -> Charging:
    """Return how a training is claimed, each claim with digests of its run's facts."""
    charging = charging or Charging()

    def claims(label: str, plan: Plan, k: int) -> list[Claim]:
        return [
            replace(claim, facts=digests_of(facts_for(experiment, plan, run, k, issue, charging.together)))
            for run, claim in enumerate(charging.claims(label, plan, k))
        ]

    return Charging(claims, charging.together)
