"""What a plan says about privacy: the adversaries epsilon holds against, and what papers would report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiment.experiment import Experiment
from ..experiment.result import label_of
from ..planning.accounting import Accounting, accounting_of
from ..planning.plan import Plan, SiloPlan
from ..privacy.accountant import MACHINE_TOLERANCE, shown
from ..privacy.adversaries import ADVERSARIES
from ..protocol.doors import ALLOCATION


def _whom(accounting: Accounting, silos: Sequence[SiloPlan]) -> str:
    """Return the adversaries epsilon holds against, for the silo that reveals most."""
    most = max(silos, key=lambda silo: (silo.steps, silo.bytes_up))
    against = accounting.adversaries(most)
    least = min((value for value in against.values() if value), default=0.0)
    limit = max(least, most.epsilon) * (1 + MACHINE_TOLERANCE)
    holds = [ADVERSARIES[name] for name, value in against.items() if value and value <= limit]
    weaker = [
        f"{ADVERSARIES[name]} it is {shown(value)}"
        for name, value in against.items()
        if value and value > limit
    ]
    bare = [ADVERSARIES[name] for name, value in against.items() if value is None]
    blind = [ADVERSARIES[name] for name, value in against.items() if value == 0]
    parts = [f"epsilon holds against {', '.join(holds)}"] if holds else []
    parts += [f"against {'; against '.join(weaker)}"] if weaker else []
    parts += [f"nothing protects against {', '.join(bare)}"] if bare else []
    parts += [f"a silo reveals nothing to {', '.join(blind)}"] if blind else []
    return "; ".join(parts)


def against_whom(experiments: Sequence[Experiment], plans: Sequence[Plan]) -> list[str]:
    """Return the adversaries epsilon holds against; methods or settings with the same ones share a line."""
    lines: dict[str, dict[str, None]] = {}
    for experiment, plan in zip(experiments, plans, strict=True):
        holders = [_whom(accounting_of(plan), silos) for silos in plan.silos]
        how = {} if experiment.budgets == "own" else {"budgets": experiment.budgets}
        alike = label_of(experiment.method.title, how)
        for whom, (_, number) in zip(holders, experiment.keys, strict=True):
            label = alike if len(set(holders)) == 1 else experiment.labels[number]
            lines.setdefault(whom, {})[label] = None
    return [f"{', '.join(labels)}: {whom}." for whom, labels in lines.items()]


def published_facts(
    plan: Plan, silo: SiloPlan, settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what papers report for a silo's steps, and a warning for each below the proven lower bound."""
    if not silo.steps or not silo.noise:
        return [], []
    formulas, warnings = accounting_of(plan).published(silo, settings, plan.counts.calls[0])
    facts = [{"paper": each.paper, "formula": each.formula, "epsilon": each.epsilon} for each in formulas]
    return facts, warnings


def reported(experiment: Experiment, plan: Plan, formulas: bool = False) -> list[str]:
    """Return what papers would report for the silo with the most steps in the first run.

    With `formulas`, each formula has its own line.
    """
    silo, (formulas_used, _) = _of_the_first_run(experiment, plan)
    whose = f"{experiment.method.title}: for '{silo.name}', papers would report epsilon"
    if not formulas_used:
        passes = formulas and silo.sampler == ALLOCATION
        return [f"{experiment.method.title}: no formula of a paper covers passes."] if passes else []
    if formulas:
        lines = (f"  {each['epsilon']:.3g}  {each['formula']} ({each['paper']})" for each in formulas_used)
        return [f"{whose}:", *lines]
    numbers = ", ".join(f"{each['epsilon']:.3g} ({each['paper']})" for each in formulas_used)
    return [f"{whose} {numbers}; --published shows the formulas."]


def uses_paper_accounting(experiment: Experiment, plan: Plan) -> bool:
    """Return whether the user chose a paper's accounting.

    That is a paper's sensitivity, the budgets of a closed form, or a method with a paper's unproven noise.
    """
    unproven = any(not door.proven for doors in plan.counts.calls for door in doors)
    return unproven or experiment.privacy.sensitivity == "paper" or experiment.budgets == "closed-form"


def too_little(experiment: Experiment, plan: Plan, asked: bool = False) -> list[str]:
    """Return warnings of published epsilons below the proven lower bound, for the silo of `reported`.

    There are none unless the user `asked` for published formulas or chose a paper's accounting.
    """
    if not (asked or uses_paper_accounting(experiment, plan)):
        return []
    silo, (_, warnings) = _of_the_first_run(experiment, plan)
    return [f"warning: {experiment.method.title}, '{silo.name}': {line}" for line in warnings]


def _of_the_first_run(
    experiment: Experiment, plan: Plan
) -> tuple[SiloPlan, tuple[list[dict[str, Any]], list[str]]]:
    silo = max(plan.silos[0], key=lambda plan: plan.steps)
    settings = experiment.variants[experiment.keys[0][1]].shown
    return silo, published_facts(plan, silo, settings)
