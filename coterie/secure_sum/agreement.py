"""A silo's secrets in one secure sum, what others learn of them, and the keys that two silos agree on.

Everything follows from one random seed by HKDF (RFC 5869), so a step that is repeated returns the same
bytes. Keys are agreed on by X25519 (RFC 7748) and bound to the terms and to the two silos. Shares travel in
boxes of AES-256-GCM. A box has a key of its own (per sender, recipient and round), so its nonce is zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..errors import Refused
from ..noise.keystream import Keystream
from .shamir import split
from .terms import SCHEMA, Terms, canonical, digest_of
from .wire import KEY_BYTES

NONCE = bytes(12)


class Peer(NamedTuple):
    """What everybody knows of a member: its place, its two public keys, and a commitment to its own mask."""

    place: int
    encryption: bytes
    masking: bytes
    commitment: bytes

    def plain(self) -> list[Any]:
        """Return the peer as plain data."""
        return [self.place, self.encryption.hex(), self.masking.hex(), self.commitment.hex()]

    @classmethod
    def of(cls, place: int, row: bytes) -> Peer:
        """Return the peer of a row of a message."""
        return cls(place, *(row[k * KEY_BYTES : (k + 1) * KEY_BYTES] for k in range(3)))


class Secrets(NamedTuple):
    """The private keys of a silo, and the seed of its own mask."""

    encryption: bytes
    masking: bytes
    own: bytes


def derive(secret: bytes, *purpose: object) -> bytes:
    """Return the key of one purpose."""
    info = canonical([SCHEMA, *purpose]).encode()
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def secrets_of(terms: Terms, place: int, seed: bytes) -> Secrets:
    """Return the secrets that follow from the seed of a silo's state."""
    names = ("encryption key", "mask key", "own mask")
    return Secrets(*(derive(seed, name, terms.digest, place) for name in names))


def public_half(private: bytes) -> bytes:
    """Return the public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def commitment(terms: Terms, place: int, own: bytes) -> bytes:
    """Return what a silo publishes of the seed of its own mask, so that a recovered seed can be checked."""
    return derive(own, "commitment", terms.digest, place)


def peer_of(terms: Terms, place: int, secrets: Secrets) -> Peer:
    """Return what everybody may know of a silo's secrets."""
    halves = public_half(secrets.encryption), public_half(secrets.masking)
    return Peer(place, *halves, commitment(terms, place, secrets.own))


def _agree(terms: Terms, private: bytes, public: bytes, place: int) -> bytes:
    """Return the secret that a private key shares with the public key of the member at `place`."""
    try:
        other = X25519PublicKey.from_public_bytes(public)
        return X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError:
        raise Refused(f"secure sum: a public key of {terms.names([place])} is not usable") from None


def pair_mask(terms: Terms, private: bytes, place: int, peer: Peer) -> bytes:
    """Return the key of the mask that the silo at `place` shares with a peer; both find the same."""
    shared = _agree(terms, private, peer.masking, peer.place)
    return derive(shared, "pair mask", terms.digest, min(place, peer.place), max(place, peer.place))


def own_mask(terms: Terms, place: int, own: bytes) -> bytes:
    """Return the key of a silo's own mask."""
    return derive(own, "keystream of the own mask", terms.digest, place)


def shares_of(terms: Terms, place: int, seed: bytes, secrets: Secrets) -> np.ndarray:
    """Return each member's share of a silo's mask key and of the seed of its own mask: `[members, 64]`."""
    secret, threshold = secrets.masking + secrets.own, terms.threshold
    randomness = np.empty((threshold - 1) * len(secret), dtype=np.uint8)
    Keystream(derive(seed, "polynomials", terms.digest, place)).fill(randomness)
    return split(secret, threshold, len(terms.members), randomness.tobytes())


def _box(terms: Terms, private: bytes, peer: Peer, sender: int, recipient: int) -> tuple[AESGCM, bytes]:
    """Return the cipher of a box, and the data that it is bound to."""
    facts = [terms.training, terms.round, terms.digest, sender, recipient]
    key = derive(_agree(terms, private, peer.encryption, peer.place), "box", *facts)
    return AESGCM(key), canonical([SCHEMA, "box", *facts]).encode()


def close_box(terms: Terms, secrets: Secrets, place: int, peer: Peer, share: bytes) -> bytes:
    """Return a share in a box that only the peer can open."""
    cipher, bound = _box(terms, secrets.encryption, peer, place, peer.place)
    return cipher.encrypt(NONCE, share, bound)


def open_box(terms: Terms, secrets: Secrets, place: int, peer: Peer, box: bytes) -> bytes:
    """Return the share that a peer sent; raise `Refused` if it is not one for this silo and these terms."""
    cipher, bound = _box(terms, secrets.encryption, peer, peer.place, place)
    try:
        return cipher.decrypt(NONCE, box, bound)
    except InvalidTag:
        raise Refused(
            f"secure sum: the box from {terms.names([peer.place])} was not closed by it, or not for"
            f" {terms.names([place])} and this round; start the round again without it"
        ) from None


def view_of(terms: Terms, peers: tuple[Peer, ...]) -> str:
    """Return the digest of the members, with their keys, that a silo masks its upload with."""
    return digest_of(canonical([SCHEMA, "view", terms.digest, [peer.plain() for peer in peers]]).encode())
