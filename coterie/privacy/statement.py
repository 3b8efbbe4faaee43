"""What one silo spent in one run, said so that it can be checked."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from .accountant import ADJACENCY

SCHEMA = "coterie-statement/1"
ALWAYS_UNCOVERED = (
    "scores on test examples, shown because this is a simulation; choosing a setting by them is tuning",
    "the number of examples of the silo, the classes and the shape of the data, taken as public",
    "other runs on the same data: budgets of several runs add up",
    "rounding of floating-point noise",
)


def statement(
    *,
    silo: str,
    method: str,
    settings: dict[str, Any],
    size: int,
    rate: float,
    expected_batch: float,
    calls: int,
    steps: int,
    noise: float,
    clip: float,
    budget: float,
    delta: float,
    epsilon: float,
    not_covered: Sequence[str],
) -> dict[str, Any]:
    """Give the statement of one silo as plain data."""
    private = epsilon < float("inf")
    return {
        "schema": SCHEMA,
        "silo": silo,
        "method": method,
        "settings": settings,
        "guarantee": {
            "unit": "example",
            "adjacency": ADJACENCY,
            "epsilon": epsilon if private else None,
            "delta": delta if private else None,
            "budget": budget if private else None,
            "bound": "upper, by privacy-loss distributions (dp-accounting)" if private else "none",
            "holds_for": "everything that leaves the silo: uploads, shared and personal models",
        },
        "declared_size": size,
        "events": [
            {
                "door": "descend",
                "calls": calls,
                "mechanism": "Gaussian noise on the sum of clipped gradients of a Poisson sample",
                "sampler": "poisson",
                "rate": rate,
                "steps": steps,
                "expected_batch": expected_batch,
                "noise_multiplier": noise,
                "clip": clip if private else None,
            }
        ],
        "randomness": "simulated: whoever knows the seed knows the noise; not for release",
        "not_covered": [*not_covered, *ALWAYS_UNCOVERED],
        "software": {name: version(name) for name in ("coterie", "dp-accounting", "torch", "numpy")},
    }
