"""Whatever the network, the guards and the coordinator go through, the promises of a deployment hold."""

from __future__ import annotations

import os

import pytest

from coterie.privacy.ledger.ledger import read_ledger
from tests.faulty_network import SecureWorld, World
from tests.federations import Small, config_of, digits

SEEDS = int(os.environ.get("COTERIE_SEEDS", "60"))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Small:
    config = config_of({"name": "mr-mtl", "lam": 0.2}, train={"rounds": 3, "batch": 8})
    made = Small(tmp_path_factory.mktemp("small"), config, digits(3, 90), seconds=5.0)
    made.cache = {}
    return made


@pytest.mark.parametrize("block", range(6))
def test_the_promises_hold_under_faults(small, tmp_path, block):
    kills = answers = ended = 0
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        world = World(small, tmp_path / str(seed), seed, trouble=0.1)
        ended += world.run()
        kills, answers = kills + world.kills, answers + world.answers
        assert not world.behind(), f"seed {seed}"
        world.close()
        for name in small.federation.names:
            ledger = read_ledger(
                next((tmp_path / str(seed) / name / "ledger").glob("*.sqlite")), only_read=True
            )
            state = ledger.state()
            assert len(state.runs) <= 1, f"seed {seed}: a training was charged twice"
            spans = [span for run in state.runs for span in state.reserved(run)]
            assert len(spans) == len(set(spans)) <= 3, f"seed {seed}: a round was charged twice"
            ledger.close()
    assert kills > 0
    assert answers > 0
    assert ended == SEEDS // 6  # every training ends in spite of it all


def test_a_seed_replays(small, tmp_path):
    worlds = [World(small, tmp_path / str(k), 4) for k in range(2)]
    for world in worlds:
        world.run()
        world.close()
    assert worlds[0].kills == worlds[1].kills
    assert set(worlds[0].left) == set(worlds[1].left)


def test_a_guard_that_sends_before_it_charges_is_noticed(small, tmp_path, monkeypatch):
    """The invariant is one that can fail: without reservations it does."""
    from coterie.deploy.guard import Guard
    from coterie.guard.secret_streams import EntropyStreams

    def careless(self, prepared, known, number):
        streams = EntropyStreams({self.silo: bytes(32)})
        streams.begin(self.silo, "row", number, number + 1)
        return 0, streams

    monkeypatch.setattr(Guard, "_reserve", careless)
    world = World(small, tmp_path / "careless", 1, trouble=0.0)
    for name in small.federation.names:
        world.guard(name).ledger.commit = lambda *given: None
    with pytest.raises(AssertionError, match="without a charge"):
        world.run()


def test_a_guard_that_forgets_its_answers_is_noticed(small, tmp_path, monkeypatch):
    from coterie.deploy.store import Store

    monkeypatch.setattr(Store, "answered", lambda *given: None)
    monkeypatch.setattr(Store, "answer", lambda *given: None)
    world = World(small, tmp_path / "forgetful", 3, trouble=0.1)
    with pytest.raises(AssertionError, match="in two ways"):
        world.run()


@pytest.fixture(scope="module")
def masked(tmp_path_factory) -> Small:
    """Four silos whose guards mask their uploads; one may drop out of a round."""
    secure = {"unit": "silo", "noise_by": "secure", "dropouts": 1, "colluding": 0}
    config = config_of(privacy=secure, train={"rounds": 2, "batch": 8})
    made = Small(tmp_path_factory.mktemp("masked"), config, digits(4, 120), seconds=5.0)
    made.cache = {}
    return made


SUM_SEEDS = max(4, SEEDS // 12)


def test_the_promises_hold_under_faults_of_a_secure_sum(masked, tmp_path):
    """Guards, coordinator and network fail, and in each round one silo is lost in some step."""
    kills = answers = 0
    for seed in range(SUM_SEEDS):
        world = SecureWorld(masked, tmp_path / str(seed), seed, trouble=0.05)
        assert world.run(), f"seed {seed} did not end: {world.problems[-1:]}"
        kills, answers = kills + world.kills, answers + world.answers
        assert not world.behind(), f"seed {seed}"
        world.close()
        for name in masked.federation.names:
            ledger = read_ledger(
                next((tmp_path / str(seed) / name / "ledger").glob("*.sqlite")), only_read=True
            )
            state = ledger.state()
            spans = [span for run in state.runs for span in state.reserved(run)]
            assert len(state.runs) <= 1, f"seed {seed}: a training was charged twice"
            assert len(spans) == len(set(spans)) <= 2, f"seed {seed}: a round was charged twice"
            ledger.close()
    assert kills > 0
    assert answers >= 6 * SUM_SEEDS  # at least three of four uploads in each of two rounds


def test_a_guard_that_forgets_its_sums_is_noticed(masked, tmp_path, monkeypatch):
    """Without its memory, a guard would offer other keys for the same round."""
    from coterie.deploy.store import Store

    monkeypatch.setattr(Store, "answered", lambda *given: None)
    monkeypatch.setattr(Store, "answer", lambda *given: None)
    world = SecureWorld(masked, tmp_path / "forgetful", 3, trouble=0.1)
    with pytest.raises(AssertionError, match="in two ways"):
        world.run()
