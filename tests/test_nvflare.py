"""Bytes travel over NVFlare: three real nodes, a real server, guards that echo."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from coterie.errors import Problem, Refused
from coterie.network.batches import (
    Answer,
    Batch,
    Done,
    Hello,
    receive_answer,
    receive_batch,
    receive_hello,
    send_answer,
    send_batch,
    send_done,
    send_hello,
    send_stop,
)
from coterie.network.frames import Broken, receive, send
from coterie.network.nvflare.executor import GuardExecutor, Limits, ask_within, limits_from
from coterie.network.nvflare.job import ANSWER, MESSAGE, PROBLEM, TASK
from coterie.network.nvflare.node import run_node
from coterie.network.nvflare.server import check_port, run_server
from coterie.network.nvflare.transport import NVFlareTransport

from .nvflare_parties import ROOT, SILOS, Parties, free_port, reply


@pytest.fixture
def parties(tmp_path):
    parties = Parties(tmp_path)
    yield parties
    parties.end()


def test_messages_reach_every_guard_and_answers_come_back(parties):
    parties.start_all()
    with parties.transport(patience=90) as transport:
        for size in (0, 1, 4_000, 4_000_000):
            messages = {silo: os.urandom(size) for silo in SILOS}
            answers = transport.exchange(messages, 60)
            assert answers == {silo: reply(silo, message) for silo, message in messages.items()}, (
                transport.problems
            )
        assert transport.exchange({"south": b"only you"}, 60) == {"south": reply("south", b"only you")}
        assert transport.exchange({}, 60) == {}
        with pytest.raises(Problem, match="no silo is called east"):
            transport.exchange({"east": b""}, 60)
        processes = [psutil.Process(parties.running[name].pid) for name in ("server", *SILOS)]
        processes += [child for process in processes for child in process.children()]
        assert len(processes) == 8
        jobs = [process.children()[0].cmdline() for process in processes[1:4]]
        assert all("coterie.network.nvflare.worker" in command for command in jobs)
        for process in processes:
            assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
    assert [parties.stop(name) for name in (*SILOS, "server")] == [0] * 4
    assert not [process for process in processes if process.is_running()]


def test_what_coordinator_and_controller_say_is_understood():
    left, right = socket.socketpair()
    with left, right:
        send_hello(left, Hello("j", "t", ("a", "b")))
        assert receive_hello(right) == Hello("j", "t", ("a", "b"))
        batch = Batch(3, 1.5, {"a": b"one", "b": b""})
        send_batch(right, batch)
        assert receive_batch(left, 10) == batch
        send_answer(left, Answer(3, "a", b"yes"))
        send_answer(left, Answer(3, "b", None, "it is asleep"))
        send_done(left, Done(3))
        assert receive_answer(right, 10) == Answer(3, "a", b"yes")
        assert receive_answer(right, 10) == Answer(3, "b", None, "it is asleep")
        assert receive_answer(right, 10) == Done(3)
        send_stop(right)
        assert receive_batch(left, 10) is None


@pytest.mark.parametrize(
    "words", [b"x", b"[]", b"{}", b'{"batch": "x"}', b'{"job": 1, "token": 2, "silos": 3}']
)
@pytest.mark.parametrize(
    "read", [receive_hello, lambda c: receive_batch(c, 9), lambda c: receive_answer(c, 9)]
)
def test_nonsense_breaks_a_connection_in_a_sentence(words, read):
    left, right = socket.socketpair()
    with left, right:
        send(left, words)
        with pytest.raises(Broken, match=r"what is no|did not say"):
            read(right)


def test_a_message_beyond_the_limit_is_not_taken():
    left, right = socket.socketpair()
    with left, right:
        send_batch(left, Batch(1, 1, {"a": bytes(11)}))
        with pytest.raises(Broken, match="11 bytes"):
            receive_batch(right, 10)


@pytest.fixture
def guard(tmp_path):
    """A guard in a thread, whose behaviour a test sets: a function from the connection's message to nothing."""
    path = tmp_path / "socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    behaviour = []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                behaviour[0](connection)

    thread = threading.Thread(target=serve)
    thread.start()
    yield str(path), behaviour
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def drip(connection):
    """Promise many bytes and send one per fifth of a second, which no limit per operation notices."""
    receive(connection)
    with contextlib.suppress(OSError):
        connection.sendall((10_000).to_bytes(8, "big"))
        while True:
            time.sleep(0.2)
            connection.sendall(b"x")


def test_the_guards_time_is_limited_as_a_whole(guard):
    path, behaviour = guard
    behaviour.append(drip)
    with pytest.raises(Broken, match=r"within 0\.5 s"):
        ask_within(Limits(path, 0.5), b"", lambda: False)


def test_a_question_ends_with_its_job(guard):
    path, behaviour = guard
    behaviour.append(drip)
    with pytest.raises(Broken, match="closed"):
        ask_within(Limits(path, 600), b"", lambda: True)


def test_sizes_are_limited_both_ways(guard):
    path, behaviour = guard
    behaviour.append(lambda connection: send(connection, receive(connection) * 2))
    limits = Limits(path, 60, 10)
    assert ask_within(limits, b"12345", lambda: False) == b"1234512345"
    with pytest.raises(Broken, match="announced, but the limit is 10"):
        ask_within(limits, b"123456", lambda: False)
    with pytest.raises(Broken, match="the silo's limit is 10"):
        ask_within(limits, b"12345678901", lambda: False)


def test_limits_come_from_the_environment_only():
    limits = Limits("/run/guard", 2.5, 7)
    assert limits_from(limits.environment()) == limits
    with pytest.raises(KeyError):
        limits_from({})
    with pytest.raises(TypeError):
        GuardExecutor(socket="/somewhere/else")


def test_the_executor_says_no_more_than_that_the_guard_is_silent(guard, monkeypatch):
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.apis.signal import Signal

    path, behaviour = guard
    behaviour.append(lambda connection: send(connection, receive(connection)[::-1]))
    executor = GuardExecutor()

    def execute(task, limits, **content):
        for name, value in limits.environment().items():
            monkeypatch.setenv(name, value)
        return executor.execute(task, Shareable(content), FLContext(), Signal())

    answered = execute(TASK, Limits(path), **{MESSAGE: b"abc"})
    assert (answered.get_return_code(), answered[ANSWER]) == (ReturnCode.OK, b"cba")
    silent = execute(TASK, Limits(path + "-nowhere"), **{MESSAGE: b"abc"})
    assert silent.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert silent.get_header(PROBLEM) == "the guard gave no answer"
    for task, content in (("other", {MESSAGE: b""}), (TASK, {}), (TASK, {MESSAGE: "text"})):
        assert execute(task, Limits(path), **content).get_return_code() == ReturnCode.BAD_TASK_DATA


def test_a_job_process_is_sealed():
    code = "from coterie.network.nvflare import worker; worker.seal()\n"
    code += "from nvflare.private.fed.client import fed_client_base as base; assert base.NetAgent is worker.Unmanaged"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_port_that_is_taken_is_named(tmp_path):
    parties = Parties(tmp_path, silos=("north",))
    with socket.socket() as other:
        other.bind(("0.0.0.0", parties.record.port))
        other.listen()
        with pytest.raises(
            Problem, match=rf"cannot listen on port {parties.record.port}: address already in use"
        ):
            run_server(parties.kits["server"], root=True)
    check_port(free_port())


def test_root_is_refused_unless_asked_for(tmp_path, monkeypatch):
    parties = Parties(tmp_path, silos=("north",))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(Refused, match="as root: start it as a user"):
        run_node(parties.kits["north"], tmp_path / "socket")
    with pytest.raises(Refused, match="as root"):
        run_server(parties.kits["server"])


def test_a_faulty_kit_is_refused_with_all_its_faults(tmp_path):
    parties = Parties(tmp_path, silos=("north",))
    kit = parties.kits["north"]
    (kit / "startup" / "client.key").chmod(0o640)
    (kit / "local" / "comm_config.json").unlink()
    with pytest.raises(Refused, match=r"'other'.*no such file.*chmod 600") as refusal:
        run_node(kit, tmp_path / "socket", federation="other", root=True)
    assert "\n" not in str(refusal.value)
    with pytest.raises(Refused, match="kit of a silo, not of a server"):
        run_server(kit, root=True)
    with pytest.raises(Problem, match="kit of a server, not of a coordinator"):
        NVFlareTransport(parties.kits["server"])
    with pytest.raises(Problem, match="knows no silo east: make a new kit"):
        NVFlareTransport(parties.kits["coordinator"], ["north", "east"])


def test_another_version_of_nvflare_is_refused(tmp_path, monkeypatch):
    parties = Parties(tmp_path, silos=("north",))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.10.0")
    with pytest.raises(Refused, match=r"NVFlare 2.10.0 is installed, but only 2.9.0 was examined"):
        run_node(parties.kits["north"], tmp_path / "socket", root=True)


@pytest.mark.parametrize("options", [{"seconds": 0}, {"most": 0}, {"most": 2**31}])
def test_senseless_limits_are_refused(tmp_path, options):
    with pytest.raises(Problem, match="seconds must be positive and most between"):
        run_node(tmp_path, tmp_path, **options)


def test_no_module_imports_torch_and_a_kit_is_checked_without_nvflare():
    folder = ROOT / "coterie" / "network" / "nvflare"
    modules = [
        f"coterie.network.nvflare.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"
    ]
    code = "import sys; import coterie.network.nvflare.kit; assert 'nvflare' not in sys.modules\n"
    code += "".join(f"import {module}\n" for module in modules) + "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    assert not re.search(r"^\s*(import|from) torch", text, re.M)
