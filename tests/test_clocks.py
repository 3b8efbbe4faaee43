"""Clocks that differ between parties: no effect, or one clear sentence."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from coterie.deploy import guard_folder
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import POLICY, GuardFolder
from coterie.deploy.transcript import read_transcript
from coterie.errors import Problem
from coterie.network.nvflare.kit import Record, check_kit, make_kits
from coterie.network.transport import DirectTransport
from coterie.privacy import keys
from coterie.privacy.keys import CLOCKS_DIFFER, draw_key
from coterie.privacy.ledger import entries
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
        monkeypatch.setattr(entries, "time", SimpleNamespace(time=lambda: keys.now().timestamp()))

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


def trained(small, clocks, guards, shifts, own=timedelta(), name="coordinator"):
    """Train with a coordinator whose clock is off by `own`, and guards whose clocks are off by `shifts`."""

    def answering(name, guard):
        def answer(message):
            with clocks.showing(shifts.get(name, timedelta())):
                return guard.answer(message)

        return answer

    with clocks.showing(own):
        wire = DirectTransport({name: answering(name, guard) for name, guard in guards.items()})
        return small.coordinator(wire, name=name).run()


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


@WAYS
def test_the_date_of_a_plan_is_for_people_only(small, clocks, way):
    """A coordinator whose clock is wrong dates its plan wrongly; guards accept it, and count by their own clock."""
    with clocks.showing(way):
        small.plan = small.new_plan()
    guards = {name: opened(small, name) for name in small.federation.names}
    assert not trained(small, clocks, guards, {}, way).missing
    (known,) = guards["silo-0"].store.trainings()
    assert abs(keys.parse_time(known.began, "began") - keys.now()) < DAY / 2


def verified(small, guard, **options):
    """Verify a silo's statement of the training, together with its ledger."""
    folder = guard.folder.path
    verify(folder / "results" / small.plan.training / "statement.json", folder / "ledger", **options)


@pytest.mark.parametrize("share", [0.9, -0.9])
def test_a_few_minutes_are_no_difference(small, clocks, share):
    guards = {name: opened(small, name) for name in small.federation.names}
    assert not trained(small, clocks, guards, {"silo-1": share * CLOCKS_DIFFER}).missing
    verified(small, guards["silo-1"])


def test_a_ledger_whose_clock_goes_backwards_forgets_nothing(small, clocks):
    """Its first rows were written by a clock that was a day ahead: order and sums do not come from dates."""
    with clocks.showing(DAY):
        guards = {name: opened(small, name) for name in small.federation.names}
        trained(small, clocks, guards, dict.fromkeys(guards, DAY), DAY)
    small.plan = small.new_plan()
    assert not trained(small, clocks, guards, {}, name="second").missing
    ledger = guards["silo-0"].ledger
    times = [entry.body["time"] for entry in ledger.entries()]
    assert times != sorted(times)
    assert len(ledger.state().runs) == 2
    verified(small, guards["silo-0"])


def test_a_verifier_whose_clock_is_past_a_keys_end_may_name_the_day(tmp_path, clocks, monkeypatch):
    monkeypatch.setattr(guard_folder, "new_key", partial(guard_folder.new_key, valid_days=0.5))
    small = Small(tmp_path, config_of(train={"rounds": 2}))
    guards = {name: opened(small, name) for name in small.federation.names}
    trained(small, clocks, guards, {})
    today = keys.now()
    verified(small, guards["silo-1"])
    with clocks.showing(DAY):
        with pytest.raises(Problem, match=r"^statement: issuer: key .* expired on .*\(--at DATE\)$"):
            verified(small, guards["silo-1"])
        verified(small, guards["silo-1"], at=today)


@WAYS
def test_certificates_are_checked_by_the_machines_own_clock(tmp_path, clocks, way):
    kit = make_kits(Record("clinics", "localhost", 8002, ("north", "south"), "charity", 1), tmp_path)["north"]
    assert check_kit(kit) == []
    with clocks.showing(2 * way):
        problems = check_kit(kit)
    ahead = r"expired on .* UTC; ask the coordinator for a new kit$"
    said = ahead if way > timedelta() else r"is valid from .*; is the clock of this machine right\?$"
    assert len(problems) == 2
    assert all(re.search(said, problem) for problem in problems)
