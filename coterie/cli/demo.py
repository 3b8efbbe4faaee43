"""The configuration of `coterie demo`, which needs no download and takes under a minute."""

from __future__ import annotations

from typing import Any

DEMO: dict[str, Any] = {
    "data": {"source": "digits", "silos": 10, "partition": "dirichlet", "alpha": 0.15},
    "model": {"name": "linear"},
    "train": {"rounds": 40, "batch": 32, "seeds": 5},
    "privacy": {"epsilon": {"each": [1.0, 2.0, 4.0]}, "delta": 1e-3, "clip": 1.0},
    "method": [
        {"name": "local"},
        {"name": "fedavg"},
        {"name": "mr-mtl", "lam": 0.2},
    ],
}
INTRODUCTION = """\
Ten silos share 1,797 handwritten digits unevenly. Each has its own privacy budget (epsilon
1, 2 or 4), and every example is protected in everything that leaves its silo.
Three ways to learn, at equal budgets: alone (local), one model for all (fedavg), and a
personal model for each silo, pulled toward the mean of all (mr-mtl).
"""
