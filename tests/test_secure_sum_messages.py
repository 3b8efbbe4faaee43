"""Forged, swapped, replayed and broken messages of a secure sum are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import Problem, Refused
from coterie.secure_sum import (
    State,
    begin,
    confirm,
    mask_upload,
    offer_keys,
    reveal_shares,
    share_secrets,
)
from coterie.secure_sum.silo import _sign
from coterie.secure_sum.wire import LONGEST_HEADER, START, pack, unpack, width_of
from tests.secure_rounds import Round, message_of, parts_of, swapped, terms_for

# Forged keys


def test_keys_that_the_server_made_are_refused():
    """The server puts its own keys in the place of a silo's, to read the shares that are meant for it."""
    terms = terms_for(5)
    made, evil = Round(terms).until("keys"), Round(terms).until("keys")
    rows = unpack(terms, "keys", None, made.messages["keys"]).rows.copy()
    rows[3, :96] = unpack(terms, "keys", None, evil.messages["keys"]).rows[3, :96]
    with pytest.raises(Refused, match="the keys are not signed by 'silo-3'"):
        made.ask(share_secrets, "silo-0", pack(terms, "keys", None, tuple(range(5)), rows.tobytes()))
    for k in (1, 4):
        with pytest.raises(Refused, match="the keys are not signed by"):
            made.ask(share_secrets, "silo-0", swapped(terms, "keys", None, made.messages["keys"], k, 2))


def test_keys_of_strangers_are_refused():
    terms = terms_for(5)
    made, other = Round(terms).until("keys"), Round(terms_for(6)).silos["silo-5"]
    row = offer_keys(other, begin(other))[1][-160:]
    rows = unpack(terms, "keys", None, made.messages["keys"]).rows.tobytes()[: 4 * 160] + row
    with pytest.raises(Refused, match="the keys are not signed by 'silo-4'"):
        made.ask(share_secrets, "silo-0", pack(terms, "keys", None, tuple(range(5)), rows))


def test_own_keys_must_be_those_that_were_sent():
    """A list with keys that the silo signed in another attempt of the same round."""
    terms = terms_for(5)
    made, again = Round(terms).until("keys"), Round(terms).until("keys")
    with pytest.raises(Refused, match="the keys of 'silo-0' in the list are not those it sent"):
        made.ask(share_secrets, "silo-0", again.messages["keys"])


def test_unusable_public_keys_are_refused():
    """The neutral element as a public key: everybody would know the secret that is agreed on."""
    terms = terms_for(4)
    made = Round(terms).until("keys")
    rows = unpack(terms, "keys", None, made.messages["keys"]).rows.copy()
    rows[2, :32] = 0
    facts = [2, *(rows[2, k : k + 32].tobytes().hex() for k in (0, 32, 64))]
    rows[2, 96:] = np.frombuffer(_sign(made.silos["silo-2"], "keys", facts), dtype=np.uint8)
    with pytest.raises(Refused, match="a public key of 'silo-2' is not usable"):
        made.ask(share_secrets, "silo-0", pack(terms, "keys", None, (0, 1, 2, 3), rows.tobytes()))


# Shares and replayed messages


def test_swapped_shares_are_refused():
    terms = terms_for(5)
    made = Round(terms).until("shares")
    boxes = made.messages["boxes"]
    with pytest.raises(Refused, match="the box from 'silo-1' was not closed by it"):
        made.ask(
            mask_upload, "silo-0", swapped(terms, "boxes", 0, boxes["silo-0"], 1, 2), made.cells["silo-0"]
        )
    others = unpack(terms, "boxes", 4, boxes["silo-4"])
    for_another = pack(terms, "boxes", 0, (1, 2, 3), others.rows[1:].tobytes())
    with pytest.raises(Refused, match="the box from 'silo-1' was not closed by it, or not for 'silo-0'"):
        made.ask(mask_upload, "silo-0", for_another, made.cells["silo-0"])
    sent = unpack(terms, "shares", 0, made.answers["shares"]["silo-0"]).rows
    mirrored = pack(terms, "boxes", 0, (1, 2, 3, 4), sent.tobytes())  # the two share a secret, not a box
    with pytest.raises(Refused, match="the box from 'silo-1' was not closed by it"):
        made.ask(mask_upload, "silo-0", mirrored, made.cells["silo-0"])
    state = State.from_bytes(made.stored["silo-0"])
    fewer = replace(state, peers=tuple(peer for peer in state.peers if peer.place != 3))
    with pytest.raises(Refused, match="a box came from 'silo-3', whose keys were not listed"):
        mask_upload(made.silos["silo-0"], fewer, boxes["silo-0"], made.cells["silo-0"])


@pytest.mark.parametrize("other", [{"round": 1}, {"training": "another"}, {"size": 7}, {"deviation": 0.4}])
def test_messages_of_another_round_or_training_are_refused(other):
    """As they are, and with a header that says they belong here."""
    here, there = Round(terms_for(4)), Round(terms_for(4, **other))
    there.until("confirmations").total()
    calls = {
        "keys": (share_secrets, lambda: there.messages["keys"]),
        "boxes": (mask_upload, lambda: there.messages["boxes"]["silo-1"], here.cells["silo-1"]),
        "survivors": (confirm, lambda: there.messages["survivors"]),
        "confirmations": (reveal_shares, lambda: there.messages["confirmations"]),
    }
    stages = ("keys", "shares", "uploads", "confirmations")
    for stage, (kind, (step, message, *more)) in zip(stages, calls.items(), strict=True):
        getattr(here, stage)()
        with pytest.raises(
            Problem, match=f"'{kind}' belongs to another training, another round or other terms"
        ):
            here.ask(step, "silo-1", message(), *more)
        header, rows = parts_of(message())
        passed_off = message_of(header | {"terms": here.terms.digest}, rows)
        with pytest.raises(Refused, match=r"not signed|not closed|did not mask|did not confirm"):
            here.ask(step, "silo-1", passed_off, *more)


@pytest.mark.parametrize("kind", ["keys", "boxes", "survivors", "confirmations"])
def test_truncated_and_oversized_messages_are_refused(kind):
    made = Round(terms_for(4)).until("confirmations")
    whole = made.messages[kind]["silo-0"] if kind == "boxes" else made.messages[kind]
    silo = 0 if kind == "boxes" else None
    header, rows = parts_of(whole)
    assert unpack(made.terms, kind, silo, whole).silos
    first = len(START)
    nonsense = {
        "not a message of the schema": [b"", START, START[:-1] + b" " + whole[first:], b"x" + whole],
        "header is cut off, or longer": [
            whole[: first + 9],
            START + (LONGEST_HEADER + 1).to_bytes(4, "big") + bytes(LONGEST_HEADER + 1),
            START + b"\xff\xff\xff\xff" + whole[first + 4 :],
        ],
        "cannot be read": [
            message_of({**header, "silos": None}, rows),
            message_of({"kind": kind}, rows),
            START + (4000).to_bytes(4, "big") + b"[" * 4000,
            START + (4).to_bytes(4, "big") + b"\xff\xff\xff\xff",
        ],
        "increasing places": [
            message_of({**header, "silos": places}, rows)
            for places in ([0, 0, 1, 2], [1, 0, 2, 3], [-1, 0, 1], [0, 1, 4], [0, 1.0], [False, True], ["0"])
        ],
        "bytes of rows; expected": [
            whole[:-1],
            whole + b"x",
            message_of({**header, "silos": [0]}, rows),
            message_of({**header, "silos": []}, rows),
        ],
        "canonical form": [message_of({**header, "more": 1}, rows)],
        "is from or for another silo": [message_of({**header, "silo": 3}, rows)],
        "expected a message": [message_of({**header, "kind": "upload"}, rows)],
    }
    for why, messages in nonsense.items():
        for message in messages:
            with pytest.raises(Problem, match=why):
                unpack(made.terms, kind, silo, message)
    with pytest.raises(Problem, match="expected a message of bytes, got str"):
        unpack(made.terms, kind, silo, "text")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 40))
def test_no_bytes_break_the_reader(noise, cut):
    terms = terms_for(3, dropouts=0)
    whole = pack(terms, "survivors", None, (0, 1, 2), bytes(3 * 64))
    for message in (noise, START + noise, whole[:cut] + noise, whole[:-1] + noise):
        try:
            read = unpack(terms, "survivors", None, message)
        except Problem:
            continue
        assert len(read.rows) == len(read.silos)


def test_a_message_that_is_made_wrong_does_not_leave():
    with pytest.raises(ValueError, match="right length"):
        pack(terms_for(), "survivors", None, (0, 1), bytes(64))
    assert width_of("upload", terms_for(size=6)) == 64 + 48
