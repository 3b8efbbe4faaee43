"""Guards: what they answer, what they refuse, and what a ledger shows afterwards."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.deploy.approval import approval_lines, approve
from coterie.deploy.calls import CALLS
from coterie.deploy.coordinator import Coordinator
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import GuardFolder, make_guard
from coterie.deploy.plan_file import PlanFile, read_plan
from coterie.deploy.policy import policy_text
from coterie.deploy.transcript import read_transcript
from coterie.errors import Problem
from coterie.network.transport import DirectTransport
from coterie.privacy.keys import draw_key
from coterie.protocol.envelope import Envelope, seal, unseal
from coterie.protocol.messages import addressed, pack, unpack
from tests.federations import BUDGET, Small, config_of, digits, seeded
from tests.helpers import vectors

MOST = 2**24


@pytest.fixture
def small(tmp_path) -> Small:
    return Small(tmp_path)


def ask(small: Small, guard: Guard, kind: str, number: int = 0, body: bytes = b"", plan=None, **changes):
    """Send a guard a request of the coordinator; return the opened answer."""
    training = (plan or small.plan).training
    request = Envelope(training, number, CALLS[kind], kind, "coordinator", guard.silo, {}, body)
    request = replace(request, **changes)
    return unseal(guard.answer(seal(request, small.key)), guard.key.public, MOST, "coordinator")


def begin(small: Small, guard: Guard) -> None:
    assert ask(small, guard, "plan", body=small.plan.text.encode()).kind == "accepted"


def first_broadcast(small: Small) -> bytes:
    coordinator = small.coordinator(DirectTransport({}))
    side = coordinator._side()
    sent = side.method.broadcast(side.begin().shared)
    return pack(addressed(sent, 0, len(small.federation)))


def spent(guard: Guard) -> float:
    return guard.ledger.state().total("example", "shared")[0]


def reserved(guard: Guard) -> int:
    state = guard.ledger.state()
    return sum(last - first for run in state.runs for first, last in state.reserved(run))


METHODS = [
    ({"name": "fedavg"}, {}, {}),
    ({"name": "mr-mtl", "lam": 0.3}, {}, {}),
    ({"name": "ifca", "clusters": 2}, {}, {}),
    ({"name": "pfa+"}, {"epsilon": {"silo-0": 1.0, "silo-1": 4.0, "silo-2": 4.0}}, {}),
    ({"name": "fedavg"}, {"unit": "silo", "noise_by": "server"}, {}),
    ({"name": "mr-mtl", "lam": 0.3}, {"unit": "silo", "noise_by": "silos"}, {}),
    ({"name": "fedavg"}, {}, {"participation": 0.67}),
]


@pytest.mark.parametrize(("method", "privacy", "train"), METHODS, ids=str)
def test_a_deployment_trains_what_a_simulation_trains(tmp_path, method, privacy, train):
    """With the same random streams: the same vectors, and the charge of the plan in every ledger."""
    small = Small(tmp_path, config_of(method, privacy, train))
    made = replace(small.plan.experiment(), federation=small.federation)
    expected, guards = vectors(made)[0], small.guards()
    coordinator = small.coordinator(guards=guards)
    coordinator.streams = seeded(made, "", "", 0)
    outcome = coordinator.run()
    assert not outcome.missing
    unit = small.config.privacy.unit
    for k, (name, guard) in enumerate(guards.items()):
        from coterie.experiment.saved_models import load_model

        saved = load_model(guard.folder.path / "results" / small.plan.training / "model.safetensors")
        found = torch.cat([value.reshape(-1) for value in saved.module.state_dict().values()])
        torch.testing.assert_close(found, expected[k], atol=1e-5, rtol=1e-4)
        planned = made.plan().silos[0][k]
        state = guard.ledger.state()
        seen = "shared" if unit == "example" or privacy["noise_by"] == "server" else "server"
        assert state.total(unit, seen)[0] == pytest.approx(planned.epsilon, rel=1e-9)
        assert len(state.committed) == len(state.reservations) == planned.rounds
        statement = (guard.folder.path / "results" / small.plan.training / "statement.json").read_text()
        from coterie.privacy.statement.file import verify

        verify(
            guard.folder.path / "results" / small.plan.training / "statement.json",
            ledger=guard.ledger.path,
            key=guard.folder.path / "keys" / f"{name}.pub",
            witness=guard.folder.path / "witness",
        )
        assert small.plan.training in statement
    lines = read_transcript(coordinator.folder / "transcript.jsonl", small.key.public)
    assert {line["silo"] for line in lines} == set(small.federation.names)


def test_the_same_request_gets_the_same_bytes_for_free(small):
    guard = small.guards(streams=None)["silo-0"]
    begin(small, guard)
    body = first_broadcast(small)
    request = Envelope(small.plan.training, 0, CALLS["round"], "round", "coordinator", "silo-0", {}, body)
    message = seal(request, small.key)
    first = guard.answer(message)
    rounds = reserved(guard)
    guard.close()
    again = Guard(GuardFolder(small.folder / "silo-0"))
    assert again.answer(message) == first
    assert reserved(again) == rounds == 1


def test_any_other_request_for_an_answered_round_is_refused(small):
    guard = small.guards()["silo-0"]
    begin(small, guard)
    body = first_broadcast(small)
    assert ask(small, guard, "round", 0, body).kind == "upload"
    tree = unpack(body)
    other = pack(tree + 1 if isinstance(tree, torch.Tensor) else tree)
    answer = ask(small, guard, "round", 0, other)
    assert answer.kind == "refused"
    assert "answered for another request" in answer.facts["why"]
    assert not answer.body
    assert reserved(guard) == 1


def test_a_crash_before_the_answer_was_written_is_not_charged_twice(small, monkeypatch):
    """Nothing left the guard, so one reservation pays for doing the work again."""
    guard = small.guards(streams=None)["silo-0"]
    begin(small, guard)
    body = first_broadcast(small)
    with monkeypatch.context() as patch:
        patch.setattr(guard.store, "answer", lambda *a: (_ for _ in ()).throw(OSError("killed")))
        assert ask(small, guard, "round", 0, body).kind == "failed"
    assert reserved(guard) == 1
    guard.close()
    again = Guard(GuardFolder(small.folder / "silo-0"))
    assert ask(small, again, "round", 0, body).kind == "upload"
    assert reserved(again) == 1


def test_a_crash_between_charge_and_memory_does_not_charge_a_training_twice(small, monkeypatch):
    guard = small.guards()["silo-0"]
    with monkeypatch.context() as patch:
        patch.setattr(guard.store, "update", lambda *a, **k: (_ for _ in ()).throw(OSError("killed")))
        assert ask(small, guard, "plan", body=small.plan.text.encode()).kind == "failed"
    charged = spent(guard)
    assert charged > 0
    guard.close()
    again = Guard(GuardFolder(small.folder / "silo-0"), seeded)
    begin(small, again)
    assert spent(again) == charged


def test_noise_differs_between_guards_and_answers(small):
    """With the system's entropy, two guards that do the same work send different noise."""
    guard = small.guards(streams=None)["silo-0"]
    begin(small, guard)
    body = first_broadcast(small)
    shutil.copytree(guard.folder.path, small.folder / "copy")
    one = ask(small, guard, "round", 0, body).body
    other = Guard(GuardFolder(small.folder / "copy"))
    assert one != ask(small, other, "round", 0, body).body


def wrong_key(small, guard):
    request = Envelope(small.plan.training, 0, 1, "plan", "coordinator", "silo-0", {}, b"")
    return seal(request, draw_key("coordinator")), "not signed with key"


def for_another(small, guard):
    request = Envelope(small.plan.training, 0, 1, "plan", "coordinator", "silo-1", {}, b"")
    return seal(request, small.key), "for 'silo-1', not for 'silo-0'"


def changed_body(small, guard):
    request = Envelope(small.plan.training, 0, 1, "plan", "coordinator", "silo-0", {}, b"abc")
    return seal(request, small.key)[:-1] + b"d", "body of the message was changed"


def truncated(small, guard):
    request = Envelope(small.plan.training, 0, 1, "plan", "coordinator", "silo-0", {}, b"abc")
    return seal(request, small.key)[:-1], "does not have the size"


def garbage(small, guard):
    return b"GET / HTTP/1.1\r\n\r\n", "no message of Coterie"


def unknown_door(small, guard):
    request = Envelope(small.plan.training, 0, 2, "examples", "coordinator", "silo-0", {}, b"")
    return seal(request, small.key), "no answer to 'examples'"


def no_plan(small, guard):
    request = Envelope("0" * 32, 0, 2, "round", "coordinator", "silo-0", {}, first_broadcast(small))
    return seal(request, small.key), "never accepted here"


def later_than_the_plan(small, guard):
    begin(small, guard)
    request = Envelope(
        small.plan.training, 3, 2, "round", "coordinator", "silo-0", {}, first_broadcast(small)
    )
    return seal(request, small.key), "not among the rounds 0 to 2"


def not_finite(small, guard):
    begin(small, guard)
    body = pack(torch.full_like(unpack(first_broadcast(small)), torch.nan))
    request = Envelope(small.plan.training, 0, 2, "round", "coordinator", "silo-0", {}, body)
    return seal(request, small.key), "not finite"


def misshapen(small, guard):
    begin(small, guard)
    request = Envelope(small.plan.training, 0, 2, "round", "coordinator", "silo-0", {}, pack(torch.ones(3)))
    return seal(request, small.key), "not of one run"


def too_large(small, guard):
    begin(small, guard)
    body = pack(torch.zeros(1, 1, 10**6))
    request = Envelope(small.plan.training, 0, 2, "round", "coordinator", "silo-0", {}, body)
    return seal(request, small.key), "more than this plan needs"


def no_tensors(small, guard):
    begin(small, guard)
    request = Envelope(small.plan.training, 0, 2, "round", "coordinator", "silo-0", {}, b"\x80\x04." * 50)
    return seal(request, small.key), "holds no tensors"


HOSTILE = [
    wrong_key, for_another, changed_body, truncated, garbage, unknown_door, no_plan, later_than_the_plan,
    not_finite, misshapen, too_large, no_tensors,
]  # fmt: skip


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.__name__)
def test_a_hostile_message_is_refused_and_the_guard_stays_up(small, attack):
    guard = small.guards()["silo-0"]
    message, words = attack(small, guard)
    before = reserved(guard)
    answer = unseal(guard.answer(message), guard.key.public, MOST)
    assert answer.kind == "refused"
    assert words in answer.facts["why"]
    assert not answer.body
    assert reserved(guard) == before
    log = (guard.folder.path / "log.txt").read_text().splitlines()
    assert words in log[-1]
    if small.plan.training not in [each.training for each in guard.store.trainings()]:
        begin(small, guard)
    assert ask(small, guard, "round", 0, first_broadcast(small)).kind == "upload"


def changed(plan: PlanFile, **changes) -> PlanFile:
    content = {**plan.content, "training": "ab" * 16}
    for key, value in changes.items():
        table, _, name = key.partition("__")
        content = {
            **content,
            "config": {**content["config"], table: {**content["config"][table], name: value}},
        }
    return read_plan(content)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy__epsilon": 21.0}, "allows 20 per training"),
        ({"model__name": "os:system"}, "os"),
        ({"model__name": "antigravity:fly"}, "antigravity"),
        ({"privacy__epsilon": float("1e9")}, "at most 1000"),
    ],
)
def test_a_plan_that_breaks_the_policy_is_refused(small, changes, words):
    guard = small.guards()["silo-0"]
    plan = changed(small.plan, **changes)
    answer = ask(small, guard, "plan", body=plan.text.encode(), training=plan.training)
    assert answer.kind == "refused"
    assert words in answer.facts["why"]
    assert spent(guard) == 0


def test_every_rule_that_is_broken_is_named(tmp_path):
    small = Small(tmp_path, fewest=5)
    guard = small.guards()["silo-0"]
    strict = replace_policy(guard, methods=["local"], units=["silo"], adversaries=["server"], models=["cnn"])
    answer = ask(small, strict, "plan", body=small.plan.text.encode())
    for words in ("'fedavg'", "'linear'", "'example'", "at least 5"):
        assert words in answer.facts["why"]


def replace_policy(guard: Guard, **changes) -> Guard:
    guard.policy = guard.policy.model_copy(update=changes)
    return guard


def test_invented_trainings_cannot_burn_the_budget(tmp_path):
    """Without the owner's word nothing begins; where the policy decides, its monthly limit holds."""
    small = Small(tmp_path / "a", approve="owner")
    guard = small.guards()["silo-0"]
    answer = ask(small, guard, "plan", body=small.plan.text.encode())
    assert "not approved" in answer.facts["why"]
    assert spent(guard) == 0
    other = Small(tmp_path / "b", config_of(privacy={"epsilon": 18.0}))
    guard, accepted = other.guards()["silo-0"], 0
    for _ in range(5):
        plan = other.new_plan()
        answer = ask(other, guard, "plan", body=plan.text.encode(), training=plan.training)
        accepted += answer.kind == "accepted"
    assert accepted == 2
    assert "in the last 30 days" in answer.facts["why"]
    assert spent(guard) <= 50


def test_an_owner_approves_a_plan_by_its_hash(tmp_path):
    small = Small(tmp_path, approve="owner")
    guard = small.guards()["silo-0"]
    prepared = guard.prepare(small.plan)
    lines = "\n".join(approval_lines(guard, prepared))
    assert small.plan.hash in lines
    assert "epsilon at most" in lines
    approve(guard, prepared)
    begin(small, guard)
    other = changed(small.plan, train__lr=0.7)
    answer = ask(small, guard, "plan", body=other.text.encode(), training=other.training)
    assert "not approved" in answer.facts["why"]


def test_a_plan_that_the_ledger_cannot_pay_is_not_approved(tmp_path, monkeypatch):
    """The delta of the budget can be short while most of its epsilon is left."""
    budget = (100.0, 1e-3)
    monkeypatch.setattr("tests.federations.BUDGET", budget)
    small = Small(tmp_path, approve="owner")
    guard = small.guards()["silo-0"]
    approve(guard, guard.prepare(small.plan))
    begin(small, guard)
    approve(guard, guard.prepare(small.plan))  # one that has begun is paid
    prepared = guard.prepare(small.new_plan())
    spent = guard.ledger.state().total("example", "shared")
    assert spent[1] == budget[1]
    assert (
        f"Ledger: epsilon {spent[0]:.4g} and delta {spent[1]:g} spent before, of {budget[0]:g}"
        in "\n".join(approval_lines(guard, prepared))
    )
    with pytest.raises(
        Problem, match=r"(?s)the ledger refuses the plan: .* does not fit: ask for a plan that"
    ):
        approve(guard, prepared)
    assert not guard.store.is_approved(prepared.file.hash)


def test_a_refusal_that_repeats_is_logged_once(tmp_path):
    small = Small(tmp_path, approve="owner")
    guard = small.guards()["silo-0"]
    for kind in ("plan", "plan", "plan", "examples", "plan"):
        body = small.plan.text.encode() if kind == "plan" else b""
        message = Envelope(small.plan.training, 0, 1, kind, "coordinator", guard.silo, {}, body)
        guard.answer(seal(message, small.key))
    lines = (guard.folder.path / "log.txt").read_text().splitlines()
    assert [("not approved" in line, "no answer to 'examples'" in line) for line in lines] == [
        (True, False),
        (False, True),
        (True, False),
    ]


def test_a_coordinator_says_whom_it_waits_for_and_why(tmp_path):
    small, told = Small(tmp_path, approve="owner"), []
    guards = small.guards()

    def on_note(line: str) -> None:
        told.append(line)
        for guard in guards.values():
            approve(guard, guard.prepare(small.plan))

    outcome = small.coordinator(guards=guards, on_note=on_note).run()
    assert outcome.missing == ()
    assert len(told) == 3
    for name, line in zip(small.federation.names, told, strict=True):
        assert line.startswith(f"waiting for '{name}': the plan with hash {small.plan.hash} is not approved")


def test_an_old_copy_of_a_ledger_is_noticed_by_the_coordinator(small):
    """The owner's own witness may have been restored with it; the coordinator remembers more."""
    small.guards(streams=None)["silo-0"].close()
    shutil.copytree(small.folder / "silo-0", small.folder / "before")
    coordinator = small.coordinator()
    coordinator.run()
    shutil.rmtree(small.folder / "silo-0")
    shutil.copytree(small.folder / "before", small.folder / "silo-0")
    later = small.new_plan(seconds=0.5, fewest=2)
    resumed = small.coordinator(plan=later, name="later")
    shutil.copytree(coordinator.folder / "witness", resumed.folder / "witness", dirs_exist_ok=True)
    resumed = small.coordinator(plan=later, name="later")
    outcome = resumed.run()
    assert outcome.missing == ("silo-0",)
    assert "old copy" in resumed.refusals["silo-0"]


def test_a_head_that_this_guard_never_signed_does_not_silence_it(small):
    """Only what the silo's own key signed can show that its ledger is old; a liar silences nobody."""
    guard = small.guards()["silo-0"]
    for claim in (7, {"text": "{}", "signature": "x"}, None):
        facts = {} if claim is None else {"witnessed": claim}
        answer = ask(small, guard, "hello", facts=facts)
        assert answer.kind == ("hello" if claim is None else "refused")
    begin(small, guard)


def test_a_guard_answers_without_a_log(small, capsys):
    guard = small.guards()["silo-0"]
    (guard.folder.path / "log.txt").unlink(missing_ok=True)
    (guard.folder.path / "log.txt").mkdir()
    assert unseal(guard.answer(b"nonsense"), guard.key.public, MOST).kind == "refused"
    assert "no message of Coterie" in capsys.readouterr().err
    begin(small, guard)


def test_a_killed_coordinator_resumes_to_the_same_models(tmp_path):
    small = Small(tmp_path)
    made = replace(small.plan.experiment(), federation=small.federation)
    expected, guards = vectors(made)[0], small.guards()

    class Killed(Exception):
        pass

    def kill(done, names):
        if done == 2:
            raise Killed

    with pytest.raises(Killed):
        small.coordinator(guards=guards, on_round=kill).run()
    (small.folder / "coordinator" / "checkpoint").unlink()  # even without it: stored answers are free
    rounds = [reserved(guard) for guard in guards.values()]
    small.coordinator(guards=guards).run()
    assert rounds == [2, 2, 2]
    assert [reserved(guard) for guard in guards.values()] == [3, 3, 3]
    from coterie.experiment.saved_models import load_model

    saved = load_model(guards["silo-1"].folder.path / "results" / small.plan.training / "model.safetensors")
    found = torch.cat([value.reshape(-1) for value in saved.module.state_dict().values()])
    torch.testing.assert_close(found, expected[1], atol=1e-5, rtol=1e-4)


def test_a_coordinator_that_is_killed_late_resumes(tmp_path):
    """The plan is sent again long after it was accepted, and its answer must still be there."""
    small = Small(tmp_path, config_of(train={"rounds": 6, "batch": 8}), digits(3, 60))
    guards = small.guards()

    class Killed(Exception):
        pass

    def kill(done, names):
        if done == 5:
            raise Killed

    with pytest.raises(Killed):
        small.coordinator(guards=guards, on_round=kill).run()
    assert not small.coordinator(guards=guards).run().missing
    assert [reserved(guard) for guard in guards.values()] == [6, 6, 6]


def test_silos_that_leave_are_done_without_if_enough_stay(tmp_path):
    small = Small(tmp_path)
    plan, guards = small.new_plan(fewest=2, seconds=0.5), small.guards()
    gone = {name: guard.answer for name, guard in guards.items() if name != "silo-2"}
    coordinator = small.coordinator(DirectTransport(gone), plan=plan)
    outcome = coordinator.run()
    assert outcome.missing == ("silo-2",)
    assert reserved(guards["silo-2"]) == 0
    with pytest.raises(Problem, match=r"2 of 3 silos accepted the plan, and it needs 3; silo-2: no answer"):
        small.coordinator(DirectTransport(gone), plan=small.new_plan(seconds=0.5), name="all").run()


@pytest.mark.parametrize("change", ["size", "classes", "silo", "key"])
def test_a_plan_for_other_data_is_refused(small, change):
    guard, content = small.guards()["silo-0"], small.plan.content
    silos = [dict(each) for each in content["facts"]["silos"]]
    facts = {**content["facts"], "silos": silos}
    if change == "size":
        silos[0]["train"] += 1
    elif change == "classes":
        facts["classes"] = [f"class {k}" for k in range(10)]
    elif change == "silo":
        silos[0]["name"] = "elsewhere"
    else:
        silos[0]["key"] = draw_key("silo-0").public.facts()
    plan = read_plan({**content, "facts": facts})
    words = {
        "size": "training and",
        "classes": "labels that the plan does not know",
        "silo": "does not name the silo",
        "key": "another key",
    }
    assert words[change] in ask(small, guard, "plan", body=plan.text.encode()).facts["why"]
    assert spent(guard) == 0


def test_an_expired_policy_answers_nothing_new(small):
    from datetime import date

    guard = replace_policy(small.guards()["silo-0"], expires=date(2020, 1, 1))
    answer = ask(small, guard, "plan", body=small.plan.text.encode())
    assert "the policy expired on 2020-01-01" in answer.facts["why"]


def test_a_guard_is_made_in_a_new_folder_only(small):
    silo = small.federation.silos[0]
    with pytest.raises(Problem, match="is not empty"):
        make_guard(
            small.folder / "silo-0", silo, (), "records", small.key.public, BUDGET, policy_text(1.0, 1.0)
        )


def test_plans_of_another_version_or_form_are_refused(small):
    for change, words in [
        ({"software": "0.0.1"}, "made by Coterie 0.0.1"),
        ({"format": "coterie-plan/9"}, "expected the format"),
        ({"fewest": 9}, "at most 3 silos"),
        ({"more": 1}, "unknown key"),
    ]:
        with pytest.raises(Problem, match=words):
            read_plan({**small.plan.content, **change})


def test_what_cannot_be_deployed_is_refused(tmp_path):
    dropping = {"participation": {"poisson": 0.5}, "drop": 0.1}
    with pytest.raises(Problem, match="drawn in secret"):
        Small(tmp_path, config_of(privacy={"unit": "silo"}, train=dropping))
    with pytest.raises(Problem, match="one run"):
        Small(tmp_path / "b", config_of({"name": "mr-mtl", "lam": [0.1, 0.2]}))


def test_a_coordinator_refuses_answers_of_others(small):
    guards = small.guards()
    swapped = {"silo-0": guards["silo-0"].answer, "silo-1": guards["silo-0"].answer}
    plan = small.new_plan(seconds=0.4, fewest=1)
    coordinator: Coordinator = small.coordinator(DirectTransport(swapped), plan=plan)
    coordinator.run()
    assert "not signed with key" in coordinator.refusals["silo-1"]
    assert np.isfinite(spent(guards["silo-0"]))
    assert len(digits(3)) == 3
