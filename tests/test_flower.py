"""Flower carries messages: a real federation of processes, and both ends against what can go wrong."""

from __future__ import annotations

import json
import socket
import threading
import tomllib
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import coterie
from coterie.deploy.by_flower import connection_text, free_ports
from coterie.deploy.federate import federate
from coterie.errors import Problem
from coterie.experiment.config.schema import check
from coterie.network.batches import Answer, Batch, Done, receive_answer
from coterie.network.flower import carrier
from coterie.network.flower.app import run_settings, write_app
from coterie.network.flower.carrier import (
    ANSWER,
    MESSAGE,
    PROBLEM,
    RECORD,
    SILO,
    Post,
    carry,
    reply_of,
    serve,
)
from coterie.network.flower.transport import FlowerTransport
from coterie.network.frames import receive, send
from coterie.network.serve import listening


@pytest.fixture
def guard(tmp_path):
    """A socket that answers each message with the same bytes reversed."""
    server = listening(tmp_path / "guard.sock")

    def answer():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                send(connection, receive(connection)[::-1])

    threading.Thread(target=answer, daemon=True).start()
    yield tmp_path / "guard.sock"
    server.close()


# The end at a node


def test_a_node_hands_messages_to_its_own_guard(guard):
    assert reply_of({"silo": "north", "guard": str(guard)}, b"abc") == {SILO: "north", ANSWER: b"cba"}
    assert reply_of({"silo": "north"}, b"") == {SILO: "north"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "its node was not told where the guard listens: guard='PATH'"),
        ({"guard": "/nowhere/guard.sock"}, "no such file"),
        ({"guard": "/nowhere/guard.sock", "most": 2}, "the message has 3 bytes, but the silo's limit is 2"),
    ],
)
def test_a_node_says_why_there_is_no_answer(settings, said):
    reply = reply_of({"silo": "north", **settings}, b"abc")
    assert ANSWER not in reply
    assert said in reply[PROBLEM].lower() or said in reply[PROBLEM]


def message(content, node=7):
    return Message(
        RecordDict({RECORD: ConfigRecord({MESSAGE: content})}), dst_node_id=node, message_type="query"
    )


def test_where_a_guard_is_comes_from_the_node_and_not_from_the_run(guard):
    context = Context(1, 7, {"silo": "north", "guard": str(guard)}, RecordDict(), {"guard": "/elsewhere"})
    asked = message(b"abc")
    asked.metadata._message_id = "1"
    assert carry(asked, context).content[RECORD][ANSWER] == b"cba"


# The end at the server


class Grid:
    """Flower's grid with nodes in this process; `lose` and `fail` count messages to nodes that go wrong."""

    def __init__(self, silos, lose=0, fail=0):
        self.silos, self.lose, self.fail = dict(silos), lose, fail
        self.replies, self.pushed = {}, []

    def get_node_ids(self):
        return list(self.silos)

    def push_messages(self, messages):
        for each in messages:
            number, content = str(len(self.pushed)), each.content[RECORD][MESSAGE]
            node = each.metadata.dst_node_id
            self.pushed.append((node, content))
            if content and self.lose:
                self.lose -= 1
            elif content and self.fail:
                self.fail -= 1
                self.replies[number] = self._reply(number, None)
            else:
                said = {SILO: self.silos[node]} | ({ANSWER: content[::-1]} if content else {})
                self.replies[number] = self._reply(number, said)
            yield number

    def pull_messages(self, numbers):
        return [self.replies.pop(number) for number in numbers if number in self.replies]

    @staticmethod
    def _reply(number, said):
        return SimpleNamespace(
            metadata=SimpleNamespace(reply_to_message_id=number),
            has_error=lambda: said is None,
            error=SimpleNamespace(reason="it was killed"),
            content={RECORD: said},
        )


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(autouse=True)
def inside_a_run(monkeypatch):
    """Flower makes messages only inside a run."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(carrier, "time", Clock())


def carried(post, messages, seconds=600.0):
    """Serve one batch; give the answers and the problems."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        serve(post, theirs, Batch(3, seconds, messages))
        answers, problems = {}, {}
        while not isinstance(said := receive_answer(ours, 100), Done):
            assert isinstance(said, Answer)
            assert said.number == 3
            (answers if said.content is not None else problems)[said.silo] = said.content or said.problem
        return answers, problems


def test_each_silo_gets_its_own_message():
    grid = Grid({5: "north", 6: "south"})
    post = Post(grid)
    both = {"north": b"ab", "south": b"xy"}
    assert carried(post, both) == ({"north": b"ba", "south": b"yx"}, {})
    assert carried(post, {"south": b"cd"}) == ({"south": b"dc"}, {})
    assert sorted(grid.pushed) == [(5, b""), (5, b"ab"), (6, b""), (6, b"cd"), (6, b"xy")]


@pytest.mark.parametrize("faults", [{"lose": 2}, {"fail": 2}, {"lose": 1, "fail": 1}])
def test_a_message_that_a_node_lost_is_sent_again(faults):
    assert carried(Post(Grid({5: "north"}, **faults)), {"north": b"ab"}) == ({"north": b"ba"}, {})


def test_who_is_not_there_is_named_with_a_reason():
    answers, problems = carried(Post(Grid({5: "north"})), {"north": b"ab", "south": b"x"}, seconds=60.0)
    assert answers == {"north": b"ba"}
    assert problems == {"south": "no node of it connected, or it gave no answer"}
    _, problems = carried(Post(Grid({5: "north"}, fail=10**6)), {"north": b"ab"}, seconds=60.0)
    assert problems == {"north": "its node failed: it was killed"}


def test_an_answer_to_an_earlier_batch_is_not_taken_for_this_one():
    grid = Grid({5: "north"}, lose=1)
    post = Post(grid)
    assert carried(post, {"north": b"ab"}, seconds=10.0)[0] == {}
    lost = next(iter(post.sent))
    grid.replies[lost] = grid._reply(lost, {SILO: "north", ANSWER: b"ba"})
    assert carried(post, {"north": b"cd"}) == ({"north": b"dc"}, {})


# The application and the transport


def test_the_application_holds_no_code_but_names(tmp_path):
    folder = write_app(tmp_path / "app")
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "coterie_carrier:server",
        "clientapp": "coterie_carrier:client",
    }
    told = tomllib.loads(
        run_settings(tmp_path / "a b", "t", 7).replace(" token", "\ntoken").replace(" most", "\nmost")
    )
    assert told == {"socket": str(tmp_path / "a b"), "token": "t", "most": 7}
    assert set(told) == set(project["tool"]["flwr"]["app"]["config"])
    assert tomllib.loads(connection_text(5))["superlink"]["coterie"]["address"] == "127.0.0.1:5"


def test_a_server_that_is_not_there_gets_one_sentence(tmp_path):
    (port,) = free_ports(1)
    (tmp_path / "config.toml").write_text(connection_text(port))
    transport = FlowerTransport("coterie", ("north",), home=tmp_path)
    with pytest.raises(Problem, match="Flower started no run through the connection 'coterie'"):
        transport.exchange({"north": b"ab"}, 5.0)
    with pytest.raises(Problem, match="no silo is called west"):
        transport.exchange({"west": b"ab"}, 5.0)
    transport.close()


@pytest.mark.deploy
def test_a_federation_over_flower_trains(tmp_path):
    tables = {
        "data": {"source": "digits", "silos": 3},
        "train": {"rounds": 2},
        "privacy": {"epsilon": 2.0, "delta": 1e-3},
        "method": [{"name": "fedavg"}],
    }
    (training,) = federate(check(tables), tmp_path / "out", engine="flower")
    assert training.outcome.missing == ()
    assert training.outcome.rounds == 2
    for k in range(3):
        home = tmp_path / "out" / "guards" / f"silo-{k}"
        (statement,) = home.glob("results/*/statement.json")
        assert coterie.verify(statement).content["guarantee"]["epsilon"] <= 2.0
        assert json.loads(statement.read_text())["silo"] == f"silo-{k}"
