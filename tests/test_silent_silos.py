"""Silos that fall silent: what they cost the others in time, and what follows if they never come back."""

from __future__ import annotations

import pytest
import torch

from coterie.deploy.messenger import PRESENCE
from coterie.errors import Problem
from coterie.guard import checkpoint
from coterie.protocol.tree import leaves
from tests.faulty_network import TestClock
from tests.federations import Small, config_of, digits
from tests.masked_federations import Wire, ask, copied, five, guards_of, reserved

SECONDS = 600.0


class SlowWire(Wire):
    """An exchange with a silo that stays silent takes as long as it may."""

    def __init__(self, guards, clock, lost):
        super().__init__(guards, lost)
        self.clock = clock

    def exchange(self, messages, seconds):
        answers = super().exchange(messages, seconds)
        if len(answers) < len(messages):
            self.clock.now += seconds
        return answers


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return five(tmp_path_factory.mktemp("first"), seconds=SECONDS)


@pytest.fixture
def small(first, tmp_path):
    return copied(first, tmp_path)


def waited(small, guards, lost) -> float:
    """How long a training waits for silent silos."""
    clock = TestClock()
    outcome = small.coordinator(SlowWire(guards, clock, lost), clock=clock).run()
    assert outcome.rounds == 3
    return clock.now


@pytest.mark.parametrize("step", ["keys", "shares", "upload", "confirmation", "unmask"])
def test_a_silo_that_misses_a_step_is_waited_for_once(small, step):
    """It missed one step of one round, so that step alone takes the plan's time."""
    lost = ("silo-3", step, 1)
    assert waited(small, guards_of(small), lambda *which: which == lost) == SECONDS


def test_a_silo_that_missed_a_step_is_asked_if_the_others_are_too_few(small):
    """One is late with its confirmation, another is lost while masks come off: the late one's shares are needed."""
    guards, asked = guards_of(small), []

    def lost(*which):
        asked.append(which)
        late = which == ("silo-3", "confirmation", 1) and asked.count(which) == 1
        return late or which == ("silo-2", "unmask", 1)

    assert waited(small, guards, lost) == 2 * SECONDS
    assert [reserved(guard) for guard in guards.values()] == [3] * 5


def test_a_silo_that_missed_a_step_and_stays_away_is_not_given_the_whole_time_again(small):
    """The sum cannot be finished without it, so it is asked once more, but not for long; later it may still confirm."""
    guards, clock = guards_of(small), TestClock()
    gone = {("silo-3", "confirmation", 1), ("silo-2", "unmask", 1)}
    with pytest.raises(
        Problem, match=r"it misses silo-3 \(no answer to 'unmask'\), silo-2 \(no answer to 'unmask'\)"
    ):
        small.coordinator(SlowWire(guards, clock, lambda *which: which in gone), clock=clock).run()
    assert clock.now == 2 * SECONDS + PRESENCE
    gone = {("silo-2", "unmask", 1)}
    assert waited(small, guards, lambda *which: which in gone) == SECONDS


def test_a_round_that_too_few_begin_is_not_given_up_but_begun_later(small):
    """No keys were exchanged, so there is nothing to give up: the sentence does not offer it."""
    guards = guards_of(small)
    gone = {("silo-3", "keys", 1), ("silo-1", "keys", 1)}
    with pytest.raises(
        Problem, match=r"it misses silo-1 .*, silo-3 .*: repeat the command when they are back; if more"
    ):
        small.coordinator(Wire(guards, lambda *which: which in gone), clock=TestClock()).run()
    assert waited(small, guards, lambda *which: False) == 0


def test_a_silo_that_is_gone_costs_the_whole_time_once_in_rounds(tmp_path):
    """Later rounds only look whether it is there again; at the end it is waited for once more."""
    small = Small(tmp_path, config_of(train={"rounds": 4}), digits(4, 200), seconds=SECONDS)
    small.plan = small.new_plan(seconds=SECONDS, fewest=3)
    guards = small.guards()
    clock = TestClock()
    wire = SlowWire(guards, clock, lambda name, kind, number: name == "silo-1" and number >= 1)
    outcome = small.coordinator(wire, clock=clock).run()
    assert outcome.missing == ("silo-1",)
    assert clock.now == SECONDS + 2 * PRESENCE + SECONDS  # round 1, rounds 2 and 3, and the end


def test_a_silo_that_is_back_takes_part_again(tmp_path):
    small = Small(tmp_path, config_of(train={"rounds": 4}), digits(4, 200), seconds=SECONDS)
    small.plan = small.new_plan(seconds=SECONDS, fewest=3)
    merged = []
    wire = Wire(small.guards(), lambda name, kind, number: name == "silo-1" and number == 1)
    coordinator = small.coordinator(
        wire, clock=TestClock(), on_round=lambda done, names: merged.append("silo-1" in names)
    )
    assert not coordinator.run().missing
    assert merged == [True, False, True, True]


def lose_a_round(small, guards):
    """Make a round that cannot be finished: one upload is missing, and then one confirmation."""
    gone = {("silo-3", "upload", 1), ("silo-1", "confirmation", 1)}
    sentence = (
        r"^round 1: its secure sum needs 4 uploads and the shares of 4 of 5 silos, and it misses"
        r" silo-3 \(no answer to 'upload'\), silo-1 \(no answer to 'confirmations'\): repeat the command when they"
        r" are back; .* add --skip-round .*; if more than 1 silo\(s\) are lost for good, propose a plan without them$"
    )
    with pytest.raises(Problem, match=sentence):
        small.coordinator(Wire(guards, lambda *which: which in gone), clock=TestClock()).run()


def shared_of(small):
    point = checkpoint.load(small.folder / "coordinator" / "checkpoint", small.plan.hash)
    return point.state.round, torch.cat([leaf.reshape(-1) for leaf in leaves(point.state.shared)])


def test_a_round_that_cannot_be_finished_is_given_up(small):
    """The next round follows with the same model, the charge stays, and the masks stay on."""
    guards = guards_of(small)
    lose_a_round(small, guards)
    before, merged = shared_of(small), []
    wire = Wire(guards, lambda name, kind, number: name == "silo-1")

    def on_round(done, names):
        merged.append((done, names))

    coordinator = small.coordinator(wire, clock=TestClock(), skip_round=True, on_round=on_round)
    state = checkpoint.load(small.folder / "coordinator" / "checkpoint", small.plan.hash).state
    skipped = coordinator._skipped(coordinator._side(), state)
    assert torch.equal(torch.cat([leaf.reshape(-1) for leaf in leaves(skipped.shared)]), before[1])
    outcome = coordinator.run()
    assert before[0] == 1
    assert outcome.rounds == 3
    assert outcome.missing == ("silo-1",)
    assert merged == [(3, ("silo-0", "silo-2", "silo-3", "silo-4"))]
    assert [reserved(guard) for guard in guards.values()] == [3, 2, 3, 2, 3]
    refused = ask(small, guards["silo-0"], "unmask", 1, b"")
    assert refused.kind == "refused"


def test_only_a_sum_that_was_begun_can_be_given_up(small):
    guards = guards_of(small)
    with pytest.raises(Problem, match=r"^--skip-round: no secure sum of round 0 was begun.* without it$"):
        small.coordinator(Wire(guards), clock=TestClock(), skip_round=True).run()
