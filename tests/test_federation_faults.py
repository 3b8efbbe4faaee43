"""Whatever the network, the disks, the guards and the coordinator go through, the promises of a deployment hold.

`COTERIE_SEEDS=10000 pytest -n 2 tests/test_federation_faults.py` tries more of them, as every night should.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from coterie.deploy.calls import question
from coterie.deploy.guard import WORK, Guard
from coterie.deploy.guard_rounds import open_training, own_state, read_body, reserve
from coterie.deploy.replies import remembered, sealed
from coterie.deploy.store import Store
from coterie.guard.secret_streams import EntropyStreams
from coterie.protocol.messages import pack
from tests.faulty_network import MEMORY, tried
from tests.federations import Small, config_of, digits

SEEDS = int(os.environ.get("COTERIE_SEEDS", "300"))
BLOCKS = 10


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def small(folder) -> Small:
    config = config_of({"name": "mr-mtl", "lam": 0.2}, train={"rounds": 3, "batch": 8})
    made = Small(folder / "small", config, digits(2, 60), seconds=2.0)
    made.cache = {}
    return made


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_promises_hold_under_faults(small, folder, block):
    events = dict.fromkeys(("killed", "failed", "upload", "refused"), 0)
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        world = tried(small, folder, seed, trouble=0.1)
        assert world.ended, (
            f"seed {seed}: the training did not end in spite of it all: {world.complaints[-1:]}"
        )
        assert not world.late_ledgers, f"seed {seed}"
        for state in world.states:
            assert len(state.runs) <= 1, f"seed {seed}: a training was charged twice"
            spans = [span for run in state.runs for span in state.reserved(run)]
            assert len(spans) == len(set(spans)) <= 3, f"seed {seed}: a round was charged twice"
        for what in events:
            events[what] += world.count(what)
    assert all(events.values()), events


def test_a_seed_replays(small, folder):
    first, second = (tried(small, folder, 4) for _ in range(2))
    assert first.events == second.events
    assert set(first.left) == set(second.left)
    assert first.events != tried(small, folder, 5).events


def first_red(small: Small, folder: Path, words: str, **options) -> int:
    """The first seed that breaks a promise."""
    for seed in range(300):
        try:
            tried(small, folder, seed, trouble=0.1, **options)
        except AssertionError as error:
            if words in str(error):
                return seed
            raise
    raise AssertionError(f"no seed noticed: {words}")


def answer_before_charge(guard, request):
    """Do a round as a guard must not: the ledger is charged once the answer is written."""
    prepared, known = open_training(guard, request)
    own = own_state(guard, prepared)
    streams = EntropyStreams({guard.silo: os.urandom(32)})
    streams.begin(guard.silo, "row", request.round, request.round + 1)
    sent = read_body(request.body, prepared)
    upload, own = prepared.side.work(request.round, sent, own, streams)
    reply = sealed(guard, request, "upload", {}, pack(upload))
    answer = remembered(guard, request, reply, pack(own), request.round + 1)
    reserve(guard, prepared, known, request.round)
    return answer


def test_a_guard_that_answers_before_it_charges_is_noticed(small, folder, monkeypatch):
    monkeypatch.setitem(WORK, "round", answer_before_charge)
    assert first_red(small, folder, "left without a charge") < 300


def test_a_guard_that_forgets_its_answers_is_noticed(small, folder, monkeypatch):
    monkeypatch.setattr(Store, "answered", lambda *given: None)
    monkeypatch.setattr(Store, "answer", lambda *given: None)
    assert first_red(small, folder, "in two ways") < 300


def test_a_restored_ledger_answers_nothing_and_that_is_noticed(small, folder, monkeypatch):
    """With the coordinator's memory no old copy sends anything; a guard that does not listen to it is noticed."""
    restored = 0
    for seed in range(8):
        world = tried(small, folder, seed, trouble=0.1, restores=True)
        restored += world.count("restored")
    assert restored
    monkeypatch.setattr(Guard, "_check_witnessed", lambda self, request: None)
    assert first_red(small, folder, "behind its witness", restores=True) < 300


def test_what_the_coordinator_has_seen_is_no_part_of_a_question(small, folder):
    from coterie.protocol.envelope import Envelope

    one, other, third = (
        Envelope("a", 0, 2, "round", "coordinator", "silo-0", facts, body)
        for facts, body in (({"witnessed": 1}, b"x"), ({"witnessed": 2}, b"x"), ({"witnessed": 1}, b"y"))
    )
    assert question(one) == question(other) != question(third)
