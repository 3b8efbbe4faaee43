"""The silo's side of a secure sum: five steps, each a function of its state and one message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import Problem, Refused
from ..noise.keystream import WORD
from ..privacy.keys import is_signed
from .agreement import (
    Peer,
    close_box,
    open_box,
    own_mask,
    pair_mask,
    peer_of,
    secrets_of,
    shares_of,
    view_of,
)
from .masks import add_masks
from .state import STEPS, Silo, State, answer_once
from .terms import SCHEMA, Terms, canonical
from .wire import KEY_BYTES, SHARE, SIGNATURE_BYTES, Message, pack, unpack

Answer = tuple[State, bytes]


def is_signed_by(terms: Terms, place: int, what: str, facts: object, signature: np.ndarray) -> bool:
    """Return whether a member signed some facts about these terms."""
    text = canonical([terms.digest, facts])
    public = terms.members[place].public
    return is_signed(public, f"{SCHEMA} {what}", text, signature.tobytes().hex())


def _sign(silo: Silo, what: str, facts: object) -> bytes:
    return bytes.fromhex(silo.key.sign(f"{SCHEMA} {what}", canonical([silo.terms.digest, facts])))


def offer_keys(silo: Silo, state: State) -> Answer:
    """Step 1: return the silo's fresh public keys, signed."""

    def work() -> Answer:
        peer = peer_of(silo.terms, silo.place, secrets_of(silo.terms, silo.place, state.seed))
        row = b"".join([*peer[1:], _sign(silo, "keys", peer.plain())])
        return state, pack(silo.terms, "keys", silo.place, (silo.place,), row)

    return answer_once(silo, state, "keys", b"", work)


def read_keys(terms: Terms, message: Message) -> tuple[Peer, ...]:
    """Return the members whose signed keys a message has; raise `Refused` if a signature is not theirs."""
    peers = tuple(Peer.of(place, row.tobytes()) for place, row in zip(*message, strict=True))
    forged = [
        peer.place
        for peer, row in zip(peers, message.rows, strict=True)
        if not is_signed_by(terms, peer.place, "keys", peer.plain(), row[3 * KEY_BYTES :])
    ]
    if forged:
        raise Refused(f"secure sum: the keys are not signed by {terms.names(forged)}")
    return peers


def _check_enough(silo: Silo, places: tuple[int, ...]) -> None:
    """Raise `Refused` unless a set of members contains the silo and is large enough."""
    terms = silo.terms
    if silo.place not in places:
        raise Refused(f"secure sum: '{silo.name}' is not among the silos of a message that it should answer")
    if len(places) < terms.least:
        missing = set(range(len(terms.members))) - set(places)
        raise Refused(
            f"secure sum: only {len(places)} of {len(terms.members)} silos are left, but at least"
            f" {terms.least} are needed; missing: {terms.names(missing)}"
        )


def share_secrets(silo: Silo, state: State, message: bytes) -> Answer:
    """Step 2: check everybody's keys; return a share of the silo's secrets for each, in closed boxes."""
    terms, place = silo.terms, silo.place

    def work() -> Answer:
        peers = read_keys(terms, unpack(terms, "keys", None, message))
        _check_enough(silo, tuple(peer.place for peer in peers))
        secrets = secrets_of(terms, place, state.seed)
        if peer_of(terms, place, secrets) not in peers:
            raise Refused(f"secure sum: the keys of '{silo.name}' in the list are not those it sent")
        shares = shares_of(terms, place, state.seed, secrets)
        others = tuple(peer for peer in peers if peer.place != place)
        boxes = [close_box(terms, secrets, place, peer, shares[peer.place].tobytes()) for peer in others]
        recipients = tuple(peer.place for peer in others)
        return replace(state, peers=peers), pack(terms, "shares", place, recipients, *boxes)

    return answer_once(silo, state, "shares", message, work)


def mask_upload(silo: Silo, state: State, message: bytes, cells: np.ndarray) -> Answer:
    """Step 3: take the others' shares; return the masked upload, and a signature of who masks with it.

    `cells` come from `contribution`. If the step is repeated, they must be the same: two uploads under the
    same masks would reveal their difference.
    """
    terms, place = silo.terms, silo.place
    if cells.shape != (terms.size,) or cells.dtype != np.int64:
        raise Problem(f"secure sum: expected {terms.size} cells of int64, got {cells.shape} of {cells.dtype}")
    if not -terms.reach <= cells.min() <= cells.max() <= terms.reach:
        raise Refused(f"secure sum: an upload is further out than {terms.reach} cells; nothing is sent")

    def work() -> Answer:
        boxes = unpack(terms, "boxes", place, message)
        secrets = secrets_of(terms, place, state.seed)
        peers, shares = _take_shares(silo, state, boxes)
        words = cells.astype(WORD)
        plus = [own_mask(terms, place, secrets.own)]
        minus: list[bytes] = []
        for peer in peers:
            if peer.place != place:
                mask = pair_mask(terms, secrets.masking, place, peer)
                (plus if place < peer.place else minus).append(mask)
        add_masks(words, plus, minus)
        signature = _sign(silo, "view", [place, view_of(terms, peers)])
        answer = pack(terms, "upload", place, (place,), signature, words.data.cast("B"))
        return replace(state, peers=peers, shares=shares), answer

    return answer_once(silo, state, "upload", message, work)


def check_boxes(silo: Silo, state: State, message: bytes) -> None:
    """Raise `Problem` unless `mask_upload` is due and would accept a message: training may take long."""
    if len(state.done) != STEPS.index("upload") or len(state.seed) != KEY_BYTES:
        raise Refused(f"secure sum: 'upload' is not due for '{silo.name}'")
    _take_shares(silo, state, unpack(silo.terms, "boxes", silo.place, message))


def _take_shares(silo: Silo, state: State, boxes: Message) -> tuple[tuple[Peer, ...], bytes]:
    """Return the members that shared their secrets, the silo included, and the shares that it holds."""
    terms, place = silo.terms, silo.place
    known = {peer.place: peer for peer in state.peers}
    strangers = [other for other in boxes.silos if other == place or other not in known]
    if strangers:
        raise Refused(f"secure sum: a box came from {terms.names(strangers)}, whose keys were not listed")
    sharing = tuple(sorted({place, *boxes.silos}))
    _check_enough(silo, sharing)
    secrets = secrets_of(terms, place, state.seed)
    own = shares_of(terms, place, state.seed, secrets)[place].tobytes()
    sent = dict(zip(*boxes, strict=True))
    shares = (
        own if other == place else open_box(terms, secrets, place, known[other], sent[other].tobytes())
        for other in sharing
    )
    return tuple(known[other] for other in sharing), b"".join(shares)


def confirm(silo: Silo, state: State, message: bytes) -> Answer:
    """Step 4: check who uploaded, and that all masked with the same silos; return a signature of the set."""
    terms = silo.terms

    def work() -> Answer:
        survivors = unpack(terms, "survivors", None, message)
        _check_enough(silo, survivors.silos)
        view = view_of(terms, state.peers)
        strangers = set(survivors.silos) - {peer.place for peer in state.peers}
        if strangers:
            raise Refused(f"secure sum: {terms.names(strangers)} shared no secrets and cannot have uploaded")
        differing = [
            place
            for place, row in zip(*survivors, strict=True)
            if not is_signed_by(terms, place, "view", [place, view], row)
        ]
        if differing:
            raise Refused(
                f"secure sum: {terms.names(differing)} did not mask with the same silos and keys as"
                f" '{silo.name}'; the server told them something else"
            )
        signature = _sign(silo, "survivors", [view, survivors.silos])
        answer = pack(terms, "confirmations", silo.place, (silo.place,), signature)
        return replace(state, survivors=survivors.silos), answer

    return answer_once(silo, state, "confirmation", message, work)


def reveal_shares(silo: Silo, state: State, message: bytes) -> Answer:
    """Step 5: check that enough silos confirmed the same set; return one share for each member.

    It is a share of the seed of its own mask if the member is in the set, else one of its mask key. There is
    one row for each member, and the set is the one this silo confirmed, so it never reveals both.
    """
    terms = silo.terms

    def work() -> Answer:
        confirmed = unpack(terms, "confirmations", None, message)
        facts = [view_of(terms, state.peers), state.survivors]
        forged = [
            place
            for place, row in zip(*confirmed, strict=True)
            if place not in state.survivors or not is_signed_by(terms, place, "survivors", facts, row)
        ]
        if forged:
            raise Refused(
                f"secure sum: {terms.names(forged)} did not confirm the same silos as '{silo.name}'; nothing"
                " is revealed"
            )
        if len(confirmed.silos) < terms.threshold:
            raise Refused(
                f"secure sum: {len(confirmed.silos)} silos confirmed who uploaded, but at least"
                f" {terms.threshold} must; nothing is revealed"
            )
        places = tuple(peer.place for peer in state.peers)
        rows = []
        for number, place in enumerate(places):
            share = state.shares[number * SHARE : (number + 1) * SHARE]
            rows.append(share[KEY_BYTES:] if place in state.survivors else share[:KEY_BYTES])
        return state, pack(terms, "unmask", silo.place, places, *rows)

    return answer_once(silo, state, "unmask", message, work)


def signature_and_words(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the signature and the masked words of the row of an upload."""
    return row[:SIGNATURE_BYTES], row[SIGNATURE_BYTES:].view(WORD)
