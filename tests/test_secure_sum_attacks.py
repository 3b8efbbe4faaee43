"""A server, and silos, that do not follow the protocol of a secure sum: what they try is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import Refused
from coterie.secure_sum import (
    State,
    add_uploads,
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
from coterie.secure_sum.wire import pack, unpack
from tests.helpers import refused
from tests.secure_rounds import Round, key_of, swapped, terms_for, without


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


def test_an_upload_that_comes_late_stays_hidden():
    """The server says that silo-4 dropped out, gets its mask key, and has its upload after all."""
    terms = terms_for(5, dropouts=1, size=400)
    made = Round(terms, {f"silo-{k}": np.zeros(400, dtype=np.int64) for k in range(5)}).until("shares")
    late = made.ask(mask_upload, "silo-4", made.messages["boxes"]["silo-4"], made.cells["silo-4"])
    made.gone = ((), (), (4,), (), ())
    made.uploads()
    made.confirmations()
    assert made.total().tolist() == [0] * 400
    words = signature_and_words(unpack(terms, "upload", 4, late).rows[0])[1].copy()
    rows = [unpack(terms, "unmask", k, made.answers["unmask"][f"silo-{k}"]).rows[4] for k in range(3)]
    secret = join(np.stack(rows), weights([1, 2, 3]))
    peers = {peer.place: peer for peer in made.server.peers}
    add_masks(words, [pair_mask(terms, secret, 4, peers[k]) for k in range(4)], [])
    assert (np.abs(words.view(np.int64)) > terms.reach).mean() > 0.99  # its own mask is still on it


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
