"""A node's question for a task waits for a message, but never longer than it may, and only a few wait."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.private.defs import TaskConstant

from coterie.network.nvflare.waiting import SOON, Waiting


def in_thread(action):
    """Start an action; return its thread and the list that its result will be in."""
    results = []
    thread = threading.Thread(target=lambda: results.append(action()), daemon=True)
    thread.start()
    return thread, results


def wait_until_held(waiting, count):
    while waiting._held < count:
        time.sleep(0.001)


def test_a_question_waits_for_its_own_silos_message():
    waiting = Waiting(seconds=60)
    thread, results = in_thread(lambda: waiting.hold("north"))
    wait_until_held(waiting, 1)
    waiting.announce("south")
    assert waiting._held == 1
    assert not results
    waiting.announce("north")
    thread.join(30)
    assert results == [True]
    assert waiting.hold("south")  # announced before it was asked for: it does not wait


def test_a_message_is_announced_to_one_question_only():
    waiting = Waiting(seconds=0.01)
    waiting.announce("north")
    assert waiting.hold("north")
    assert waiting._due == set()
    assert waiting.hold("north")  # nothing to fetch, but time was up


def test_questions_beyond_the_most_do_not_wait_unless_their_message_is_there():
    waiting = Waiting(seconds=60, most=1)
    thread, _ = in_thread(lambda: waiting.hold("north"))
    wait_until_held(waiting, 1)
    assert not waiting.hold("south")
    waiting.announce("south")
    assert waiting.hold("south")
    waiting.close()
    thread.join(30)
    assert not thread.is_alive()


def test_nothing_waits_after_the_end():
    waiting = Waiting(seconds=60)
    waiting.close()
    assert waiting.hold("north")


def test_only_a_node_that_was_held_asks_again_soon():
    def ask(client, fl_ctx):
        data = Shareable()
        data.set_header(TaskConstant.WAIT_TIME, 0.1)
        return "task", client.name, data

    for most, expected in ((1, SOON), (0, 0.1)):
        held = Waiting(seconds=0.001, most=most).holding(ask)
        name, number, data = held(SimpleNamespace(name="north"), FLContext())
        assert (name, number) == ("task", "north")
        assert data.get_header(TaskConstant.WAIT_TIME) == expected


def test_the_end_of_a_job_is_passed_on_as_it_is():
    held = Waiting(seconds=0.001).holding(lambda client, fl_ctx: ("__end_run__", "", None))
    assert held(SimpleNamespace(name="north"), FLContext()) == ("__end_run__", "", None)


def test_an_nvflare_without_questions_is_noticed():
    with pytest.raises(RuntimeError, match="its job answers no questions"):
        Waiting().attach(FLContext())
