"""What a plan says of privacy: against whom epsilon holds, and what papers would report beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiment.experiment import Experiment
from ..experiment.result import label_of
from ..planning.plan import Plan, SiloPlan
from ..privacy.accountant import quick_lower
from ..privacy.adversaries import ADVERSARIES, seen_by, table
from ..privacy.events import Event
from ..privacy.published.dual import published_dual
from ..privacy.published.formulas import published_for, warning
from ..privacy.published.merges import merge_warnings, published_for_merges
from ..protocol.doors import Door


def adversaries_of(silo: SiloPlan) -> dict[str, float | None]:
    """Give epsilon against each adversary."""
    if silo.merges is not None:
        return silo.merges.against(silo.delta)
    return table(silo.epsilon, seen_by(silo.bytes_up > 0))


def _whom(silos: Sequence[SiloPlan]) -> str:
    """Say against whom epsilon holds, of the silo that is most seen."""
    most = max(silos, key=lambda silo: (silo.steps, silo.bytes_up))
    against = adversaries_of(most)
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
        said = [_whom(silos) for silos in plan.silos]
        how = {} if experiment.budgets == "own" else {"budgets": experiment.budgets}
        alike = label_of(experiment.method.title, how)
        for whom, (_, number) in zip(said, experiment.keys, strict=True):
            label = alike if len(set(said)) == 1 else experiment.labels[number]
            found.setdefault(whom, {})[label] = None
    return [f"{', '.join(labels)}: {whom}." for whom, labels in found.items()]


def published_facts(
    silo: SiloPlan, settings: dict[str, Any], doors: tuple[Door, ...]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Give what papers report for a silo's steps, and warnings where that is less than is true."""
    if not silo.steps or not silo.noise:
        return [], []
    if silo.merges is not None:
        found, warnings = (
            published_for_merges(silo.merges, silo.delta),
            merge_warnings(silo.merges, silo.delta),
        )
    else:
        event = Event("gaussian", silo.noise, silo.rate, silo.steps)
        used = [(door.name, silo.rounds, 1 if silo.whole else silo.work.steps) for door in doors]
        found = published_for(silo.noise, silo.rate, silo.steps, silo.delta, quick=True)
        found += published_dual(settings, used, (event,), silo.delta)
        lower = quick_lower((event,), silo.delta)
        warnings = [line for line in (warning(one, lower) for one in found) if line]
    told = [{"paper": one.paper, "formula": one.formula, "epsilon": one.epsilon} for one in found]
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
    return silo, published_facts(silo, settings, plan.counts.calls[0])
