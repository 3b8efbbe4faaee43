"""Against whom epsilon holds: what a plan says of each adversary, in a line or as numbers."""

from __future__ import annotations

from collections.abc import Sequence

from .experiment import Experiment
from .plan import Plan, SiloPlan
from .privacy.adversaries import ADVERSARIES, seen_by, table
from .result import label_of


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
