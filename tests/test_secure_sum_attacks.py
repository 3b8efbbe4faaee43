"""A server, and silos, that do not follow the protocol of a secure sum: what they try is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import Problem, Refused
from coterie.secure_sum import (
    State,
    add_uploads,
    begin,
    confirm,
    mask_upload,
    offer_keys,
    publish_keys,
    reveal_shares,
    route_shares,
    share_secrets,
)
from coterie.secure_sum.agreement import own_mask, pair_mask, secrets_of, view_of
from coterie.secure_sum.masks import add_masks
from coterie.secure_sum.shamir import join, weights
from coterie.secure_sum.silo import _sign, signature_and_words
from coterie.secure_sum.wire import LONGEST_HEADER, START, pack, unpack, width_of
from tests.helpers import refused
from tests.secure_rounds import Round, key_of, message_of, parts_of, terms_for


def without(terms, kind, silo, message, gone):
    """A message without the rows of some silos."""
    read = unpack(terms, kind, silo, message)
    rows = {place: row.tobytes() for place, row in zip(*read, strict=True) if place not in gone}
    return pack(terms, kind, silo, tuple(rows), *rows.values())


def swapped(terms, kind, silo, message, one, other):
    """A message in which the rows of two silos changed places."""
    read = unpack(terms, kind, silo, message)
    rows = read.rows.copy()
    first, second = read.silos.index(one), read.silos.index(other)
    rows[[first, second]] = rows[[second, first]]
    return pack(terms, kind, silo, read.silos, rows.tobytes())


def confirmed(made, places, view, signers):
    """Confirmations of any set, by silos whose keys the server has."""
    terms = made.terms
    rows = [_sign(made.silos[f"silo-{k}"], "survivors", [view, places]) for k in signers]
    return pack(terms, "confirmations", None, tuple(signers), *rows)


# Too few


def test_a_silo_answers_no_message_about_too_few():
    terms = terms_for(7, dropouts=2, colluding=1)
    assert (terms.least, terms.threshold) == (5, 5)
    made = Round(terms).until("keys")
    few = without(terms, "keys", None, made.messages["keys"], {4, 5, 6})
    with pytest.raises(
        Refused, match="only 4 of 7 silos are left, but at least 5 are needed; missing: 'silo-4'"
    ):
        made.ask(share_secrets, "silo-0", few)
    made.shares()
    few = without(terms, "boxes", 0, made.messages["boxes"]["silo-0"], {4, 5, 6})
    with pytest.raises(Refused, match="only 4 of 7 silos are left"):
        made.ask(mask_upload, "silo-0", few, made.cells["silo-0"])
    made.uploads()
    few = without(terms, "survivors", None, made.messages["survivors"], {4, 5, 6})
    with pytest.raises(Refused, match="only 4 of 7 silos are left"):
        made.ask(confirm, "silo-0", few)
    made.confirmations()
    few = without(terms, "confirmations", None, made.messages["confirmations"], {4, 5, 6})
    with pytest.raises(
        Refused, match="4 silos confirmed who uploaded, but at least 5 must; nothing is revealed"
    ):
        made.ask(reveal_shares, "silo-0", few)


def test_a_silo_answers_only_messages_that_it_is_in():
    terms = terms_for(5, dropouts=2)
    made = Round(terms).until("keys")
    with pytest.raises(Refused, match="'silo-0' is not among the silos"):
        made.ask(share_secrets, "silo-0", without(terms, "keys", None, made.messages["keys"], {0}))
    made.shares()
    made.uploads()
    with pytest.raises(Refused, match="'silo-0' is not among the silos"):
        made.ask(confirm, "silo-0", without(terms, "survivors", None, made.messages["survivors"], {0}))


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


# Two stories: a silo that is said to have uploaded and to have dropped out


def test_a_silo_that_is_active_for_some_and_dropped_for_others_keeps_both_secrets():
    """The server tells two silos that silo-4 uploaded, and the others that it dropped out."""
    terms = terms_for(5, dropouts=1)
    made = Round(terms).until("uploads")
    with_it = made.messages["survivors"]
    without_it = without(terms, "survivors", None, with_it, {4})
    told = {"silo-0": with_it, "silo-1": with_it, "silo-2": without_it, "silo-3": without_it}
    answers = {name: made.ask(confirm, name, message) for name, message in told.items()}
    rows = {
        name: unpack(terms, "confirmations", int(name[-1]), answer).rows[0]
        for name, answer in answers.items()
    }
    for name in told:
        for signers in itertools.chain.from_iterable(itertools.combinations(told, k) for k in range(5)):
            message = pack(
                terms, "confirmations", None, tuple(int(other[-1]) for other in signers),
                *(rows[other].tobytes() for other in signers),
            )  # fmt: skip
            with pytest.raises(Refused, match="nothing is revealed"):
                made.ask(reveal_shares, name, message)


def test_a_silo_confirms_one_set_and_reveals_for_that_set_only():
    """In any order of requests, and with the signatures of all others: for each silo one kind of share."""
    terms = terms_for(5, dropouts=1, colluding=1, size=2)
    made = Round(terms).until("uploads")
    view = view_of(terms, made.server.peers)
    sets = [tuple(range(5)), (0, 1, 2, 3), (0, 1, 2, 4)]
    confirms = [
        without(terms, "survivors", None, made.messages["survivors"], set(range(5)) - set(s)) for s in sets
    ]
    reveals = [confirmed(made, s, view, s) for s in sets]
    requests = [(confirm, message) for message in confirms] + [
        (reveal_shares, message) for message in reveals
    ]
    stored, orders = made.stored["silo-0"], 0
    for order in itertools.permutations(requests, 4):
        made.stored["silo-0"] = stored
        answers = set()
        for step, message in order:
            try:
                answer = made.ask(step, "silo-0", message)
            except Refused:
                continue
            if step is reveal_shares:
                answers.add(unpack(terms, "unmask", 0, answer).rows.tobytes())
        assert len(answers) <= 1
        orders += len(answers)
    assert orders > 20  # some orders do lead to an answer


def test_a_share_is_of_the_own_mask_of_those_that_uploaded_and_of_the_mask_key_of_others():
    terms = terms_for(5, dropouts=1)
    made = Round(terms, gone=((), (), (4,), (), ())).until("confirmations")
    made.total()
    chosen = (0, 1, 3)
    factors = weights([k + 1 for k in chosen])
    rows = [unpack(terms, "unmask", k, made.answers["unmask"][f"silo-{k}"]).rows for k in chosen]
    for place in range(5):
        secrets = secrets_of(terms, place, State.from_bytes(made.stored[f"silo-{place}"]).seed)
        found = join(np.stack([row[place] for row in rows]), factors)
        assert found == (secrets.masking if place == 4 else secrets.own)


def unmask_one(made, target, helper):
    """What a server gets of one upload if a colluding silo and a 'dropped' one are all it masked with."""
    terms, place = made.terms, int(target[-1])
    own = secrets_of(terms, place, State.from_bytes(made.stored[target]).seed).own
    words = signature_and_words(unpack(terms, "upload", place, made.answers["upload"][target]).rows[0])[
        1
    ].copy()
    plus, minus = [], [own_mask(terms, place, own)]
    peers = {peer.place: peer for peer in made.server.peers}
    for other in helper:
        secret = secrets_of(terms, other, State.from_bytes(made.stored[f"silo-{other}"]).seed).masking
        mask = pair_mask(terms, secret, other, peers[place])
        (minus if place < other else plus).append(mask)
    add_masks(words, plus, minus)
    return words.view(np.int64)


def lonely_round():
    """Four silos. The server tells silo-0 that only silo-1 and silo-3, its accomplice, shared their secrets."""
    terms = terms_for(4, dropouts=1, colluding=1)
    made = Round(terms).until("shares")
    boxes = dict(made.messages["boxes"])
    boxes["silo-0"] = without(terms, "boxes", 0, boxes["silo-0"], {2})
    made.answers["upload"] = {
        name: made.ask(mask_upload, name, boxes[name], made.cells[name]) for name in made.silos
    }
    return made


def story_for(made, name):
    """That silo-1 dropped out, with whatever signatures there are."""
    places = (0, 2, 3)
    rows = []
    for place in places:
        answer = unpack(made.terms, "upload", place, made.answers["upload"][f"silo-{place}"])
        rows.append(signature_and_words(answer.rows[0])[0].tobytes())
    if name == "silo-0":  # the accomplice signs what is needed
        view = view_of(made.terms, State.from_bytes(made.stored["silo-0"]).peers)
        rows[2] = _sign(made.silos["silo-3"], "view", [3, view])
    return pack(made.terms, "survivors", None, places, *rows)


def test_a_server_cannot_tell_one_silo_to_mask_with_accomplices_only():
    """If silo-0 and silo-2 confirmed the story, the server would have the upload of silo-0 alone."""
    made = lonely_round()
    assert unmask_one(made, "silo-0", (1, 3)).tolist() == made.cells["silo-0"].tolist()
    with pytest.raises(Refused, match="'silo-2' shared no secrets and cannot have uploaded"):
        made.ask(confirm, "silo-0", story_for(made, "silo-0"))
    with pytest.raises(Refused, match="'silo-0' did not mask with the same silos and keys as 'silo-2'"):
        made.ask(confirm, "silo-2", story_for(made, "silo-2"))


def test_an_accomplice_with_two_pairs_of_keys_is_noticed():
    """Silo-3 shows silo-0 other keys than the rest, so their masks would not cancel."""
    terms = terms_for(4, dropouts=1, colluding=1)
    made, twin = Round(terms), Round(terms)
    answers = {name: made.ask(offer_keys, name) for name in made.silos}
    other = answers | {"silo-3": twin.ask(offer_keys, "silo-3")}
    made.server, keys = publish_keys(made.server, answers)
    _, other_keys = publish_keys(twin.server, other)
    told = {name: other_keys if name == "silo-0" else keys for name in made.silos}
    shares = {name: made.ask(share_secrets, name, told[name]) for name in made.silos}
    twin.ask(share_secrets, "silo-3", other_keys)
    made.server, boxes = route_shares(made.server, shares)
    twins = unpack(terms, "shares", 3, twin.ask(share_secrets, "silo-3", other_keys)).rows[0]
    first = unpack(terms, "boxes", 0, boxes["silo-0"])
    boxes["silo-0"] = pack(terms, "boxes", 0, (1, 2, 3), first.rows[:2].tobytes(), twins.tobytes())
    uploads = {
        name: made.ask(mask_upload, name, boxes[name], made.cells[name])
        for name in ("silo-0", "silo-1", "silo-2")
    }
    rows = [
        signature_and_words(unpack(terms, "upload", k, uploads[f"silo-{k}"]).rows[0])[0].tobytes()
        for k in range(3)
    ]
    message = pack(terms, "survivors", None, (0, 1, 2), *rows)
    with pytest.raises(Refused, match="'silo-0' did not mask with the same silos and keys as 'silo-1'"):
        made.ask(confirm, "silo-1", message)
    with pytest.raises(Refused, match="'silo-1', 'silo-2' did not mask with the same silos and keys"):
        made.ask(confirm, "silo-0", message)


def test_a_server_that_counts_a_silo_with_another_view_leaves_it_out():
    made = lonely_round()
    server, _ = add_uploads(made.server, made.answers["upload"])
    assert server.left_out == {"silo-0": "secure sum: it masked with other silos"}


def test_confirmations_of_silos_that_did_not_upload_do_not_count():
    terms = terms_for(5, dropouts=1)
    made = Round(terms, gone=((), (), (4,), (), ())).until("confirmations")
    view, survivors = view_of(terms, made.server.peers), made.server.survivors
    with pytest.raises(Refused, match="'silo-4' did not confirm the same silos"):
        made.ask(reveal_shares, "silo-0", confirmed(made, survivors, view, (0, 1, 4)))
    exchanged = swapped(terms, "confirmations", None, made.messages["confirmations"], 1, 2)
    with pytest.raises(Refused, match="'silo-1', 'silo-2' did not confirm the same silos"):
        made.ask(reveal_shares, "silo-0", exchanged)


def test_survivors_must_have_shared_secrets():
    terms = terms_for(5, dropouts=1)
    made = Round(terms, gone=((), (4,), (), (), ())).until("uploads")
    read = unpack(terms, "survivors", None, made.messages["survivors"])
    message = pack(terms, "survivors", None, (0, 1, 2, 3, 4), read.rows.tobytes(), bytes(64))
    with pytest.raises(Refused, match="'silo-4' shared no secrets and cannot have uploaded"):
        made.ask(confirm, "silo-0", message)


def test_answers_about_other_silos_are_left_out():
    made = Round(terms_for(5, dropouts=2)).until("keys")
    terms = made.terms
    both = unpack(terms, "keys", None, made.messages["keys"]).rows[:2].tobytes()
    server, _ = publish_keys(
        made.server, made.answers["keys"] | {"silo-0": pack(terms, "keys", 0, (0, 1), both)}
    )
    assert server.left_out == {"silo-0": "secure sum: a silo sends only its own keys"}
    answers = {name: made.ask(share_secrets, name, made.messages["keys"]) for name in made.silos}
    fewer = without(terms, "shares", 1, answers["silo-1"], {3})
    server, boxes = route_shares(made.server, answers | {"silo-1": fewer})
    assert server.left_out == {"silo-1": "secure sum: a share is missing"}
    assert "silo-1" not in boxes
    with refused("another key for"):
        replace(made.silos["silo-0"], key=key_of("silo-1"))
