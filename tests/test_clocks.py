"""Clocks that differ between parties: no effect, or one clear sentence."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from datetime import timedelta

import pytest

from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import POLICY, GuardFolder
from coterie.deploy.transcript import read_transcript
from coterie.errors import Problem
from coterie.network.transport import DirectTransport
from coterie.privacy import keys
from coterie.privacy.keys import draw_key
from coterie.privacy.statement.file import verify
from tests.federations import Small, config_of

DAY = timedelta(days=1)
WAYS = pytest.mark.parametrize("way", [DAY, -DAY], ids=["ahead", "behind"])


class Clocks:
    """Everybody's clock in this process; `showing` moves it for a while."""

    def __init__(self, monkeypatch):
        real, self.shift = keys.now, timedelta()
        for name, module in list(sys.modules.items()):
            if name.startswith("coterie.") and getattr(module, "now", None) is real:
                monkeypatch.setattr(module, "now", lambda: real() + self.shift)

    @contextmanager
    def showing(self, shift):
        before, self.shift = self.shift, shift
        try:
            yield
        finally:
            self.shift = before


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


@pytest.fixture
def small(tmp_path, clocks):
    return Small(tmp_path, config_of(train={"rounds": 2}))


def opened(small, name) -> Guard:
    return Guard(GuardFolder(small.folder / name))


def trained(small, clocks, guards, shifts, own=timedelta()):
    """Train with a coordinator whose clock is off by `own`, and guards whose clocks are off by `shifts`."""

    def answering(name, guard):
        def answer(message):
            with clocks.showing(shifts.get(name, timedelta())):
                return guard.answer(message)

        return answer

    with clocks.showing(own):
        wire = DirectTransport({name: answering(name, guard) for name, guard in guards.items()})
        return small.coordinator(wire).run()


def test_a_coordinator_that_is_a_day_ahead_changes_nothing(small, clocks):
    guards = {name: opened(small, name) for name in small.federation.names}
    assert not trained(small, clocks, guards, {}, DAY).missing
    lines = read_transcript(small.folder / "coordinator" / "transcript.jsonl", small.key.public)
    assert len(lines) == 3 * (1 + 1 + 2 + 1)


def test_a_coordinator_that_is_a_day_behind_changes_nothing(small, clocks):
    guards = {name: opened(small, name) for name in small.federation.names}
    assert not trained(small, clocks, guards, {}, -DAY).missing


def test_a_guard_whose_clock_is_ahead_trains_and_its_statement_says_the_date(small, clocks):
    """The others are not concerned; whoever verifies its statement today hears that it is dated tomorrow."""
    guards = {name: opened(small, name) for name in small.federation.names}
    assert not trained(small, clocks, guards, {"silo-1": DAY}).missing
    results = guards["silo-1"].folder.path / "results" / small.plan.training
    with pytest.raises(Problem, match=r"^statement: time: it is dated .*, which is after [^\n]*$"):
        verify(results / "statement.json")
    with clocks.showing(DAY):
        verify(results / "statement.json")


def test_a_clock_that_was_set_back_does_not_open_a_guard(small, clocks):
    """Its own key was made after now: the guard does not start, and says what to check."""
    with (
        clocks.showing(-DAY),
        pytest.raises(Problem, match=r"^key .* was made on .*: check the clock;[^\n]*$"),
    ):
        opened(small, "silo-1")


def test_a_clock_that_was_set_back_while_a_guard_runs_is_noticed(small, clocks):
    """It works no more, and tells the coordinator why; the others go on."""
    guards = {name: opened(small, name) for name in small.federation.names}
    small.plan = small.new_plan(seconds=0.3, fewest=2)
    outcome = trained(small, clocks, guards, {"silo-1": -DAY})
    assert outcome.missing == ("silo-1",)
    log = (guards["silo-1"].folder.path / "log.txt").read_text()
    assert "check the clock" in log


def test_a_coordinator_key_that_expires_while_a_guard_runs_is_noticed(tmp_path, clocks):
    small = Small(tmp_path, config_of(train={"rounds": 2}))
    guards = {name: opened(small, name) for name in small.federation.names}
    old = draw_key("coordinator", valid_days=0.5).public
    for guard in guards.values():
        guard.coordinator = keys.PublicKey(**{**vars(guard.coordinator), "expires": old.expires})
    small.plan = small.new_plan(seconds=0.3)
    with pytest.raises(Problem, match=r"0 of 3 silos accepted .* expired on"):
        trained(small, clocks, guards, dict.fromkeys(guards, DAY))


@WAYS
def test_the_month_of_a_policy_never_forgets_by_a_day(small, clocks, way):
    """A training that began by a wrong clock still counts for the month."""
    guards = {name: opened(small, name) for name in small.federation.names}
    with clocks.showing(max(way, timedelta())):
        trained(small, clocks, guards, dict.fromkeys(guards, max(way, timedelta())))
    guard = guards["silo-0"]
    prepared = guard.prepare(small.new_plan())
    guard.policy = guard.policy.model_copy(update={"trainings_per_month": 1})
    with clocks.showing(way), pytest.raises(Problem, match="trainings: 1 began in the last 30 days"):
        guard.check_policy(prepared)


def test_a_policy_expires_by_the_guards_own_clock(small, clocks):
    for name in small.federation.names:
        path = small.folder / name / POLICY
        path.write_text(f"expires = {(keys.now() + DAY).date()}\n" + path.read_text())
    small.plan = small.new_plan(seconds=0.3, fewest=2)
    guards = {name: opened(small, name) for name in small.federation.names}
    outcome = trained(small, clocks, guards, {"silo-1": DAY}, own=DAY)
    assert outcome.missing == ("silo-1",)
    assert "refused: the policy expired on" in (guards["silo-1"].folder.path / "log.txt").read_text()
