"""Noise of merges from the system's entropy: whose it is, and that it is given once."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from coterie.cohort.merging import SERVER, PrivateMerger
from coterie.errors import Problem
from coterie.guard.secret_streams import RENEWED, EntropyStreams
from coterie.protocol.merging import MergeRule
from coterie.protocol.roster import Roster


def test_rounds_outside_of_a_reservation_are_not_answered():
    streams = EntropyStreams({"a": b"x" * 32})
    streams.begin("a", "row", 2, 4)
    for outside in (1, 4):
        with pytest.raises(Problem, match="was not reserved"):
            streams.dice(0, "a", outside, 0)
        with pytest.raises(Problem, match="was not reserved"):
            streams.merging(0, "a", outside)
        with pytest.raises(Problem, match="was not reserved"):
            streams.merging(0, "", outside)
    streams.dice(0, "a", 3, 0)
    with pytest.raises(Problem, match="was drawn before"):
        streams.dice(0, "a", 2, 0)  # earlier than what was answered


def streams_of(monkeypatch, salts, rows=("r", "r", "r"), secrets=(1, 2, 3)):
    """Streams of three silos whose salts and secrets are known, for once."""
    given = iter(salts)
    monkeypatch.setattr(os, "urandom", lambda n: bytes([next(given)]) * n)
    streams = EntropyStreams({name: bytes([one]) * 32 for name, one in zip("abc", secrets, strict=True)})
    for name, row in zip("abc", rows, strict=True):
        streams.begin(name, row)
    return streams


def drawn(streams, name, run=0, number=0):
    return float(streams.merging(run, name, number).noisy(np.zeros(()), 1.0))


def test_the_noise_of_a_merge_is_keyed_by_every_silo_that_reserved_it(monkeypatch):
    base = drawn(streams_of(monkeypatch, (1, 2, 3)), SERVER)
    assert drawn(streams_of(monkeypatch, (1, 2, 3)), SERVER) == base
    others = [
        streams_of(monkeypatch, (1, 2, 4)),
        streams_of(monkeypatch, (1, 2, 3), rows=("r", "other", "r")),
        streams_of(monkeypatch, (1, 2, 3), secrets=(9, 2, 3)),
    ]
    ended = streams_of(monkeypatch, (1, 2, 3))
    ended.end("b")
    found = [base, *(drawn(streams, SERVER) for streams in (*others, ended))]
    assert len(set(found)) == 5


def test_the_noise_of_a_silo_is_keyed_by_its_own_secret_alone(monkeypatch):
    base = drawn(streams_of(monkeypatch, (1, 2, 3)), "a")
    assert drawn(streams_of(monkeypatch, (1, 7, 8), ("r", "x", "y"), (1, 7, 8)), "a") == base
    for salts, rows, secrets in (
        ((9, 2, 3), ("r", "r", "r"), (1, 2, 3)),
        ((1, 2, 3), ("x", "r", "r"), (1, 2, 3)),
        ((1, 2, 3), ("r", "r", "r"), (9, 2, 3)),
    ):
        assert drawn(streams_of(monkeypatch, salts, rows, secrets), "a") != base


def door(streams, run=0, number=0, call=0):
    return tuple(streams.dice(run, "a", number, call).random(3))


def test_coins_and_noise_of_a_door_are_keyed_by_secret_row_salt_and_run(monkeypatch):
    found = [
        door(streams, run)
        for run in (0, 1)
        for streams in (
            streams_of(monkeypatch, (1, 2, 3)),
            streams_of(monkeypatch, (4, 2, 3)),
            streams_of(monkeypatch, (1, 2, 3), rows=("other", "r", "r")),
            streams_of(monkeypatch, (1, 2, 3), secrets=(9, 2, 3)),
        )
    ]
    assert len(set(found)) == 8
    same = streams_of(monkeypatch, (1, 7, 8), ("r", "x", "y"), (1, 7, 8))
    assert door(same) == found[0]  # by its own alone


def test_calls_of_a_door_go_on_where_the_last_one_ended_and_begin_anew_after_some_rounds(monkeypatch):
    streams = streams_of(monkeypatch, (1, 2, 3))
    calls = [(number, call) for number in range(2 * RENEWED) for call in range(2)]
    drawn_in_turn = [door(streams, 0, *call) for call in calls]
    assert len({value for values in drawn_in_turn for value in values}) == 3 * len(calls)
    whole = sum(drawn_in_turn, ())
    again = tuple(streams_of(monkeypatch, (1, 2, 3)).dice(0, "a", 0, 0).random(len(whole)))
    half = len(whole) // 2
    assert whole[:half] == again[:half]
    assert not set(whole[half:]) & set(again)


def test_the_same_call_is_not_answered_again():
    streams = EntropyStreams({"a": b"x" * 32})
    streams.begin("a", "row")
    streams.dice(0, "a", 1, 0)
    with pytest.raises(Problem, match="was drawn before"):
        streams.dice(0, "a", 1, 0)
    streams.dice(0, "a", 1, 1)
    streams.dice(1, "a", 1, 0)


@pytest.mark.parametrize("name", [SERVER, "a"])
def test_a_merge_is_answered_once_for_a_reservation(name):
    streams = EntropyStreams({"a": b"x" * 32, "b": b"y" * 32})
    with pytest.raises(Problem, match="the merge of round 0 was not reserved"):
        streams.merging(0, name, 0)
    found = []
    for _ in range(2):
        streams.begin("a", "same row")
        found += [drawn(streams, name, run, number) for run in (0, 1) for number in (0, 1)]
        with pytest.raises(Problem, match="the noise of the merge of round 1 was drawn before"):
            streams.merging(1, name, 1)
        streams.begin("b", "another row")
    assert len(set(found)) == 8
    if name == "a":  # another silo's reservation does not open it again
        with pytest.raises(Problem, match="was drawn before"):
            streams.merging(1, name, 1)
    streams.end("a")
    streams.end("b")
    with pytest.raises(Problem, match="was not reserved"):
        streams.merging(5, name, 5)


def test_a_merge_that_nobody_reserved_is_not_answered():
    streams = EntropyStreams({"a": b"x" * 32, "b": b"y" * 32})
    streams.begin("a", "row")
    with pytest.raises(Problem, match="was not reserved"):
        streams.merging(0, "b", 0)


def test_equal_rows_of_a_matrix_are_one_release():
    streams = EntropyStreams({"a": b"x" * 32, "b": b"y" * 32})
    streams.begin("a", "row")
    roster = Roster(("a", "b"), torch.ones(2), torch.ones(1, 2))
    uploads = torch.zeros(1, 2, 5)
    one = PrivateMerger.of(roster, MergeRule(torch.ones(1), torch.ones(1), 2.0), streams, uploads)
    rows = one.mix(uploads, torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]))[0]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_a_reservation_of_others_does_not_open_a_merge_again():
    """A silo that begins and is not concerned with a round changes nothing of its noise."""
    streams = EntropyStreams({"a": b"x" * 32, "b": b"y" * 32})
    streams.begin("a", "row", 0, 10)
    streams.begin("b", "row", 6, 10)
    streams.merging(0, SERVER, 5)
    streams.begin("b", "another", 6, 10)
    with pytest.raises(Problem, match="was drawn before"):
        streams.merging(0, SERVER, 5)
