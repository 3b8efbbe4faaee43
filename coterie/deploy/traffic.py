"""The bytes that a silo sends and receives in a deployment, before anything is sent."""

from __future__ import annotations

from ..planning.plan import Plan
from ..secure_sum import step_bytes
from .sum_terms import is_masked


def traffic(plan: Plan, k: int) -> tuple[float, float]:
    """Return the bytes that silo k sends and receives in a deployment, without signatures and headers.

    After the last round, every silo receives the shared state once more, because it makes its own model at
    home. A secure sum adds keys, shares and confirmations for every member.
    """
    silo = plan.silos[0][k]
    up, down = float(silo.bytes_up), silo.bytes_down * (1 + 1 / max(silo.rounds, 1))
    for number in range(len(plan.counts.merged)):
        members = plan.asked_at(number)
        if is_masked(plan, number) and k in members:
            more_up, more_down = step_bytes(len(members))
            up, down = up + more_up, down + more_down
    return up, down
