"""What a plan says of privacy: against whom epsilon holds, and what papers would report beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiment.experiment import Experiment
from ..experiment.result import label_of
from ..planning.accounting import Accounting, accounting_of
from ..planning.plan import Plan, SiloPlan
from ..privacy.adversaries import ADVERSARIES


def _whom(accounting: Accounting, silos: Sequence[SiloPlan]) -> str:
    """Say against whom epsilon holds, of the silo that is most seen."""
    most = max(silos, key=lambda silo: (silo.steps, silo.bytes_up))
    against = accounting.adversaries(most)
    holds = [ADVERSARIES[name] for name, value in against.items() if value]
    bare = [ADVERSARIES[name] for name, value in against.items() if value is None]
    blind = [ADVERSARIES[name] for name, value in against.items() if value == 0]
    parts = [f"epsilon holds against {', '.join(holds)}"] if holds else []
    parts += [f"nothing protects against {', '.join(bare)}"] if bare else []
    parts += [f"nothing is seen of a silo by {', '.join(blind)}"] if blind else []
    return "; ".join(parts)


def against_whom(made: Sequence[Experiment], plans: Sequence[Plan]) -> list[str]:
    """Say against whom epsilon holds, a line for all methods (or settings of one) that are alike in it."""
    found: dict[str, dict[str, None]] = {}
    for experiment, plan in zip(made, plans, strict=True):
        said = [_whom(accounting_of(plan), silos) for silos in plan.silos]
        how = {} if experiment.budgets == "own" else {"budgets": experiment.budgets}
        alike = label_of(experiment.method.title, how)
        for whom, (_, number) in zip(said, experiment.keys, strict=True):
            label = alike if len(set(said)) == 1 else experiment.labels[number]
            found.setdefault(whom, {})[label] = None
    return [f"{', '.join(labels)}: {whom}." for whom, labels in found.items()]


def published_facts(
    plan: Plan, silo: SiloPlan, settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what papers report for a silo's steps, and warnings where that is less than the true epsilon."""
    if not silo.steps or not silo.noise:
        return [], []
    formulas, warnings = accounting_of(plan).published(silo, settings, plan.counts.calls[0])
    told = [{"paper": each.paper, "formula": each.formula, "epsilon": each.epsilon} for each in formulas]
    return told, warnings


def reported(experiment: Experiment, plan: Plan) -> list[str]:
    """Say what papers would report, of the silo with the most steps of the first run."""
    silo, (found, _) = _of_the_first_run(experiment, plan)
    told = ", ".join(f"{one['epsilon']:.3g} ({one['paper']})" for one in found)
    whose = f"{experiment.method.title}: papers would report of '{silo.name}'"
    return [f"{whose} {told}; --json tells the formulas."] if told else []


def too_little(experiment: Experiment, plan: Plan) -> list[str]:
    """Warn where that is less than is true."""
    silo, (_, warnings) = _of_the_first_run(experiment, plan)
    return [f"warning: {experiment.method.title}, '{silo.name}': {line}" for line in warnings]


def _of_the_first_run(
    experiment: Experiment, plan: Plan
) -> tuple[SiloPlan, tuple[list[dict[str, Any]], list[str]]]:
    silo = max(plan.silos[0], key=lambda one: one.steps)
    settings = experiment.variants[experiment.keys[0][1]].shown
    return silo, published_facts(plan, silo, settings)
