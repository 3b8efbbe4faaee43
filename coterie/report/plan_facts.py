"""A plan as plain data, which `coterie plan --json` prints."""

from __future__ import annotations

from typing import Any

from ..experiment.experiment import Experiment
from ..experiment.study import StudyPlan
from ..planning.accounting import accounting_of
from ..planning.plan import Plan, SiloPlan
from .privacy_lines import published_facts


def plan_facts(planned: StudyPlan) -> dict[str, Any]:
    """Return what every silo will do and spend in each run, what papers would report, and notes."""
    pairs = zip(planned.pairs(), planned.seconds, strict=True)
    facts = [_experiment_facts(experiment, plan, seconds) for (experiment, plan), seconds in pairs]
    found = {"plans": facts, "notes": planned.notes}
    if planned.coverage:
        found["ledgers"] = [each.facts() for each in planned.coverage]
        found["refusal"] = planned.refusal
    return found


def _experiment_facts(experiment: Experiment, plan: Plan, seconds: float) -> dict[str, Any]:
    variants = []
    known: dict[Any, dict[str, Any]] = {}
    for run, (seed, number) in enumerate(experiment.keys):
        variant, same = experiment.variants[number], (number, plan.silos[run])
        known[same] = silos = known.get(same) or {
            silo.name: _silo_facts(plan, silo, variant.shown) for silo in plan.silos[run]
        }
        variants.append({"settings": variant.shown, "seed": seed, "silos": silos})
    return {"method": experiment.method.name, "seconds": seconds, "variants": variants}


def _silo_facts(plan: Plan, silo: SiloPlan, settings: dict[str, Any]) -> dict[str, Any]:
    published, warnings = published_facts(plan, silo, settings)
    return {
        f"{'person' if plan.unit.name == 'person' else 'example'}s": silo.work.size,
        "sampler": silo.sampler,
        "rate": silo.rate,
        "steps": silo.steps,
        "noise": silo.noise,
        "budget": silo.limit,
        "epsilon": silo.epsilon,
        "delta": silo.delta,
        "adversaries": accounting_of(plan).adversaries(silo),
        "published": published,
        "warnings": warnings,
        "bytes_up": silo.bytes_up,
        "bytes_down": silo.bytes_down,
    }
