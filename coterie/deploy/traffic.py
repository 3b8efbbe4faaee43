"""The bytes that a silo sends and receives in a deployment, before anything is sent."""

from __future__ import annotations

from ..planning.plan import Plan


def traffic(plan: Plan, k: int) -> tuple[float, float]:
    """Return the bytes that silo k sends and receives in a deployment, without signatures and headers.

    Silos whose own noise is added at home send eight bytes per number. After the last round, every silo
    receives the shared state once more, because it makes its own model at home.
    """
    silo = plan.silos[0][k]
    doubled = plan.merge is not None and plan.merge.where != "server"
    return silo.bytes_up * (2 if doubled else 1), silo.bytes_down * (1 + 1 / max(silo.rounds, 1))
