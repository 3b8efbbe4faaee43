"""Every role of a deployment is killed with -9 at random times, and started again by the same command.

Real processes over NVFlare; takes minutes; run by `make test-deploy`.
"""

from __future__ import annotations

import os
import random
import time

import pytest
import torch

from coterie.experiment.saved_models import load_model
from coterie.privacy.statement.file import verify
from tests.federations import Small, config_of, digits
from tests.supervised import Supervised

pytestmark = pytest.mark.deploy
KILLS, ROUNDS, LIMIT = 30, 45, 1500.0


def test_a_training_survives_thirty_kills(tmp_path):
    seed = int(os.environ.get("COTERIE_KILLS_SEED", "7"))
    dice = random.Random(seed)
    config = config_of({"name": "mr-mtl", "lam": 0.2}, train={"rounds": ROUNDS, "batch": 8})
    small = Small(tmp_path / "guards", config, digits(3, 120), seconds=600.0)
    parties = Supervised(tmp_path, small)
    victims = [*parties.commands] * (KILLS // len(parties.commands))
    victims += dice.sample([*parties.commands], KILLS - len(victims))
    dice.shuffle(victims)
    deadline, at = time.monotonic() + LIMIT, 0.0
    try:
        while not parties.look():
            assert time.monotonic() < deadline, (parties.killed, parties.ended_by_itself, parties.rounds())
            done = len(parties.killed)
            if (
                done < KILLS
                and parties.rounds() >= 1 + done * (ROUNDS - 2) // KILLS
                and time.monotonic() > at
            ):
                time.sleep(dice.random() / 2)
                if parties.kill(victims[done], dice):
                    at = time.monotonic() + 1.0
                    for name in small.federation.names:
                        assert parties.released(name) <= set(parties.charged(name))
            time.sleep(0.1)
    finally:
        parties.end()
    print(f"seed {seed}: killed {parties.killed}; ended by themselves: {parties.ended_by_itself}")
    assert len(parties.killed) == KILLS
    assert {name.removeprefix("job of ") for name in parties.killed} == set(parties.commands)
    expected = parties.expected()
    for k, name in enumerate(small.federation.names):
        home = small.folder / name
        results = home / "results" / small.plan.training
        assert sorted(parties.charged(name)) == list(range(ROUNDS))  # each round once, whatever happened
        assert parties.released(name) == set(range(ROUNDS))
        saved = load_model(results / "model.safetensors")
        found = torch.cat([value.reshape(-1) for value in saved.module.state_dict().values()])
        torch.testing.assert_close(found, expected[k], atol=1e-5, rtol=1e-4)
        verify(
            results / "statement.json",
            ledger=next((home / "ledger").glob("*.sqlite")),
            key=home / "keys" / f"{name}.pub",
            witness=home / "witness",
        )
