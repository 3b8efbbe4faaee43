"""Noised scores of a deployment: what is charged is what is released, and nothing else tells a score."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from coterie.cli.coordinate import scores_line
from coterie.data.federation import Federation
from coterie.deploy.approval import approval_lines
from coterie.deploy.calls import CALLS
from coterie.deploy.federate import make_guards
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import GuardFolder
from coterie.deploy.make_plan import make_plan
from coterie.deploy.scores import claim_of, shared_scores
from coterie.errors import Problem
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.keys import draw_key, read_public_key
from coterie.privacy.statement.file import verify
from coterie.protocol.envelope import Envelope, seal, unseal
from coterie.protocol.messages import addressed, pack
from coterie.protocol.streams import SeededStreams
from tests.federations import Small, config_of
from tests.helpers import refused
from tests.parities import configured, federation

SPENDS = 0.5
NAMES = ("silo-0", "silo-1", "silo-2")


def made(folder: Path, name: str = "fedavg", scores: bool = True, data: Federation | None = None) -> Small:
    """Return a federation whose plan asks for scores, and whose policies allow it if `scores`."""
    plain = configured({"name": name}, {}, batch=32, rounds=2)
    config = config_of(
        {"name": name}, {}, plain.train.model_dump(exclude_none=True), scores={"epsilon": SPENDS}
    )
    return Small(folder, config, data or federation(), scores=scores)


def finish(small: Small, guard: Guard, add: float = 0.0):
    """Ask a guard for the end of a training, right after its plan; return the opened answer."""
    plan, side = small.plan, small.coordinator()._side()
    whole = addressed(side.method.broadcast(side.begin().shared), 0, 3) + add
    bodies = {"plan": plan.text.encode(), "finish": pack(whole)}
    for kind, number in (("plan", 0), ("finish", 2)):
        request = Envelope(
            plan.training, number, CALLS[kind], kind, "coordinator", guard.silo, {}, bodies[kind]
        )
        answer = unseal(guard.answer(seal(request, small.key)), guard.key.public, 2**24, "coordinator")
    return answer


def claim(guard: Guard):
    state = guard.ledger.state()
    (run,) = state.runs
    return state.claim_of(run), state.reserved(run)


def at_home(guard: Guard, training: str) -> dict:
    return json.loads((guard.folder.path / "results" / training / "report.json").read_text())


@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_scores_reach_the_coordinator_with_noise_that_is_charged_and_stated(tmp_path, name):
    small = made(tmp_path, name)
    guards = small.guards(streams=None)
    outcome = small.coordinator(guards=guards).run()
    written = json.loads((tmp_path / "coordinator" / "outcome.json").read_text())
    assert written["scores"] == outcome.scores
    assert set(outcome.scores["silos"]) == set(NAMES)
    plain = made(tmp_path / "plain", name).config.model_copy(update={"scores": None})
    alone = small.new_plan(plain).blank.plan().silos[0]
    for k, (silo, guard) in enumerate(guards.items()):
        said, home = outcome.scores["silos"][silo], at_home(guard, small.plan.training)["accuracy"]
        assert abs(min(max(home, 0), 1) - said["value"]) <= 6 * said["deviation"]  # chance 2e-9
        asked, reserved = claim(guard)
        event = asked.stages[-1][1][0]
        assert event == Event("gaussian", said["deviation"] * said["tests"])
        assert reserved[-1] == (2, 3)
        assert asked.epsilon > alone[k].epsilon
        assert epsilon_of(asked.events(0, 3), asked.delta) <= asked.epsilon * (1 + 1e-9)
        for adversary in ("server", "silos", "shared", "personal"):
            assert guard.ledger.state().total("example", adversary)[0] >= asked.epsilon
        folder = guard.folder.path
        path = folder / "results" / small.plan.training / "statement.json"
        content = json.loads(path.read_text())
        verify(
            path, ledger=guard.ledger.path, key=folder / "keys" / f"{silo}.pub", witness=folder / "witness"
        )
        door = next(door for door in content["doors"] if door["door"] == "score")
        assert (door["calls"], door["noise"], door["sampler"]) == (1, event.noise, "all test examples")
        assert content["adversaries"]["server"]["epsilon"] >= asked.epsilon
        assert any("as if it were in both parts" in line for line in content["not_covered"])


class Seen(NamedTuple):
    """What a spy saw of a noisy sum: the sum, the deviation of its noise, and the rows of the ledger."""

    total: float
    deviation: float
    reserved: tuple


class Spy(SeededStreams):
    """Streams that note what is asked of the dice of the score."""

    def __init__(self, keys, guard, seen, answer):
        super().__init__(keys)
        self.__dict__.update(guard=guard, seen=seen, answer=answer)

    def dice(self, run, silo, round_, call):
        found = super().dice(run, silo, round_, call)
        if round_ < 2:
            return found
        spy = self

        class Dice:
            def noisy(self, sums, deviation, material=None):
                spy.seen.append(Seen(float(sums), deviation, claim(spy.guard[0])[1]))
                return np.float64(spy.answer)

        return Dice()


def spied(small: Small, silo: str = "silo-0", answer: float = 3.25):
    """Finish a training at a guard whose dice are watched; return what was seen, and the answer."""
    guard, seen = [], []
    watched = lambda experiment, name, row, number: Spy(experiment.keys, guard, seen, answer)  # noqa: E731
    guard.append(Guard(GuardFolder(small.folder / silo), watched))
    reply = finish(small, guard[0])
    return guard[0], seen, reply


def test_the_noise_that_is_added_is_the_noise_that_is_charged(tmp_path):
    """Less noise than charged, none at all, or a smaller charge, and this fails."""
    guard, seen, reply = spied(made(tmp_path))
    asked, reserved = claim(guard)
    ((total, deviation, before),) = seen
    (event,) = asked.stages[-1][1]
    assert asked.stages[-1][0] == 1
    assert deviation == event.noise > 0
    assert (2, 3) in before  # charged before any noise is drawn
    assert before == reserved
    assert reply.facts["score"] == 3.25  # what leaves is what the dice gave, not the sum
    one = epsilon_of((Event("gaussian", deviation),), asked.delta)
    assert 0.98 * SPENDS < one <= SPENDS
    whole = epsilon_of((*asked.events(0, 2), Event("gaussian", deviation)), asked.delta)
    assert asked.epsilon == pytest.approx(whole, rel=1e-6)
    assert [asked.epsilon] == [known.epsilon for known in guard.store.trainings()]
    assert total == pytest.approx(at_home(guard, reply.training)["accuracy"] * 4)


def test_one_test_example_moves_the_sum_by_at_most_one(tmp_path):
    """Whatever the example is, also one for which the model gives no number."""
    data, sums = federation(), []
    for k, value in enumerate((None, 0.0, 1e30, float("nan"))):
        silo = data.silos[0]
        test_x, test_y = silo.test_x.clone(), silo.test_y.clone()
        if value is not None:
            test_x[0], test_y[0] = value, (test_y[0] + 1) % 3
        other = replace(data, silos=(replace(silo, test_x=test_x, test_y=test_y), *data.silos[1:]))
        sums.append(spied(made(tmp_path / str(k), data=other))[1][0].total)
    assert max(sums) - min(sums) <= 1


def test_without_the_section_no_score_leaves(tmp_path):
    small = Small(tmp_path, configured({"name": "fedavg"}, {}, batch=32, rounds=2), federation(), scores=True)
    guards = small.guards()
    outcome = small.coordinator(guards=guards).run()
    assert outcome.scores is None
    assert "score" not in (tmp_path / "coordinator" / "outcome.json").read_text()
    assert claim(guards["silo-0"])[1] == ((0, 1), (1, 2))
    assert "score" not in finish(small, guards["silo-0"]).facts


def test_a_score_is_told_once(tmp_path):
    small = made(tmp_path)
    guard = small.guards(streams=None)["silo-0"]
    first = finish(small, guard)
    assert finish(small, guard).facts["score"] == first.facts["score"]
    other = finish(small, guard, add=1.0)
    assert other.kind == "refused"
    assert "score" not in other.facts
    assert claim(guard)[1] == ((2, 3),)


def test_a_crash_before_the_answer_was_written_charges_once(tmp_path, monkeypatch):
    small = made(tmp_path)
    guard = small.guards(streams=None)["silo-0"]
    kept = guard.store.answer

    def killed(name, number, *rest):
        if number == 2:
            raise OSError("killed")
        kept(name, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(guard.store, "answer", killed)
        assert finish(small, guard).kind == "failed"
    assert claim(guard)[1] == ((2, 3),)  # charged, although nothing left
    guard.close()
    again = Guard(GuardFolder(tmp_path / "silo-0"))
    assert finish(small, again).kind == "finished"
    assert claim(again)[1] == ((2, 3),)
    assert set(again.ledger.state().reservations) == again.ledger.state().committed


def test_a_policy_that_does_not_allow_scores_refuses_the_plan(tmp_path):
    small = made(tmp_path, scores=False)
    guard = small.guards()["silo-0"]
    answer = finish(small, guard)
    assert answer.kind == "refused"
    log = (guard.folder.path / "log.txt").read_text()
    assert "scores: the policy does not allow a plan to ask for noised scores" in log
    assert not guard.ledger.state().runs


def test_the_limit_per_training_counts_scores(tmp_path):
    small = made(tmp_path)
    guard = small.guards()["silo-0"]
    alone = small.plan.blank.plan().silos[0][0].epsilon
    guard.policy = guard.policy.model_copy(update={"epsilon_per_training": alone})
    with pytest.raises(Problem, match="the plan spends"):
        guard.check_policy(guard.prepare(small.plan))


def test_the_owner_sees_the_door_before_approving(tmp_path):
    small = made(tmp_path)
    guard = small.guards()["silo-0"]
    prepared = guard.prepare(small.plan)
    lines = "\n".join(approval_lines(guard, prepared))
    assert "scores on its 4 test examples: one sum, with noise of deviation" in lines
    assert f"epsilon at most {prepared.plan.silos[0][0].epsilon:.4g}" in lines


def test_a_silo_without_test_examples_tells_and_pays_nothing(tmp_path):
    data = federation()
    bare = replace(data.silos[0], test_x=data.silos[0].test_x[:0], test_y=data.silos[0].test_y[:0])
    small = made(tmp_path, data=replace(data, silos=(bare, *data.silos[1:])))
    guards = small.guards()
    outcome = small.coordinator(guards=guards).run()
    assert set(outcome.scores["silos"]) == {"silo-1", "silo-2"}
    assert claim(guards["silo-0"])[1] == ((0, 1), (1, 2))


def test_whole_silos_have_no_such_door(tmp_path):
    config = config_of({"name": "fedavg"}, {"unit": "silo"}, scores={"epsilon": 1.0})
    with refused("scores: allowed only with unit = 'example'"):
        Small(tmp_path, config, federation())


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "scores.epsilon: required"),
        ({"epsilon": 0.0}, "scores.epsilon: expected a number > 0"),
        ({"epsilon": 1.0, "delta": 1e-5}, "scores.delta: unknown key"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused(table, words):
    with pytest.raises(Problem, match=words):
        config_of(scores=table)


def test_what_is_no_number_is_no_score(tmp_path):
    small = made(tmp_path)
    plan = small.guards()["silo-0"].prepare(small.plan).plan
    said = {name: {"score": value} for name, value in zip(NAMES, ("4", float("inf"), 3.0), strict=True)}
    found = shared_scores(small.plan, plan, said)
    assert set(found["silos"]) == {"silo-2"}
    assert found["all"] == found["silos"]["silo-2"]
    assert shared_scores(small.plan, plan, {})["all"] is None


def test_the_coordinator_reads_it_in_one_line():
    silo = {"value": 0.5, "low": 0.25, "high": 0.75, "tests": 8, "deviation": 0.1}
    scores = {"metric": "accuracy", "chance": 0.95, "silos": {"north": silo}, "all": silo}
    assert scores_line(scores) == (
        "1 silo told a noised accuracy: 0.500 over all 8 test examples (0.250 to 0.750 with a chance of 95%)"
    )
    assert scores_line({**scores, "silos": {}, "all": None}) == "no silo told a score"


def test_a_deployment_on_one_machine_allows_and_pays_for_it(tmp_path):
    data, key = federation(), draw_key("coordinator")
    config = config_of({"name": "fedavg"}, {}, {"batch": 32, "rounds": 2}, scores={"epsilon": SPENDS})
    guards = make_guards(data, [config], tmp_path, key)
    keys = {name: read_public_key(next((at.path / "keys").glob("*.pub"))) for name, at in guards.items()}
    plan = make_plan(config, data, key.public, keys)
    guard = Guard(guards["silo-2"])
    guard.check_policy(guard.prepare(plan))
    run = guard.ledger.claim(claim_of(guard.prepare(plan), "all")).run  # the budget pays for the score too
    assert guard.ledger.state().claim_of(run).stages[-1][1][0].noise > 0
