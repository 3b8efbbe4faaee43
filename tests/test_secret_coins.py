"""Silos drawn by secret coins: each guard tosses its own, and nobody who may not know can tell the outcome."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.deploy.sum_terms import sum_terms
from coterie.guard.claims import is_drawn
from coterie.guard.secret_streams import EntropyStreams
from coterie.planning.schedule import schedule
from coterie.privacy.accountant import epsilon
from coterie.privacy.statement.file import verify
from coterie.protocol.messages import pack, unpack
from tests.faulty_network import TestClock
from tests.federations import Small, config_of, digits
from tests.masked_federations import (
    Wire,
    ask,
    first_tree,
    five,
    guards_of,
    known,
    own_model,
    reserved,
    simulated,
)
from tests.measured import CHANCE

RATE = 0.6
DRAWN = {"participation": {"poisson": RATE}}


def drawn_by_server(folder, method=None, rounds=4) -> Small:
    """Five silos, drawn in secret, and a server that adds the noise."""
    privacy = {"unit": "silo", "noise_by": "server", "epsilon": 8.0, "delta": 1e-2}
    small = Small(
        folder, config_of(method, privacy, {**DRAWN, "rounds": rounds}), digits(5, 200), seconds=0.5
    )
    small.cache = {}
    return small


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"name": "mr-mtl", "lam": 0.3}], ids=str)
def test_guards_with_coins_train_what_a_simulation_trains(tmp_path, method):
    """With the coins of its schedule: the same models, and every round charged to every silo."""
    small = drawn_by_server(tmp_path, method)
    guards = guards_of(small)
    made = small.plan.experiment()
    coordinator = small.coordinator(Wire(guards), clock=TestClock())
    coordinator.streams = known(made, "silo-0", "", 0)
    assert not coordinator.run().missing
    expected, plan = simulated(small), made.plan()
    assert not plan.present.all()
    for k, guard in enumerate(guards.values()):
        torch.testing.assert_close(own_model(guard, small), expected[k], atol=1e-5, rtol=1e-4)
        state = guard.ledger.state()
        assert state.total("silo", "shared")[0] == pytest.approx(plan.silos[0][k].epsilon, rel=1e-9)
        assert reserved(guard) == 4
        text = (guard.folder.path / "results" / small.plan.training / "statement.json").read_text()
        assert "knowledge of who took part in which round" in text


class Tossed:
    """Streams whose coin always shows one side."""

    def __init__(self, streams, side):
        self.streams, self.side = streams, side

    def dice(self, *which):
        return self.streams.dice(*which)

    def merging(self, run, silo, number):
        if silo.startswith("\0"):
            side = self.side
            return type("Coin", (), {"random": lambda self, count: np.full(count, 0.0 if side else 0.99)})()
        return self.streams.merging(run, silo, number)


def first_answers(small, side):
    """What a guard answers to the first round if its coin shows a side, and its row in the ledger."""

    def streams(experiment, silo, row, number):
        return Tossed(known(experiment, silo, row, number), side)

    guard = guards_of(small, streams)["silo-0"]
    assert ask(small, guard, "plan", body=small.plan.text.encode()).kind == "accepted"
    answer = ask(small, guard, "round", 0, first_tree(small))
    state = guard.store.state(small.plan.training)
    return guard, answer, state


def test_a_silo_that_was_not_drawn_sends_zeros_of_the_same_size_and_keeps_its_state(tmp_path):
    (tmp_path / "a").mkdir()
    small = drawn_by_server(tmp_path / "a", {"name": "mr-mtl", "lam": 0.3})
    guard, answer, state = first_answers(small, False)
    assert answer.kind == "upload"
    assert not unpack(answer.body).any()
    assert state == pack(guard.prepare(small.plan).side.begin())
    digests = [str(entry) for entry in guard.ledger.entries()]
    assert not any(
        hashlib.sha256(answer.body).hexdigest() in row for row in digests
    )  # zeros have a known one
    assert len(answer.facts["salt"]) == 32
    small = drawn_by_server(tmp_path / "b", {"name": "mr-mtl", "lam": 0.3})
    _, other, changed = first_answers(small, True)
    assert unpack(other.body).any()
    assert len(other.body) == len(answer.body)
    assert changed != state


def test_coins_are_secret_independent_and_at_most_as_likely_as_charged(tmp_path):
    """Drawn from entropy: no two guards toss alike, and the share of rounds is the rate."""
    made = drawn_by_server(tmp_path).plan.experiment()
    plan, how = made.plan(), made.training.participation
    tosses = []
    for name in ("silo-0", "silo-1"):
        streams = EntropyStreams({name: bytes(32)})
        streams.begin(name, "row", 0, 500)
        tosses.append([is_drawn(plan, streams, number) for number in range(500)])
    assert tosses[0] != tosses[1]
    assert stats.binomtest(sum(map(sum, tosses)), 1000, RATE).pvalue > CHANCE
    assert stats.binomtest(sum(map(sum, tosses)), 1000, RATE / 2).pvalue < CHANCE
    public = schedule(how, made.keys[0][0], 5, 500)[:, 0].tolist()
    assert public[:4] == plan.present[:, 0, 0].tolist()
    assert tosses[0] != public  # the public schedule has no say


def test_every_silo_is_asked_every_round_and_the_plan_does_not_say_who_is_drawn(tmp_path):
    small = drawn_by_server(tmp_path, rounds=2)
    guards = guards_of(small, None)
    asked = []
    wire = Wire(guards, lambda name, kind, number: asked.append((name, number)) if kind == "round" else False)
    small.coordinator(wire, clock=TestClock()).run()
    assert sorted(asked) == [(name, number) for name in small.federation.names for number in range(2)]
    assert [reserved(guard) for guard in guards.values()] == [2] * 5


def test_masked_guards_with_coins_train_what_a_simulation_trains(tmp_path):
    """Silos that are not drawn add noise to zeros; ledgers charge every round as a sampled one."""
    small = five(tmp_path, rounds=4, **DRAWN)
    guards = guards_of(small)
    assert not small.coordinator(Wire(guards), clock=TestClock()).run().missing
    expected, plan = simulated(small), small.plan.experiment().plan()
    assert not plan.present.all()
    for k, guard in enumerate(guards.values()):
        torch.testing.assert_close(own_model(guard, small), expected[k], atol=1e-5, rtol=1e-4)
        state, planned = guard.ledger.state(), plan.silos[0][k]
        assert state.total("silo", "server")[0] == pytest.approx(planned.epsilon, rel=1e-9)
        assert planned.epsilon == pytest.approx(epsilon(planned.noise, RATE, 4, 1e-2))
        assert reserved(guard) == 4
        folder = guard.folder.path / "results" / small.plan.training
        verify(
            folder / "statement.json",
            ledger=guard.ledger.path,
            key=guard.folder.path / "keys" / f"{guard.silo}.pub",
            witness=guard.folder.path / "witness",
        )
        page = (folder / "statement.html").read_text()
        assert "in secret: a silo that was not drawn uploads noise alone" in page
        assert "the server sees only the sum, of at least 4 uploads" in page


def test_masked_guards_send_noise_whatever_their_coins_show(tmp_path):
    """If no silo is drawn, the sum is the noise of all of them; no silo sends less than another."""
    small = five(tmp_path, {"name": "fedavg"}, rounds=1, **DRAWN)
    sums = []

    def none_drawn(experiment, silo, row, number):
        return Tossed(known(experiment, silo, row, number), False)

    wire = Wire(guards_of(small, none_drawn))
    coordinator = small.coordinator(wire, clock=TestClock())
    real = coordinator._ask_sum
    coordinator._ask_sum = lambda *which: sums.append(real(*which)) or sums[-1]
    coordinator.run()
    terms = sum_terms(small.plan, small.plan.experiment().plan(), 0)
    deviation = terms.own_deviation * math.sqrt(5)
    found = sums[0][0].numpy()
    assert stats.kstest(found / deviation, "norm").pvalue > CHANCE
    assert stats.kstest(found / (2 * deviation), "norm").pvalue < CHANCE
    sizes = {len(each.body) for each in wire.left if each.kind == "upload"}
    assert len(sizes) == 1
    assert len(sums[0][1]) == 5
