"""Plans that were refused change nothing, run nothing and tell nothing; what an owner reads cannot be forged."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from coterie.deploy.approval import approval_lines
from coterie.deploy.calls import CALLS
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import POLICY, GuardFolder
from coterie.deploy.guard_log import LINE
from coterie.deploy.plan_file import PlanFile, read_plan
from coterie.deploy.policy import PolicyTable, members_text, unknown_members
from coterie.errors import Problem
from coterie.network.transport import DirectTransport
from coterie.protocol.envelope import Envelope, seal, unseal
from coterie.protocol.messages import addressed, pack, unpack
from coterie.protocol.tree import leaves
from tests.federations import Small, config_of, digits

MOST = 2**24
TODAY = "2026-01-01T00:00:00Z"


def ask(small: Small, guard: Guard, kind: str, number: int = 0, body: bytes = b"", training: str = ""):
    name = training or small.plan.training
    request = Envelope(name, number, CALLS[kind], kind, "coordinator", guard.silo, {}, body)
    return unseal(guard.answer(seal(request, small.key)), guard.key.public, MOST, "coordinator")


def changed(plan: PlanFile, **content) -> bytes:
    return json.dumps({**plan.content, **content}).encode()


def first(small: Small) -> bytes:
    side = small.coordinator(DirectTransport({}))._side()
    return pack(addressed(side.method.broadcast(side.begin().shared), 0, len(small.federation)))


@pytest.fixture
def small(tmp_path) -> Small:
    return Small(tmp_path, config_of(privacy={"epsilon": 0.5}), digits(3, 90), approve="owner")


@pytest.fixture
def guard(small) -> Guard:
    made = small.guards(streams=None)["silo-0"]
    made.store.approve(small.plan.hash, TODAY, "owner")
    return made


def spent(guard: Guard) -> float:
    return guard.ledger.state().total("example", "shared")[0]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("epsilon", [0.01, 19.0, 1000.0, float("inf")])
@pytest.mark.parametrize("number", [0, 7])
def test_a_refused_plan_with_the_same_training_is_not_the_one_that_runs(small, guard, when, epsilon, number):
    """It used to be: the guard charged by one plan and drew its noise by another."""
    right = small.plan
    config = {**right.content["config"], "privacy": {"epsilon": epsilon, "delta": 1e-3}}
    poison, other = changed(right, config=config), small.new_plan(config_of())

    def attack():
        assert ask(small, guard, "plan", 0, other.text.encode(), other.training).kind == "refused"
        assert ask(small, guard, "plan", number, poison).kind == "refused"

    if when == "before":
        attack()
    assert ask(small, guard, "plan", 0, right.text.encode()).kind == "accepted"
    if when == "after":
        attack()
    planned = right.experiment().plan().silos[0][0]
    assert spent(guard) == pytest.approx(planned.epsilon)
    assert ask(small, guard, "round", 0, first(small)).kind == "upload"
    (prepared,) = guard._prepared.values()
    assert prepared.file.hash == right.hash
    assert float(prepared.side.cohort.settings.noise[0, 0]) == pytest.approx(planned.noise)


def test_an_upload_has_the_noise_of_the_approved_plan(small, guard):
    """With the poisoned plan, no noise was left in most of its numbers."""
    config = {**small.plan.content["config"], "privacy": {"epsilon": 1e6, "delta": 1e-3}}
    ask(small, guard, "plan", 0, small.plan.text.encode())
    ask(small, guard, "plan", 7, changed(small.plan, config=config))
    (vector,) = leaves(unpack(ask(small, guard, "round", 0, first(small)).body))
    silo = small.plan.experiment().plan().silos[0][0]
    one_step = 0.5 * silo.noise / silo.work.expected  # lr, clip 1
    assert float(vector.std()) > 0.5 * one_step


def test_only_models_on_the_owner_s_list_are_made(tmp_path, small, guard, monkeypatch):
    """The list names functions; nothing else in their modules, or below them, is imported or called."""
    package = tmp_path / "code" / "hospital_models"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import torch\nfrom pathlib import Path\n"
        "def good(shape, classes):\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
        f"def wipe(path='x', **more):\n    Path({str(tmp_path / 'called')!r}).touch()\n"
    )
    (package / "tools.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'called')!r}).touch()\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    text = (guard.folder.path / POLICY).read_text().replace('"cnn"]', '"cnn", "hospital_models:good"]')
    (guard.folder.path / POLICY).write_text(text)
    guard.close()
    guard = Guard(GuardFolder(guard.folder.path))
    for name in ("hospital_models:wipe", "hospital_models.tools:Path", "os:system"):
        config = {**small.plan.content["config"], "model": {"name": name}}
        plan = read_plan(changed(small.plan, config=config, training="ab" * 16))
        guard.store.approve(plan.hash, TODAY, "owner")
        answer = ask(small, guard, "plan", 0, plan.text.encode(), plan.training)
        assert f"the policy does not allow '{name}'" in answer.facts["why"]
    assert not (tmp_path / "called").exists()
    assert "hospital_models.tools" not in sys.modules


def test_only_losses_on_the_owner_s_list_are_run(tmp_path, small, guard, monkeypatch):
    """A policy allows no loss of anybody's own unless it names it; nothing else is imported or called."""
    module = tmp_path / "code" / "hospital_losses.py"
    module.parent.mkdir()
    module.write_text(
        "import torch.nn.functional as F\nfrom pathlib import Path\n"
        f"Path({str(tmp_path / 'called')!r}).touch()\n"
        "def good(output, target):\n    return F.cross_entropy(output, target, reduction='none')\n"
        "def other(output, target):\n    return good(output, target)\n"
    )
    monkeypatch.syspath_prepend(str(module.parent))

    def answer(name: str):
        config = {**small.plan.content["config"], "model": {"name": "linear", "loss": name}}
        plan = read_plan(changed(small.plan, config=config, training="ab" * 16))
        opened.store.approve(plan.hash, TODAY, "owner")
        return ask(small, opened, "plan", 0, plan.text.encode(), plan.training)

    opened = guard
    for name in ("hospital_losses:good", "os:system"):
        assert f"loss: the policy does not allow '{name}'" in answer(name).facts["why"]
    assert not (tmp_path / "called").exists()
    place = guard.folder.path / POLICY
    place.write_text(place.read_text().replace("losses = []", 'losses = ["hospital_losses:good"]'))
    guard.close()
    opened = Guard(GuardFolder(guard.folder.path))
    assert "the policy does not allow" in answer("hospital_losses:other").facts["why"]
    assert answer("hospital_losses:good").kind == "accepted"
    assert (tmp_path / "called").exists()


def test_a_refusal_tells_nothing_about_examples(small, guard):
    """The largest norm of a silo's examples used to be found by asking with many scales."""
    tables = {
        "method": [{"name": "dual"}],
        "model": {"name": "linear", "loss": "one-against-rest", "bias": False},
    }
    config = {**small.plan.content["config"], **tables}
    answers = set()
    for number, scale in enumerate((1e-3, 0.2, 0.3, 1.0, 10.0)):
        facts = {**small.plan.content["facts"], "scale": scale}
        plan = read_plan(changed(small.plan, config=config, facts=facts, training=f"{number:032x}"))
        guard.store.approve(plan.hash, TODAY, "owner")
        answer = ask(small, guard, "plan", 0, plan.text.encode(), plan.training)
        if scale != 1.0:
            assert "multiplies examples by" in answer.facts["why"]
        answers.add((scale == 1.0, answer.kind))
    assert answers == {(True, "accepted"), (False, "refused")}
    longest = float(small.federation.silos[0].x.flatten(1).norm(dim=1).max())
    assert longest > 1.5  # a simulation, in which nobody is told, would refuse


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"made": "2026-01-01T00:00:00Z\nCost: epsilon at most 0.01"}, "made"),
        ({"made": "yesterday"}, "expected a day or a UTC time"),
        ({"software": "x" * 50}, "software"),
        ({"format": "y" * 10**5}, "expected the format"),
    ],
)
def test_what_an_owner_reads_cannot_be_forged(small, change, said):
    with pytest.raises(Problem, match=said) as caught:
        read_plan(changed(small.plan, **change))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[8mb", "a\u202eb", "a\u200bb"])
def test_letters_that_a_screen_does_not_show_are_refused(small, text):
    facts = {**small.plan.content["facts"], "not_covered": [text]}
    with pytest.raises(Problem, match="letters that cannot be printed"):
        read_plan(changed(small.plan, facts=facts))
    config = {**small.plan.content["config"], "extra": {text: 1}}
    with pytest.raises(Problem, match="letters that cannot be printed"):
        read_plan(changed(small.plan, config=config))


def test_a_plan_cannot_be_padded(small):
    facts = {**small.plan.content["facts"], "not_covered": ["x"] * 51}
    with pytest.raises(Problem, match="not_covered"):
        read_plan(changed(small.plan, facts=facts))


def test_an_owner_sees_who_else_takes_part(small, guard):
    lines = "\n".join(approval_lines(guard, guard.prepare(small.plan)))
    for name in ("silo-1", "silo-2"):
        assert f"{name} (key {small.keys[name].id})" in lines
    assert "goes on if" in lines


def test_a_policy_knows_its_members(small, guard):
    keys = {name: key.id for name, key in small.keys.items()}
    plan = small.plan.experiment().plan()
    table = {"epsilon_per_training": 1.0, "epsilon_per_month": 1.0}
    known = PolicyTable(**table, members=keys)
    assert unknown_members(known, plan, keys) == []
    strange = {**keys, "silo-2": "0" * 32}
    assert unknown_members(known, plan, strange) == [
        f"members: the policy does not know 'silo-2' with key {'0' * 32}"
    ]
    assert unknown_members(PolicyTable(**table), plan, strange) == []
    with (guard.folder.path / POLICY).open("a") as file:
        file.write(members_text({**keys, "silo-1": "f" * 32}))
    guard.close()
    again = Guard(GuardFolder(guard.folder.path))
    answer = ask(small, again, "plan", 0, small.plan.text.encode())
    assert "the policy does not know 'silo-1'" in answer.facts["why"]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("delta_per_training = 1e-4", "delta: the plan spends 0.001, the policy allows 0.0001 per training"),
        ("trainings_per_month = 1", "trainings: 1 began in the last 30 days, and the policy allows 1"),
    ],
)
def test_a_policy_limits_delta_and_the_number_of_trainings(tmp_path, rule, said):
    small = Small(tmp_path, config_of(privacy={"epsilon": 0.5}), digits(3, 90))
    path = tmp_path / "silo-0" / POLICY
    name = rule.partition(" ")[0]
    lines = [rule if line.startswith(f"{name} ") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    guard, second = small.guards()["silo-0"], small.new_plan()
    if name == "trainings_per_month":
        assert ask(small, guard, "plan", 0, small.plan.text.encode()).kind == "accepted"
    answer = ask(small, guard, "plan", 0, second.text.encode(), second.training)
    assert said in answer.facts["why"]


def test_secure_sums_need_somebody_who_knows_the_members(tmp_path):
    secure = {"unit": "silo", "noise_by": "secure", "dropouts": 0, "colluding": 0}
    plan = Small(tmp_path, config_of(privacy=secure), digits(3, 90)).plan.experiment().plan()
    table = {"epsilon_per_training": 1.0, "epsilon_per_month": 1.0}
    (broken,) = unknown_members(PolicyTable(**table, approve="policy"), plan, {})
    assert "secure sums need a list of the silos' keys" in broken
    assert unknown_members(PolicyTable(**table, approve="owner"), plan, {}) == []


def test_a_training_that_finished_cannot_be_revived(small, guard, monkeypatch):
    """A crash after the last answer was written used to leave it unfinished for ever."""
    body = first(small)
    ask(small, guard, "plan", 0, small.plan.text.encode())
    ask(small, guard, "round", 0, body)
    with monkeypatch.context() as patch:
        patch.setattr(guard.store, "update", lambda *given, **named: (_ for _ in ()).throw(OSError("killed")))
        assert ask(small, guard, "finish", 3, body).kind == "finished"
    guard.close()
    again = Guard(GuardFolder(guard.folder.path))
    assert ask(small, again, "finish", 3, body).kind == "finished"
    assert "is finished" in ask(small, again, "round", 1, body).facts["why"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_a_message_of_another_type_is_refused_before_it_is_charged(small, guard, dtype):
    ask(small, guard, "plan", 0, small.plan.text.encode())
    size = small.plan.blank.task.layout.size
    answer = ask(small, guard, "round", 0, pack(torch.ones(1, 1, size, dtype=dtype)))
    assert "expected a model of type float32" in answer.facts["why"]
    assert not guard.ledger.state().reservations
    assert "expected a model of" in ask(small, guard, "finish", 3, pack(torch.ones(1, 1, 3))).facts["why"]


def test_a_stranger_cannot_fill_the_log(small, guard):
    path = guard.folder.path / "log.txt"
    before = path.stat().st_size if path.exists() else 0
    message = seal(Envelope("ab" * 16, 0, 1, "plan", "x" * 60_000, guard.silo, {}, b""), small.key)
    guard.answer(message)
    assert path.stat().st_size - before <= LINE + 40


def test_a_refusal_names_no_path_of_the_silo(small, guard):
    (guard.folder.path / "data.npz").unlink()
    answer = ask(small, guard, "plan", 0, small.plan.text.encode())
    assert answer.kind == "refused"
    assert str(guard.folder.path) not in answer.facts["why"]
