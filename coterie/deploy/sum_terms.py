"""The terms of a round's secure sum: they follow from the approved plan and the number of the round alone.

Coordinator and guards derive them on their own. A guard never takes them from a message: every message of the
sum names their digest, and one with another digest is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Problem
from ..planning.plan import Plan
from ..secure_sum import Member, Terms

if TYPE_CHECKING:
    from .plan_file import PlanFile


def is_masked(plan: Plan, number: int) -> bool:
    """Return whether the uploads of a round are added up by a secure sum."""
    return plan.merge is not None and plan.merge.where == "secure" and plan.counts.merged[number]


def sum_terms(file: PlanFile, plan: Plan, number: int) -> Terms:
    """Return the terms of a round's secure sum; raise `Problem` if the plan has none in that round."""
    rule = plan.merge
    if rule is None or not 0 <= number < len(plan.counts.merged) or not is_masked(plan, number):
        raise Problem(f"the plan of training {file.training} has no secure sum in round {number}")
    names = [file.names[k] for k in plan.asked_at(number)]
    members = tuple(Member(name, file.keys[name].public) for name in names)
    noise, clip = float(rule.noise[0]), float(rule.clip[0])
    size = plan.counts.lengths[number]
    return Terms(file.hash, number, members, size, clip, noise * clip, rule.dropouts, rule.colluding)


def check_sums(file: PlanFile, plan: Plan) -> None:
    """Raise `Problem` if a plan's uploads are to be masked but cannot be."""
    first = next((number for number in range(len(plan.counts.merged)) if is_masked(plan, number)), None)
    if first is not None:
        sum_terms(file, plan, first)
