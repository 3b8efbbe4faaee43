"""What a guard holds in a round, apart from the training's own memory."""

from __future__ import annotations

import pytest

from benchmarks.guard_memory import in_models


@pytest.mark.parametrize(
    ("method", "models"), [({"name": "fedavg"}, 3), ({"name": "mr-mtl", "lam": 0.2}, 4)], ids=str
)
def test_a_guard_holds_few_copies_of_a_model(method, models):
    """FedAvg: the request, the new model and its change. MR-MTL: also the silo's own model."""
    assert in_models("guard", method, 13_333) < models + 0.3
