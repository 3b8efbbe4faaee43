"""Secure sums: what the server recovers, who may drop out when, and what a silo answers twice."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.errors import Problem
from coterie.privacy.distributed import least_threshold
from coterie.secure_sum import (
    Missing,
    offer_keys,
    publish_keys,
    recover_sum,
)
from coterie.secure_sum.agreement import own_mask, pair_mask, peer_of, secrets_of
from coterie.secure_sum.masks import BLOCK, add_masks
from coterie.secure_sum.silo import signature_and_words
from coterie.secure_sum.wire import pack, unpack
from tests.measured import CHANCE
from tests.secure_rounds import STAGES, Round, some_cells, terms_for


def plain_sum(cells, names):
    """The sum in Python's whole numbers, which never wrap around."""
    rows = [cells[name].tolist() for name in names]
    return [sum(column) for column in zip(*rows, strict=True)]


@st.composite
def rounds(draw):
    """Members, assumptions, and who drops out before which stage."""
    count = draw(st.integers(3, 9))
    colluding = draw(st.integers(0, count - 1))
    dropouts = draw(st.integers(0, count - least_threshold(count, colluding)))
    stages = draw(st.lists(st.sampled_from([*range(STAGES), *[STAGES] * 8]), min_size=count, max_size=count))
    gone = tuple(tuple(k for k in range(count) if stages[k] == stage) for stage in range(STAGES))
    return terms_for(count, dropouts=dropouts, colluding=colluding), gone


@settings(max_examples=60, deadline=None)
@given(rounds(), st.integers(0, 99))
def test_the_sum_is_exact_whoever_drops_out_when(case, seed):
    terms, gone = case
    made = Round(terms, some_cells(terms, seed), gone)
    left = len(terms.members) - np.cumsum([len(names) for names in gone])
    enough = (left[:3] >= terms.least).all() and (left[3:] >= terms.threshold).all()
    if not enough:
        with pytest.raises(Missing, match="nothing can be unmasked"):
            made.until("confirmations").total()
        return
    found = made.until("confirmations").total()
    uploaded = [f"silo-{k}" for k in range(len(terms.members)) if all(k not in names for names in gone[:3])]
    assert found.tolist() == plain_sum(made.cells, uploaded)
    lost = {f"silo-{k}" for names in gone[:4] for k in names}
    assert set(made.server.left_out) == lost


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("deviation", [0.5, 3e-9])
def test_the_longest_uploads_do_not_wrap(sign, deviation):
    terms = terms_for(7, deviation=deviation)
    assert terms.reach > 2**21
    made = Round(terms, {member.name: np.full(6, sign * terms.reach) for member in terms.members})
    assert made.until("confirmations").total().tolist() == [7 * sign * terms.reach] * 6


def test_many_silos_and_several_blocks():
    terms = terms_for(20, size=BLOCK + 3, dropouts=5, colluding=3)
    made = Round(terms, gone=((), (), (3, 19), (7,), ()))
    found = made.until("confirmations").total()
    assert found.tolist() == plain_sum(made.cells, sorted(set(made.silos) - {"silo-3", "silo-19"}))


def test_messages_about_as_many_silos_as_there_may_be():
    terms = terms_for(255, dropouts=0)
    places = tuple(range(255))
    message = pack(terms, "survivors", None, places, bytes(255 * 64))
    assert unpack(terms, "survivors", None, message).silos == places


def test_who_is_missing_is_said():
    terms = terms_for(5, dropouts=2)
    made = Round(terms, gone=((4,), (), (0, 1), (), ())).until("shares")
    with pytest.raises(
        Missing, match="only 2 of 5 silos are left after 'upload', but 3 are needed"
    ) as problem:
        made.uploads()
    assert problem.value.silos == {
        "silo-4": "no answer to 'keys'",
        "silo-0": "no answer to 'upload'",
        "silo-1": "no answer to 'upload'",
    }


def test_a_server_goes_on_without_a_silo_that_sends_nonsense():
    made = Round(terms_for(5, dropouts=2))
    answers = {name: made.ask(offer_keys, name) for name in made.silos}
    answers["silo-1"] = b"nonsense"
    answers["silo-2"] = answers["silo-2"][:-1] + bytes([answers["silo-2"][-1] ^ 1])
    server, _ = publish_keys(made.server, answers)
    assert server.present == ("silo-0", "silo-3", "silo-4")
    assert "not a message" in server.left_out["silo-1"]
    assert "not signed by 'silo-2'" in server.left_out["silo-2"]


def test_wrong_shares_and_uploads_out_of_range_are_noticed():
    made = Round(terms_for(5)).until("confirmations")
    made.total()
    answers = dict(made.answers["unmask"])
    answers["silo-0"] = answers["silo-0"][:-1] + bytes([answers["silo-0"][-1] ^ 1])
    with pytest.raises(Problem, match="the shares of 'silo-4' do not fit its keys"):
        recover_sum(made.server, answers)
    far = made.server.total.copy()
    far[2:3] += np.uint64(2**62)
    with pytest.raises(Problem, match="out of range"):
        recover_sum(replace(made.server, total=far), made.answers["unmask"])
    with pytest.raises(Problem, match="no uploads yet"):
        recover_sum(replace(made.server, total=None), made.answers["unmask"])


def masked_words(terms, cells):
    """What the server sees of one silo's upload."""
    made = Round(terms, cells).until("uploads")
    row = unpack(terms, "upload", 0, made.answers["upload"]["silo-0"]).rows[0]
    return signature_and_words(row)[1], made


def test_masked_uploads_look_random():
    terms = terms_for(4, size=40_000)
    zeros = {member.name: np.zeros(terms.size, dtype=np.int64) for member in terms.members}
    words, made = masked_words(terms, zeros)
    for shift in (0, 20, 56):
        octets = (words >> np.uint64(shift)).astype(np.uint8)
        assert stats.chisquare(np.bincount(octets, minlength=256)).pvalue > CHANCE
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > CHANCE
    following = np.corrcoef(words[1:].astype(float), words[:-1].astype(float))[0, 1]
    assert abs(following) * math.sqrt(terms.size) < 5.5
    uploads = [
        signature_and_words(unpack(terms, "upload", k, made.answers["upload"][f"silo-{k}"]).rows[0])[1]
        for k in range(4)
    ]
    for one, other in itertools.combinations(uploads, 2):  # each pair alone: the masks do not cancel
        for total in (one + other, one - other):
            assert stats.kstest(total / 2.0**64, "uniform").pvalue > CHANCE


def test_rounds_share_no_mask():
    terms = terms_for(3, size=100, dropouts=0)
    zeros = {member.name: np.zeros(terms.size, dtype=np.int64) for member in terms.members}
    first, second = masked_words(terms, zeros)[0], masked_words(replace(terms, round=1), zeros)[0]
    assert not (first == second).any()


def test_every_mask_has_a_key_of_its_own():
    """Pairs agree on one key; no other pair, silo, round or secret has the same."""
    keys = set()
    for round_ in (0, 1):
        terms = terms_for(4, round=round_)
        for filler in (1, 2):
            secrets = [secrets_of(terms, k, bytes([filler]) * 32) for k in range(4)]
            peers = [peer_of(terms, k, one) for k, one in enumerate(secrets)]
            keys |= {own_mask(terms, k, one.own) for k, one in enumerate(secrets)}
            for low, high in itertools.combinations(range(4), 2):
                key = pair_mask(terms, secrets[low].masking, low, peers[high])
                assert key == pair_mask(terms, secrets[high].masking, high, peers[low])
                keys.add(key)
    assert len(keys) == 2 * 2 * (4 + 6)


def test_masks_cancel_modulo_two_to_the_64():
    words = np.arange(BLOCK + 5, dtype=np.uint64)
    keys = [bytes([k]) * 32 for k in range(4)]
    add_masks(words, keys[:2], keys[2:])
    assert (words > 2**60).mean() > 0.5
    add_masks(words, keys[2:], keys[:2])
    assert (words == np.arange(BLOCK + 5)).all()
