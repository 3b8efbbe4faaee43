"""What a guard refuses in a secure sum: other terms, other messages, second answers, broken parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.deploy import masking
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import GuardFolder
from coterie.deploy.masking import SUM_CALLS
from coterie.deploy.secure_rounds import first_point, load_point, next_point, save_point
from coterie.deploy.sum_terms import sum_terms
from coterie.errors import Problem
from coterie.noise.keystream import WORD
from coterie.secure_sum import Member, from_cells, recover_sum
from coterie.secure_sum.silo import signature_and_words
from coterie.secure_sum.wire import unpack
from tests.federations import Small
from tests.masked_federations import Wire, ask, copied, first_tree, five, guards_of, reserved
from tests.secure_rounds import message_of, parts_of, without

STEPS = list(SUM_CALLS)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return five(tmp_path_factory.mktemp("first"))


@pytest.fixture
def small(first, tmp_path) -> Small:
    return copied(first, tmp_path)


class Lying:
    """A coordinator that goes through a sum step by step, and sends what a test tells it to."""

    def __init__(self, small: Small, streams=None, number: int = 0):
        self.small, self.number, self.guards = small, number, guards_of(small, streams)
        for guard in self.guards.values():
            assert ask(small, guard, "plan", body=small.plan.text.encode()).kind == "accepted"
        self.terms = sum_terms(small.plan, small.plan.experiment().plan(), number)
        self.point = first_point(self.terms)

    def request(self, name, message=None):
        """The body and the facts of the next request to a silo."""
        message = self.point.messages[name] if message is None else message
        if self.point.step == "keys":
            return message, {"terms": self.terms.digest}
        if self.point.step == "upload":
            return message + first_tree(self.small), {"boxes": len(message)}
        return message, {}

    def ask(self, name, message=None):
        body, facts = self.request(name, message)
        return ask(self.small, self.guards[name], self.point.step, self.number, body, **facts)

    def step(self):
        """Take a step as it should be; return the answers."""
        answers = {name: self.ask(name) for name in self.point.messages}
        bodies = {name: answer.body for name, answer in answers.items()}
        self.answers = bodies
        if self.point.step != STEPS[-1]:
            self.point = next_point(self.point, bodies)
        return answers

    def until(self, step):
        while self.point.step != step:
            assert {answer.kind for answer in self.step().values()} == {
                STEPS[STEPS.index(self.point.step) - 1]
            }
        return self

    def refused(self, name, message, words):
        answer = self.ask(name, message)
        assert (answer.kind, answer.body) == ("refused", b"")
        assert words in answer.facts["why"]


def test_a_whole_sum_step_by_step_charges_the_upload_alone(small):
    lying = Lying(small)
    guards = lying.guards.values()
    for step in STEPS:
        lying.until(step)
        assert [reserved(guard) for guard in guards] == [int(step in STEPS[3:])] * 5
    lying.step()
    total = from_cells(recover_sum(lying.point.server, lying.answers), lying.terms)
    assert np.isfinite(total).all()
    assert [reserved(guard) for guard in guards] == [1] * 5


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_answered_once_and_the_same_again(small, step):
    """Also by a guard that starts again from its disk; any other request gets nothing."""
    lying = Lying(small).until(step)
    name = "silo-1"
    first = lying.ask(name)
    assert first.kind == step
    lying.guards[name].close()
    lying.guards[name] = Guard(GuardFolder(small.folder / name))
    assert lying.ask(name) == first
    body, facts = lying.request(name)
    other = ask(small, lying.guards[name], step, 0, body + b"\0", **facts)
    assert other.kind == "refused"
    assert "answered for another request" in other.facts["why"]
    assert reserved(lying.guards[name]) == int(step in STEPS[2:])


SECOND = {
    "shares": "answered 'shares' before, to another message",
    "upload": "round 0 is not among the rounds 1 to 2",
    "confirmation": "answered 'confirmation' before, to another message",
    "unmask": "round 0 is closed",
}


@pytest.mark.parametrize("step", STEPS[1:])
def test_the_state_of_a_sum_refuses_a_second_answer_on_its_own(small, step):
    """Even a store that forgot its answers does not make a guard answer a step in two ways."""
    lying = Lying(small).until(step)
    body, facts = lying.request("silo-1")
    guard = lying.guards["silo-1"]
    assert ask(small, guard, step, 0, body, **facts).kind == step
    guard.store.connection.execute("delete from answers where call = ?", (SUM_CALLS[step],))
    if step == "confirmation":
        body = without(lying.terms, "survivors", None, lying.point.messages["silo-1"], {4})
    again = ask(small, guard, step, 0, body if step != "shares" else body + b"\0", **facts)
    assert again.kind == "refused"
    assert SECOND[step] in again.facts["why"]


def test_two_sets_of_survivors_are_not_confirmed(small):
    """A silo that confirmed one set never confirms another, and reveals nothing for another."""
    lying = Lying(small).until("confirmation")
    fewer = without(lying.terms, "survivors", None, lying.point.messages["silo-0"], {4})
    assert lying.ask("silo-0", fewer).kind == "confirmation"
    lying.refused("silo-0", lying.point.messages["silo-0"], "answered for another request")
    kept = lying.point
    answers = {name: lying.ask(name).body for name in ("silo-1", "silo-2", "silo-3", "silo-4")}
    lying.point = next_point(kept, answers)  # four confirmed the whole set; silo-0 confirmed the smaller one
    lying.refused("silo-0", lying.point.messages["silo-0"], "did not confirm the same silos")
    assert lying.ask("silo-1").kind == "unmask"


def test_a_silo_reveals_one_secret_of_each_member(small):
    """One row of 32 bytes for each: of the silo's own mask, or of its mask key, never of both."""
    lying = Lying(small).until("unmask")
    body = lying.ask("silo-0").body
    rows = unpack(lying.terms, "unmask", 0, body).rows
    assert rows.shape == (5, 32)
    assert lying.ask("silo-0").body == body
    assert b'seed":""' in lying.guards["silo-0"].store.sum_state(small.plan.training, 0)


CHANGES = {
    "threshold": lambda terms: replace(terms, colluding=0),
    "dropouts": lambda terms: replace(terms, dropouts=0),
    "members": lambda terms: replace(terms, members=terms.members[:-1], dropouts=0),
    "keys": lambda terms: replace(terms, members=(Member("silo-0", "ab" * 32), *terms.members[1:])),
    "round": lambda terms: replace(terms, round=1),
    "clip": lambda terms: replace(terms, clip=2 * terms.clip),
    "noise": lambda terms: replace(terms, deviation=terms.deviation / 2),
    "training": lambda terms: replace(terms, training="ab" * 32),
}


@pytest.mark.parametrize("what", CHANGES)
def test_other_terms_are_refused_at_every_step(small, what):
    """Those of the plan stand: in the request, and in the header of every message."""
    lying = Lying(small)
    changed = CHANGES[what](lying.terms)
    answer = ask(small, lying.guards["silo-0"], "keys", 0, b"", terms=changed.digest)
    assert "terms of the secure sum are not those of the plan" in answer.facts["why"]
    for step in STEPS[1:]:
        lying.until(step)
        header, rows = parts_of(lying.point.messages["silo-0"])
        message = message_of({**header, "terms": changed.digest}, rows)
        lying.refused("silo-0", message, "another training, another round or other terms")
        assert reserved(lying.guards["silo-0"]) == int(step in STEPS[3:])


def test_steps_out_of_order_or_of_another_kind_are_refused(small):
    lying = Lying(small)
    guard = lying.guards["silo-0"]
    for step in STEPS[1:]:
        answer = ask(small, guard, step, 0, b"", boxes=0)
        assert "not asked for the keys" in answer.facts["why"]
    assert "uploads are masked" in ask(small, guard, "round", 0, first_tree(small)).facts["why"]
    lying.until("shares")
    answer = ask(small, guard, "upload", 0, b"", boxes=0)
    assert "not due" in answer.facts["why"]
    assert "first part" in ask(small, guard, "upload", 0, b"", boxes=9).facts["why"]
    assert "not among the rounds" in ask(small, guard, "keys", 3, terms="").facts["why"]
    lying.until("confirmation")
    assert "answered for another request" in ask(small, guard, "shares", 0, b"x").facts["why"]
    assert reserved(guard) == 1


def test_a_later_round_closes_the_sum_before_it(small):
    """Its secrets are gone then, and nothing about it is answered."""
    lying = Lying(small).until("confirmation")
    later = sum_terms(small.plan, small.plan.experiment().plan(), 1)
    guard = lying.guards["silo-0"]
    assert ask(small, guard, "keys", 1, b"", terms=later.digest).kind == "keys"
    assert guard.store.sum_state(small.plan.training, 0) == b""
    lying.refused("silo-0", lying.point.messages["silo-0"], "closed")


def test_a_crash_before_the_upload_was_written_is_not_charged_twice(small, monkeypatch):
    lying = Lying(small).until("upload")
    guard = lying.guards["silo-0"]
    with monkeypatch.context() as patch:
        patch.setattr(guard.store, "answer", lambda *a: (_ for _ in ()).throw(OSError("killed")))
        assert lying.ask("silo-0").kind == "failed"
    assert reserved(guard) == 1
    guard.close()
    lying.guards["silo-0"] = Guard(GuardFolder(small.folder / "silo-0"))
    assert lying.ask("silo-0").kind == "upload"
    assert reserved(lying.guards["silo-0"]) == 1


def words_of(lying, name):
    body = lying.ask(name).body
    row = unpack(lying.terms, "upload", lying.terms.index(name), body).rows[0]
    return signature_and_words(row)[1].astype(WORD)


def test_masks_that_are_left_out_are_noticed(small, monkeypatch):
    """The tests of what a coordinator receives can fail: without masks, they do."""
    lying = Lying(small).until("upload")
    monkeypatch.setattr("coterie.secure_sum.silo.add_masks", lambda words, plus, minus: None)
    bare = words_of(lying, "silo-0").view(np.int64)
    assert np.abs(bare).max() <= lying.terms.reach
    monkeypatch.undo()
    masked = words_of(lying, "silo-1").view(np.int64)
    assert masked.max() > 2**60 > lying.terms.reach


def test_noise_that_is_left_out_is_noticed(small, monkeypatch):
    """An upload that is not on the grid of the noise is not sent."""

    class Silent:
        def noisy(self, sums, deviation, exponent=None):
            return sums

    lying = Lying(small).until("upload")
    real = masking.contribution
    silent = lambda upload, terms, dice, clip: real(upload, terms, Silent(), clip)  # noqa: E731
    monkeypatch.setattr(masking, "contribution", silent)
    lying.refused("silo-0", lying.point.messages["silo-0"], "not on the grid, so it has no noise")


def test_the_journal_of_a_sum_resumes_to_the_same_messages(small, tmp_path):
    lying = Lying(small)
    path = tmp_path / "sum"
    assert load_point(path, lying.terms) is None
    for step in STEPS[1:]:
        lying.until(step)
        save_point(path, lying.point)
        point = load_point(path, lying.terms)
        assert (point.step, dict(point.messages)) == (step, dict(lying.point.messages))
        assert point.server.present == lying.point.server.present
        assert load_point(path, replace(lying.terms, round=7)) is None
        lying.point = point
    lying.step()
    recover_sum(lying.point.server, lying.answers)
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)
    with pytest.raises(Problem, match="damaged"):
        load_point(path, lying.terms)


def test_a_coordinator_that_is_killed_between_any_two_steps_resumes(small):
    """What it asks after a crash is what it asked before, though more silos would answer now."""

    class Killed(BaseException):
        pass

    guards = guards_of(small, None)
    for step in STEPS:
        asked = []

        def lost(name, kind, number, step=step, asked=asked):
            asked.append(kind)
            if kind == step and asked.count(step) > 3:
                raise Killed
            return name == "silo-4" and kind == "keys" and number == 0

        with pytest.raises(Killed):
            small.coordinator(Wire(guards, lost)).run()
    outcome = small.coordinator(Wire(guards)).run()
    assert not outcome.missing
    assert [reserved(guard) for guard in guards.values()] == [3, 3, 3, 3, 2]
