"""The facts of a run that are fixed when it is claimed, so that its statement cannot say others."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from ..guard.session import Charging
from ..planning.accounting import accounting_of
from ..planning.plan import Plan
from ..privacy.events import Event
from ..privacy.ledger.claim import Claim
from ..privacy.statement.build import UNTUNED
from ..privacy.statement.run_facts import DOORS, TRIALS, digests_of, door_facts, merging_facts
from .experiment import Experiment
from .statements import Issue, clips_of, model_facts, score_door, stayed_home
from .sweep import Sweep


def facts_for(
    experiment: Experiment,
    plan: Plan,
    run: int,
    k: int,
    issue: Issue,
    sweep: Sweep | None = None,
    score: Event | None = None,
) -> dict[str, Any]:
    """Return what a statement of silo k in a run will say, as far as it is known before the run.

    Of a sweep, all trials are known, though not which will be chosen. `score` is the release of a noised
    score. If the noise was given, the budget is not a fact but a result.
    """
    seed, variant = experiment.keys[run]
    silo, accounting = plan.silos[run][k], accounting_of(plan)
    account = accounting.account(plan, run, k)
    facts: dict[str, Any] = {
        "digests.configuration": issue.configuration,
        "data.name": experiment.federation.name,
        "declared_size": silo.work.size,
        "method": experiment.method.title,
        "model": model_facts(experiment, issue),
        "not_covered": list(experiment.not_covered(run, k)),
        "run.rounds": experiment.training.rounds,
        "stayed_home": stayed_home(plan, run, k),
        "tuning": UNTUNED if sweep is None else sweep.facts(plan, k),
    }
    if issue.run is not None:
        facts["run.id"] = issue.run
    if experiment.privacy.noise is None:
        facts["guarantee.budget"] = account.budget
    if sweep is None:
        facts |= {"settings": experiment.variants[variant].shown, "run.seed": seed}
    else:
        trials = [{"settings": experiment.variants[v].shown, "seed": own} for own, v in experiment.keys]
        facts[TRIALS] = trials
    if silo.merges is not None:
        return {**facts, "merges": merging_facts(asdict(silo.merges))}
    doors = accounting.released(plan, run, k, account, clips_of(experiment, run, k, sweep is not None)).doors
    score = score if sweep is None else sweep.scores[k]
    scored = [] if score is None else [score_door(experiment, k, score.noise, 1)]
    return {**facts, DOORS: door_facts([*doors, *scored])}


def charging_for(experiment: Experiment, issue: Issue, sweep: Sweep | None = None) -> Charging:
    """Return how a training is claimed, each claim with digests of its run's facts."""
    charging = Charging() if sweep is None else Charging(sweep.asks, together=True)

    def claims(label: str, plan: Plan, k: int) -> list[Claim]:
        return [
            replace(claim, facts=digests_of(facts_for(experiment, plan, run, k, issue, sweep)))
            for run, claim in enumerate(charging.claims(label, plan, k))
        ]

    return Charging(claims, charging.together)
