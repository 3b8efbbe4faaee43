"""The promises of a deployment hold for masked uploads, too, whatever everybody goes through."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from coterie.deploy.store import Store
from tests.faulty_network import MEMORY, SecureWorld, tried
from tests.federations import Small, config_of, digits

SEEDS = max(6, int(os.environ.get("COTERIE_SEEDS", "300")) // 50)


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def masked(folder) -> Small:
    """Four silos whose guards mask their uploads; one may drop out of a round."""
    secure = {"unit": "silo", "noise_by": "secure", "dropouts": 1, "colluding": 0}
    config = config_of(privacy=secure, train={"rounds": 2, "batch": 8})
    made = Small(folder / "masked", config, digits(4, 120), seconds=5.0)
    made.cache = {}
    return made


def test_the_promises_hold_under_faults_of_a_secure_sum(masked, folder):
    """Guards, coordinator and network fail, and in each round one silo is lost in some step."""
    faults = answers = 0
    for seed in range(SEEDS):
        world = tried(masked, folder, seed, SecureWorld, trouble=0.05)
        assert world.ended, f"seed {seed} did not end: {world.complaints[-1:]}"
        assert not world.late_ledgers, f"seed {seed}"
        faults, answers = faults + world.count("killed") + world.count("failed"), answers + world.answers
        for state in world.states:
            spans = [span for run in state.runs for span in state.reserved(run)]
            assert len(state.runs) <= 1, f"seed {seed}: a training was charged twice"
            assert len(spans) == len(set(spans)) <= 2, f"seed {seed}: a round was charged twice"
    assert faults > 0
    assert answers >= 6 * SEEDS  # at least three of four uploads in each of two rounds


def test_a_guard_that_forgets_its_sums_is_noticed(masked, folder, monkeypatch):
    """Without its memory, a guard would offer other keys for the same round."""
    monkeypatch.setattr(Store, "answered", lambda *given: None)
    monkeypatch.setattr(Store, "answer", lambda *given: None)
    with pytest.raises(AssertionError, match="in two ways"):
        tried(masked, folder, 3, SecureWorld, trouble=0.1)
