"""Optimizers, schedules and automatic learning rates are the same in a deployment and in a simulation."""

from __future__ import annotations

import pytest

from tests.parities import assert_same, both, configured

STEPS = {
    "auto": {"lr": "auto"},
    "adam": {"lr": 0.05, "optimizer": "adam", "schedule": "cosine", "warmup": 1},
    "momentum": {"lr": "auto", "momentum": 0.5, "weight_decay": 0.1, "schedule": "linear"},
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("unit", ["example", "silo"])
def test_a_deployment_steps_as_the_simulation(tmp_path, steps, unit):
    config = configured({"name": "mr-mtl", "lam": 2.0}, {"unit": unit}, **{**STEPS[steps], "steps": 2})
    assert_same(*both(config, tmp_path))
