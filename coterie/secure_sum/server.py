"""The server's side of a secure sum: it passes messages on, adds up masked uploads and takes the masks off.

A silo whose answer is missing or wrong is left out (`Server.left_out` says why), until too few are left.
Nothing here is trusted by a silo: whatever the server sends, the silos check it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import Problem
from ..noise.keystream import WORD
from .agreement import Peer, commitment, own_mask, pair_mask, public_half, view_of
from .masks import add_masks
from .shamir import join, weights
from .silo import is_signed_by, read_keys, signature_and_words
from .terms import Terms
from .wire import Message, pack, unpack


class Missing(Problem):
    """Too few silos are left to finish a sum; `silos` are those that are missing, with the reasons."""

    def __init__(self, message: str, silos: dict[str, str]) -> None:
        super().__init__(message)
        self.silos = silos


@dataclass(frozen=True, eq=False)
class Server:
    """What the server knows of one secure sum.

    `peers` are the members whose keys it has and, from the second step on, those that shared their secrets.
    `survivors` are those whose uploads are in `total`, a sum of words modulo 2^64 that is still masked.
    """

    terms: Terms
    peers: tuple[Peer, ...] = ()
    survivors: tuple[int, ...] = ()
    total: np.ndarray | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def present(self) -> tuple[str, ...]:
        """The names of the silos that are asked next."""
        places = self.survivors or tuple(peer.place for peer in self.peers)
        return tuple(self.terms.members[place].name for place in places)


def _read(
    server: Server,
    kind: str,
    answers: Mapping[str, bytes],
    expected: tuple[int, ...],
    needed: int,
    take: Callable[[int, Message], None],
) -> tuple[tuple[int, ...], dict[str, str]]:
    """Hand each sound answer to `take`; return whose these are, and why the others were left out."""
    terms, taken, left_out = server.terms, [], dict(server.left_out)
    for place in expected:
        name = terms.members[place].name
        if name not in answers:
            left_out[name] = f"no answer to '{kind}'"
            continue
        try:
            take(place, unpack(terms, kind, place, answers[name]))
            taken.append(place)
        except Problem as problem:
            left_out[name] = str(problem)
    if len(taken) < needed:
        reasons = "; ".join(f"'{name}': {why}" for name, why in left_out.items())
        raise Missing(
            f"secure sum: only {len(taken)} of {len(terms.members)} silos are left after '{kind}', but"
            f" {needed} are needed ({reasons}); nothing can be unmasked, so start another round",
            left_out,
        )
    return tuple(taken), left_out


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise Problem(f"secure sum: {problem}")


def publish_keys(server: Server, answers: Mapping[str, bytes]) -> tuple[Server, bytes]:
    """After step 1: return the message with all keys, for every silo that is present."""
    terms = server.terms
    peers: list[Peer] = []
    rows: list[bytes] = []

    def take(place: int, message: Message) -> None:
        _require(message.silos == (place,), "a silo sends only its own keys")
        peers.extend(read_keys(terms, message))
        rows.append(message.rows.tobytes())

    places, left_out = _read(server, "keys", answers, tuple(range(len(terms.members))), terms.least, take)
    return replace(server, peers=tuple(peers), left_out=left_out), pack(terms, "keys", None, places, *rows)


def route_shares(server: Server, answers: Mapping[str, bytes]) -> tuple[Server, dict[str, bytes]]:
    """After step 2: return the message for each silo that is present: the boxes that are meant for it."""
    terms, known = server.terms, tuple(peer.place for peer in server.peers)
    boxes: dict[int, dict[int, bytes]] = {}

    def take(place: int, message: Message) -> None:
        _require(message.silos == tuple(other for other in known if other != place), "a share is missing")
        boxes[place] = {other: row.tobytes() for other, row in zip(*message, strict=True)}

    sharing, left_out = _read(server, "shares", answers, known, terms.least, take)
    messages = {}
    for place in sharing:
        senders = tuple(other for other in sharing if other != place)
        rows = (boxes[other][place] for other in senders)
        messages[terms.members[place].name] = pack(terms, "boxes", place, senders, *rows)
    peers = tuple(peer for peer in server.peers if peer.place in sharing)
    return replace(server, peers=peers, left_out=left_out), messages


def add_uploads(server: Server, answers: Mapping[str, bytes]) -> tuple[Server, bytes]:
    """After step 3: add up the uploads; return the message that says whose they are, for these silos."""
    terms, view = server.terms, view_of(server.terms, server.peers)
    total, signatures = np.zeros(terms.size, dtype=WORD), []

    def take(place: int, message: Message) -> None:
        _require(message.silos == (place,), "a silo sends only its own upload")
        signature, words = signature_and_words(message.rows[0])
        _require(is_signed_by(terms, place, "view", [place, view], signature), "it masked with other silos")
        np.add(total, words, out=total)
        signatures.append(signature.tobytes())

    places = tuple(peer.place for peer in server.peers)
    survivors, left_out = _read(server, "upload", answers, places, terms.least, take)
    message = pack(terms, "survivors", None, survivors, *signatures)
    return replace(server, survivors=survivors, total=total, left_out=left_out), message


def collect_confirmations(server: Server, answers: Mapping[str, bytes]) -> tuple[Server, bytes]:
    """After step 4: return the message with the silos' signatures, for all that uploaded."""
    terms, facts, rows = server.terms, [view_of(server.terms, server.peers), server.survivors], []

    def take(place: int, message: Message) -> None:
        _require(message.silos == (place,), "a silo confirms only for itself")
        _require(is_signed_by(terms, place, "survivors", facts, message.rows[0]), "it confirmed another set")
        rows.append(message.rows.tobytes())

    places, left_out = _read(server, "confirmations", answers, server.survivors, terms.threshold, take)
    return replace(server, left_out=left_out), pack(terms, "confirmations", None, places, *rows)


def recover_sum(server: Server, answers: Mapping[str, bytes]) -> np.ndarray:
    """After step 5: return the sum of all uploads that survived, in int64 cells (see `from_cells`)."""
    terms, rows = server.terms, {}
    known = tuple(peer.place for peer in server.peers)
    if server.total is None:
        raise Problem("secure sum: there are no uploads yet")

    def take(place: int, message: Message) -> None:
        _require(message.silos == known, "it revealed shares of other silos")
        rows[place] = message.rows

    places, _ = _read(server, "unmask", answers, server.survivors, terms.threshold, take)
    chosen = places[: terms.threshold]
    factors = weights([place + 1 for place in chosen])
    plus: list[bytes] = []
    minus: list[bytes] = []
    for number, peer in enumerate(server.peers):
        secret = join(np.stack([rows[place][number] for place in chosen]), factors)
        if peer.place in server.survivors:
            _check_secret(terms, peer, commitment(terms, peer.place, secret) == peer.commitment)
            minus.append(own_mask(terms, peer.place, secret))
            continue
        _check_secret(terms, peer, public_half(secret) == peer.masking)
        for other in server.peers:
            if other.place in server.survivors:
                mask = pair_mask(terms, secret, peer.place, other)
                (minus if other.place < peer.place else plus).append(mask)
    words = server.total.copy()
    add_masks(words, plus, minus)
    cells = words.view(np.int64)
    most = len(server.survivors) * terms.reach
    if not -most <= cells.min() <= cells.max() <= most:
        raise Problem("secure sum: the sum is out of range, so a silo sent something else than its upload")
    return cells


def _check_secret(terms: Terms, peer: Peer, fits: bool) -> None:
    if not fits:
        raise Problem(
            f"secure sum: the shares of {terms.names([peer.place])} do not fit its keys, so a silo sent wrong"
            " ones; nothing can be unmasked, start another round"
        )
