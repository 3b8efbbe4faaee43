"""A guard's memory: answers and states are written whole, in place, and all or nothing."""

from __future__ import annotations

import sqlite3

import pytest

from coterie.deploy.store import KEPT, Store, Training
from coterie.errors import Problem
from tests.helpers import refused

NAME = "t" * 32


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "guard.sqlite")
    made.begin(Training(NAME, "hash", "plan", 1.0, "now", None, 0, "begun"))
    yield made
    made.close()


def answer(store: Store, number: int, body: bytes, state: bytes | None = None, call: int = 2) -> None:
    store.answer(NAME, number, call, "asked", "digest", body, state, None if state is None else number + 1)


@pytest.mark.parametrize("sizes", [(5, 5, 5), (5, 300_000, 0), (300_000, 5, 300_000)])
def test_answers_and_states_of_any_size_are_there_again(store, sizes):
    for number, size in enumerate(sizes):
        body, state = bytes([number + 1]) * (size + 1), bytes([number + 7]) * size
        answer(store, number, body, state)
        assert store.answered(NAME, number, 2) == ("asked", "digest", body)
        assert store.state(NAME) == state
        assert store.training(NAME).round == number + 1


def test_an_answer_that_cannot_be_written_leaves_the_state_as_it_was(store):
    answer(store, 0, b"first", b"old")
    with pytest.raises(Problem, match=r"cannot be written: UNIQUE constraint failed"):
        answer(store, 0, b"second", b"new")
    assert store.state(NAME) == b"old"
    assert store.answered(NAME, 0, 2)[2] == b"first"
    assert store.training(NAME).round == 1


def test_trainings_keep_their_states_apart_and_answers_without_one_change_none(store):
    store.begin(Training("other", "hash", "plan", 1.0, "now", None, 0, "begun"))
    answer(store, 0, b"first", b"old")
    answer(store, 1, b"hello")
    assert store.state("other") is None
    assert store.state(NAME) == b"old"


def test_old_answers_are_kept_by_their_digest_only(store):
    for number in range(KEPT + 1):
        answer(store, number, b"body", b"state")
    assert store.answered(NAME, 0, 2) == ("asked", "digest", None)
    assert store.answered(NAME, 1, 2) == ("asked", "digest", b"body")


def test_the_memory_of_an_older_version_is_not_taken_up(tmp_path):
    path = tmp_path / "guard.sqlite"
    with sqlite3.connect(path) as old:
        old.execute("create table trainings (training text primary key, state blob)")
    old.close()
    with refused("was written by an older version: finish its trainings with that version"):
        Store(path)
