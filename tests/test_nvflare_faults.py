"""Jobs, nodes, servers and guards die, and exchanges go on. Real processes; run by `make test-deploy`."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from coterie.errors import Problem
from coterie.network.nvflare.transport import AGAIN

from .nvflare_parties import SILOS, Parties, python_for, reply, wait_for

pytestmark = pytest.mark.deploy


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    parties = Parties(tmp_path_factory.mktemp("faults"))
    yield parties
    parties.end()


@pytest.fixture
def parties(started):
    """A federation that runs, whatever the test before has done to it."""
    started.start_all()
    return started


def all_answer(transport, message=b"hello", seconds=60.0):
    answers = transport.exchange(dict.fromkeys(SILOS, message), seconds)
    assert answers == {silo: reply(silo, message) for silo in SILOS}, transport.problems


def later(seconds, action):
    thread = threading.Timer(seconds, action)
    thread.start()
    return thread


def test_a_killed_client_job_is_replaced_and_what_was_not_answered_is_sent_again(parties):
    with parties.transport() as transport:
        all_answer(transport)
        killer = later(1, lambda: psutil.Process(parties.job_of("south")).kill())
        all_answer(transport, b"wait 3")
        killer.join()
        assert transport.problems == {}


def test_a_killed_server_job_is_replaced(parties):
    with parties.transport() as transport:
        all_answer(transport)
        psutil.Process(parties.job_of("server")).kill()
        all_answer(transport, b"again")


def test_a_killed_server_may_come_back(parties):
    with parties.transport() as transport:
        all_answer(transport)

        def restart():
            parties.kill("server")
            time.sleep(3)
            parties.start_server()

        killer = later(1, restart)
        all_answer(transport, b"wait 4")
        killer.join()


def test_a_node_that_was_killed_is_taken_in_again(parties):
    with parties.transport() as transport:
        all_answer(transport)
        job = psutil.Process(parties.job_of("west"))
        parties.kill("west")
        wait_for(lambda: not job.is_running(), 30, "the end of the node's job")
        answers = transport.exchange(dict.fromkeys(SILOS, b"without you"), 5)
        assert set(answers) == {"north", "south"}
        began = time.monotonic()
        answers = transport.exchange(dict.fromkeys(SILOS, b"still without you"), 600)
        assert set(answers) == {"north", "south"}
        assert transport.problems == {"west": "its node does not reply"}
        assert time.monotonic() - began < 300  # nobody waits for a node that is known to be gone
        before = parties.said("west").count("Successfully registered")
        parties.start_node("west")
        wait_for(lambda: parties.said("west").count("Successfully registered") > before, 60, "registration")
        wait_for(lambda: time.monotonic() > transport._looked + AGAIN, 15, "the next look for nodes")
        all_answer(transport, b"welcome back", 20)


def test_a_node_that_was_started_again_during_an_exchange_is_waited_for_no_longer_than_needed(parties):
    """It is connected but not part of the job, so the job is replaced; nobody waits the whole time of a round."""
    with parties.transport() as transport:
        all_answer(transport)

        def restart():
            parties.kill("south")
            parties.start_node("south")

        killer = later(1, restart)
        began = time.monotonic()
        all_answer(transport, b"wait 4", 600)
        assert time.monotonic() - began < 300
        killer.join()


def test_a_silent_guard_costs_its_silo_one_answer(parties):
    with parties.transport() as transport:
        all_answer(transport)
        parties.kill("guard-north")
        answers = transport.exchange(dict.fromkeys(SILOS, b"anyone?"), 60)
        assert set(answers) == {"south", "west"}
        assert transport.problems == {"north": "the guard gave no answer"}
        parties.start_guard("north")
        wait_for(parties.socket_of("north").exists, 10, "the guard's socket")
        all_answer(transport, b"all again")


def test_a_late_answer_is_dropped_and_the_next_round_is_not_disturbed(parties):
    with parties.transport() as transport:
        all_answer(transport)
        messages = {"north": b"wait 6", "south": b"quick", "west": b"quick"}
        answers = transport.exchange(messages, 3)
        assert set(answers) == {"south", "west"}
        assert transport.problems == {"north": "no answer within 3 s"}
        all_answer(transport, b"next")


def test_a_job_ends_when_its_coordinator_is_gone(parties):
    with parties.transport() as transport:
        all_answer(transport)
        job = psutil.Process(parties.job_of("server"))
    wait_for(lambda: not job.is_running(), 40, "the end of the job")


def test_forty_megabytes_go_both_ways(parties):
    with parties.transport() as transport:
        messages = {silo: os.urandom(40_000_000) for silo in SILOS}
        answers = transport.exchange(messages, 120)
        assert all(answers[silo] == reply(silo, message) for silo, message in messages.items())


def test_a_silo_that_never_connects_is_named_and_others_may_go_on_without_it(parties):
    with parties.transport() as transport:
        all_answer(transport)
    assert parties.stop("south") == 0
    with (
        parties.transport(patience=8) as transport,
        pytest.raises(
            Problem, match=r"^no node of south connected within 8 s: start it there, or check its kit$"
        ),
    ):
        transport.exchange(dict.fromkeys(SILOS, b"hello"), 10)
    with parties.transport(patience=30, least=2) as transport:
        answers = transport.exchange(dict.fromkeys(SILOS, b"hello"), 20)
        assert set(answers) == {"north", "west"}
        assert transport.problems == {"south": "it is not part of this job"}
        before = parties.said("south").count("Successfully registered")
        parties.start_node("south")
        wait_for(lambda: parties.said("south").count("Successfully registered") > before, 60, "registration")
        all_answer(transport, b"three again", 20)


def test_a_server_that_is_not_there_is_named(tmp_path):
    parties = Parties(tmp_path, silos=("north",))
    with (
        parties.transport(patience=4) as transport,
        pytest.raises(
            Problem,
            match=rf"within 4 s: nothing listens at localhost:{parties.record.port}: is `coterie server`",
        ),
    ):
        transport.exchange({"north": b""}, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
def test_a_node_runs_as_a_user_of_its_own():
    """The user can read nothing but the kit and connect to the guard's socket; other users' files stay closed."""
    nobody = 65534
    python = python_for(nobody)
    if python is None:
        pytest.skip("no other user can run this interpreter")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        parties = Parties(folder, silos=("north",))
        (folder / "kits").chmod(0o711)
        for path in (parties.kits["north"], *parties.kits["north"].rglob("*")):
            os.chown(path, nobody, nobody)
        try:
            parties.start_server()
            parties.start_guard("north")
            wait_for(parties.socket_of("north").exists, 30, "the guard's socket")
            parties.socket_of("north").chmod(0o666)
            parties.start_node("north", user=nobody, python=python, root=False)
            with parties.transport(patience=60) as transport:
                assert transport.exchange({"north": b"hello"}, 30) == {"north": reply("north", b"hello")}
                for process in (parties.running["north"].pid, parties.job_of("north")):
                    assert set(psutil.Process(process).uids()) == {nobody}
            modes = {path.name: path.stat().st_mode & 0o077 for path in parties.kits["north"].glob("*.txt")}
            assert modes == {"log.txt": 0}
            assert parties.stop("north") == 0
        finally:
            parties.end()


def test_a_node_waits_for_its_server(tmp_path):
    parties = Parties(tmp_path, silos=("north",))
    try:
        parties.start_guard("north")
        parties.start_node("north")
        time.sleep(75)  # longer than any of NVFlare's own limits for a registration
        assert parties.running["north"].poll() is None
        parties.start_server()
        with parties.transport(patience=60) as transport:
            assert transport.exchange({"north": b"at last"}, 30) == {"north": reply("north", b"at last")}
    finally:
        parties.end()
