"""Guards that mask their uploads: the same models and charges as a simulation, and what a coordinator sees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.deploy.approval import approval_lines
from coterie.deploy.sum_terms import sum_terms
from coterie.errors import Problem
from coterie.noise.keystream import WORD
from coterie.privacy.statement.file import verify
from coterie.secure_sum.silo import signature_and_words
from coterie.secure_sum.wire import unpack
from tests.faulty_network import TestClock
from tests.masked_federations import Wire, copied, five, guards_of, own_model, reserved, simulated
from tests.measured import CHANCE

CASES = [
    ({"name": "fedavg"}, {}, {}),
    ({"name": "mr-mtl", "lam": 0.3}, {}, {}),
    ({"name": "heads"}, {}, {}),
    ({"name": "fedavg"}, {"epsilon": {"each": [4.0, 8.0]}}, {}),
    ({"name": "fine-tune", "share": 0.5}, {}, {}),
    ({"name": "fedavg"}, {"dropouts": 0}, {"participation": 0.6}),
]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return five(tmp_path_factory.mktemp("first"))


@pytest.fixture
def small(first, tmp_path):
    return copied(first, tmp_path)


def check_parity(small, guards, wire, expected):
    """Run the deployment, compare every model, ledger and statement; return the coordinator."""
    coordinator = small.coordinator(wire, clock=TestClock())
    outcome = coordinator.run()
    assert not outcome.missing
    for k, guard in enumerate(guards.values()):
        torch.testing.assert_close(own_model(guard, small), expected[k], atol=1e-5, rtol=1e-4)
        verify(
            guard.folder.path / "results" / small.plan.training / "statement.json",
            ledger=guard.ledger.path,
            key=guard.folder.path / "keys" / f"{guard.silo}.pub",
            witness=guard.folder.path / "witness",
        )
    return coordinator


@pytest.mark.parametrize(("method", "privacy", "train"), CASES, ids=str)
def test_guards_with_masks_train_what_a_simulation_trains(tmp_path, method, privacy, train):
    small = five(tmp_path, method, privacy, **train)
    guards = guards_of(small)
    check_parity(small, guards, Wire(guards), simulated(small))
    plan = small.plan.experiment().plan()
    for k, guard in enumerate(guards.values()):
        state, planned = guard.ledger.state(), plan.silos[0][k]
        assert state.total("silo", "server")[0] == pytest.approx(planned.epsilon, rel=1e-9)
        assert len(state.committed) == len(state.reservations) == planned.rounds


STEPS = ["keys", "shares", "upload", "confirmation", "unmask"]


@pytest.mark.parametrize("step", STEPS)
def test_a_silo_may_drop_out_in_any_step(small, step):
    """Without its upload, the rest is what a simulation trains without it; it is charged if it uploaded."""
    guards = guards_of(small)
    present = torch.ones(3, 1, 5, dtype=torch.bool)
    present[1, 0, 3] = STEPS.index(step) > STEPS.index("upload")
    wire = Wire(guards, lambda name, kind, number: (name, kind, number) == ("silo-3", step, 1))
    check_parity(small, guards, wire, simulated(small, present))
    assert [reserved(guard) for guard in guards.values()] == [3, 3, 3, 2 + int(present[1, 0, 3]), 3]


def test_an_upload_that_is_lost_on_its_way_is_charged(small):
    """The guard sent it: whether it arrived, no silo can know."""
    guards = guards_of(small)
    wire = Wire(guards)
    whole = wire.exchange

    def lossy(messages, seconds):
        answers, left = whole(messages, seconds), wire.left[-len(messages) :]
        gone = [
            each.sender for each in left if (each.sender, each.kind, each.round) == ("silo-3", "upload", 1)
        ]
        return {name: answer for name, answer in answers.items() if name not in gone}

    wire.exchange = lossy
    small.coordinator(wire, clock=TestClock()).run()
    assert [reserved(guard) for guard in guards.values()] == [3] * 5


@pytest.mark.parametrize("step", STEPS)
def test_too_few_silos_stop_a_round_and_their_return_resumes_it(small, step):
    guards = guards_of(small)
    gone = ("silo-1", "silo-3")
    wire = Wire(guards, lambda name, kind, number: name in gone and kind == step and number == 1)
    with pytest.raises(
        Problem, match=r"^round 1: its secure sum needs 4 uploads and .* 4 of 5 silos, and"
    ) as stop:
        small.coordinator(wire, clock=TestClock()).run()
    assert str(stop.value).count("\n") == 0
    assert all(name in str(stop.value) for name in gone)
    check_parity(small, guards, Wire(guards), simulated(small))
    assert [reserved(guard) for guard in guards.values()] == [3] * 5


def words_of(wire, small, number):
    """The masked uploads of a round, as the coordinator receives them: 64-bit words."""
    terms = sum_terms(small.plan, small.plan.experiment().plan(), number)
    found = {}
    for each in wire.left:
        if each.kind == "upload" and each.round == number:
            message = unpack(terms, "upload", terms.index(each.sender), each.body)
            found[each.sender] = signature_and_words(message.rows[0])[1].astype(WORD)
    return terms, found


def uniform(words):
    """Whether words look uniform, as a whole and in their lowest bits."""
    high, low = words.astype(np.float64) / 2.0**64, (words % 2**16).astype(np.float64) / 2**16
    return all(stats.kstest(part, "uniform").pvalue > CHANCE for part in (high, low))


def test_what_the_coordinator_receives_is_uniform(small):
    """Uploads are words that look random, alone and in pairs."""
    guards = guards_of(small, None)
    wire = Wire(guards)
    small.coordinator(wire, clock=TestClock()).run()
    terms, words = words_of(wire, small, 0)
    assert len(words) == 5
    for name, one in words.items():
        assert uniform(one), name
        assert all(uniform(one + other) for key, other in words.items() if key != name)
    bare = (np.arange(terms.size) % (2 * terms.reach)).astype(np.int64) - terms.reach
    assert not uniform(bare.astype(WORD))  # an upload without masks is not


def test_the_sum_has_the_noise_of_all_its_silos(tmp_path):
    """From outside: without examples to learn from, the shared model is noise of the planned deviation."""
    small = five(tmp_path, {"name": "fedavg"}, rounds=1, lr=1e-9)
    guards = guards_of(small, None)
    coordinator = small.coordinator(Wire(guards))
    sums = []
    real = coordinator._ask_sum

    def listen(number, parts):
        total, places = real(number, parts)
        sums.append(total.numpy())
        return total, places

    coordinator._ask_sum = listen
    coordinator.run()
    terms = sum_terms(small.plan, small.plan.experiment().plan(), 0)
    deviation = terms.own_deviation * math.sqrt(5)
    assert stats.kstest(sums[0] / deviation, "norm").pvalue > CHANCE
    for wrong in (0.5, 2.0):
        assert stats.kstest(sums[0] / (wrong * deviation), "norm").pvalue < CHANCE
    assert terms.own_deviation == pytest.approx(terms.deviation / math.sqrt(3))


def test_an_owner_and_a_statement_are_told_what_a_secure_sum_assumes(small):
    guards = guards_of(small)
    guard = guards["silo-2"]
    lines = "\n".join(approval_lines(guard, guard.prepare(small.plan)))
    words = "at most 1 of the 5 silos of a round side with the server; at most 1 may drop out, and 4 must"
    assert words in lines
    small.coordinator(Wire(guards)).run()
    folder = guard.folder.path / "results" / small.plan.training
    for name in ("statement.json", "statement.html"):
        text = (folder / name).read_text()
        assert "a server with which more than 1 of a round" in text
        assert "all other silos together, which know their own parts of the noise" in text
    page = (folder / "statement.html").read_text()
    assert "each silo adds a part of the noise, and the server sees only the sum, of at least 4" in page


def test_a_deployed_secure_sum_has_no_simulated_dropouts(tmp_path):
    with pytest.raises(Problem, match=r"train\.drop, train\.uneven: silos of a deployed secure sum drop out"):
        five(tmp_path, drop=0.1)
