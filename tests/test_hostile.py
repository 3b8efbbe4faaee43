"""Hostile messages in the middle of a training: each is refused with one line in the log, and the training goes on."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace

import pytest
import torch

from coterie.deploy.calls import CALLS
from coterie.deploy.guard import Guard
from coterie.deploy.plan_file import read_plan
from coterie.experiment.saved_models import load_model
from coterie.network.frames import LENGTH, ask
from coterie.network.serve import listening, serve
from coterie.network.transport import DirectTransport
from coterie.privacy.keys import draw_key
from coterie.protocol.envelope import Envelope, seal, unseal
from coterie.protocol.messages import pack, unpack
from tests.federations import Small, config_of, digits, seeded
from tests.helpers import vectors

MOST = 2**24


def resealed(small: Small, message: bytes, **changes) -> bytes:
    """The coordinator's message, changed and signed again: its key may be in the wrong hands."""
    return seal(replace(unseal(message, small.key.public, MOST), **changes), small.key)


def vector_in(small: Small, message: bytes) -> torch.Tensor:
    return unpack(unseal(message, small.key.public, MOST).body)


def other_vector(small, message):
    return resealed(small, message, body=pack(vector_in(small, message) + 1)), "answered for another request"


def not_finite(small, message):
    vector = torch.full_like(vector_in(small, message), torch.inf)
    return resealed(small, message, round=2, body=pack(vector)), "not finite"


def misshapen(small, message):
    return resealed(small, message, round=2, body=pack(torch.ones(1, 1, 3))), "expected a model of"


def truncated(small, message):
    return message[:-7], "does not have the size"


def unsigned(small, message):
    return seal(unseal(message, small.key.public, MOST), draw_key("coordinator")), "not signed with key"


def for_another(small, message):
    return resealed(small, message, to="silo-1"), "for 'silo-1', not for 'silo-0'"


def another_plan(small, message):
    content = small.plan.content
    changed = {**content["config"], "train": {**content["config"]["train"], "lr": 0.7}}
    body = read_plan({**content, "config": changed}).text.encode()
    words = "answered for another request"
    return resealed(small, message, kind="plan", round=0, call=CALLS["plan"], body=body), words


def invented(small, message):
    plan = read_plan({**small.plan.content, "training": "ab" * 16})
    given = {"training": plan.training, "kind": "plan", "round": 0, "call": CALLS["plan"]}
    return resealed(small, message, **given, body=plan.text.encode()), "is not approved at 'silo-0'"


def beyond_the_plan(small, message):
    return resealed(small, message, round=7), "not among the rounds"


def unknown_door(small, message):
    return resealed(small, message, kind="examples"), "no answer to 'examples'"


ATTACKS = [
    other_vector, truncated, unsigned, for_another, another_plan, invented, beyond_the_plan, unknown_door, misshapen,
    not_finite,
]  # fmt: skip


class Hostile(DirectTransport):
    """A network that delivers each message, and after the second round's also a hostile one."""

    def __init__(self, small: Small, guards: dict[str, Guard], attack) -> None:
        super().__init__({name: guard.answer for name, guard in guards.items()})
        self.small, self.attack, self.said, self.words = small, attack, None, ""

    def exchange(self, messages, seconds):
        answers = super().exchange(messages, seconds)
        request = unseal(messages["silo-0"], self.small.key.public, MOST) if "silo-0" in messages else None
        if request is not None and (request.kind, request.round) == ("round", 1):
            message, self.words = self.attack(self.small, messages["silo-0"])
            self.said = unseal(self.silos["silo-0"](message), self.small.plan.keys["silo-0"], MOST)
            again = self.silos["silo-0"](messages["silo-0"])
            assert again == answers["silo-0"]  # a replayed message gets the same bytes
        return answers


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_in_the_middle_of_a_training_changes_nothing(tmp_path, attack):
    config = config_of({"name": "mr-mtl", "lam": 0.3}, train={"rounds": 3, "batch": 8})
    small = Small(tmp_path, config, digits(3, 90), approve="owner")
    guards = small.guards()
    for guard in guards.values():
        guard.store.approve(small.plan.hash, "2026-01-01T00:00:00Z", "owner")
    transport = Hostile(small, guards, attack)
    assert not small.coordinator(transport).run().missing
    assert transport.said.kind == "refused"
    assert not transport.said.body
    log = (small.folder / "silo-0" / "log.txt").read_text().splitlines()
    refusals = [line for line in log if "refused" in line or "failed" in line]
    assert len(refusals) == 1
    assert transport.words in refusals[0]
    made = replace(small.plan.experiment(), federation=small.federation)
    whole = vectors(made)[0]
    for k, (name, guard) in enumerate(guards.items()):
        saved = load_model(small.folder / name / "results" / small.plan.training / "model.safetensors")
        found = torch.cat([value.reshape(-1) for value in saved.module.state_dict().values()])
        torch.testing.assert_close(found, whole[k], atol=1e-5, rtol=1e-4)
        state = guard.ledger.state()
        assert state.total("example", "shared")[0] == pytest.approx(made.plan().silos[0][k].epsilon, rel=1e-9)
        assert len(state.runs) == 1
        guard.close()


def test_two_gigabytes_are_refused_before_they_are_read(tmp_path):
    """Also a message cut off, and one from a user who may not ask; the next one is answered."""
    path, log, over = tmp_path / "guard.sock", [], threading.Event()
    server = listening(path)
    given = (server, lambda message: message[::-1], frozenset({os.getuid()}), 2**20, log.append, over.is_set)
    thread = threading.Thread(target=serve, args=given)
    thread.start()
    try:
        for start, words in (
            (LENGTH.pack(2**31), "2,147,483,648 bytes was announced"),
            (LENGTH.pack(9) + b"x", "closed in"),
        ):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                connection.sendall(start)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(1) == b""
            assert ask(path, b"abc", 10) == b"cba"
            assert len(log) == 1
            assert words in log.pop()
    finally:
        over.set()
        thread.join()
        server.close()


def test_a_request_of_another_kind_with_the_same_place_is_refused(tmp_path):
    """A hello that claims to be a round is neither."""
    small = Small(tmp_path, config_of(), digits(3, 90))
    guard = Guard(small.guards(seeded)["silo-0"].folder)
    request = Envelope(small.plan.training, 0, CALLS["round"], "hello", "coordinator", "silo-0", {}, b"")
    answer = unseal(guard.answer(seal(request, small.key)), guard.key.public, MOST)
    assert answer.kind == "refused"
    assert "no answer to 'hello', call 2" in answer.facts["why"]
    guard.close()
