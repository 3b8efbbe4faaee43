"""Coins and noise of metered trainings: drawn from the operating system's entropy, each at most once."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import Problem, reason
from ..noise.dice import KeyedDice
from ..noise.keystream import KEY_BYTES
from ..privacy.files import write_new
from ..privacy.ledger.ledger import Identity

COINS = "\0coins"  # no silo has this name
BEFORE = (-1, -1)  # before any call
RENEWED = 8  # rounds after which dice are replaced


@dataclass
class Reserved:
    """A silo's reservation: its rounds, a salt drawn for them, and the last (round, call) served to each run.

    The salt is never stored. A run's dice only move forward, so nothing is drawn twice. They are replaced
    every few rounds, so anyone who reads a key in memory knows the noise of those rounds only.
    """

    first: int
    last: float
    salt: bytes
    given: dict[int, tuple[int, int]] = field(default_factory=dict)
    dice: dict[int, tuple[int, KeyedDice]] = field(default_factory=dict)


@dataclass
class EntropyStreams:
    """Coins and noise from the operating system's entropy, keyed by a silo's secret and a ledger row.

    Each reservation draws its own salt and never stores it, so nobody can draw the same noise again.
    Salt, secret and row are hashed into the key of a keystream (`coterie.noise`).
    """

    secrets: dict[str, bytes]
    _reserved: dict[str, Reserved] = field(default_factory=dict)
    _merged: set[bytes] = field(default_factory=set)

    def begin(self, silo: str, row: str, first: int = 0, last: int | None = None) -> None:
        """Begin a reservation of the rounds `first` up to `last`; `row` is the hash of its ledger row."""
        salt = row.encode() + os.urandom(32)
        self._reserved[silo] = Reserved(first, math.inf if last is None else last, salt)

    def end(self, silo: str) -> None:
        """End the reservation of a silo: no further draws are served from it."""
        self._reserved.pop(silo, None)

    def dice(self, run: int, silo: str, round_: int, call: int) -> KeyedDice:
        """Return the dice for one call of a door, once; calls must come in order of rounds."""
        reserved = self._reserved.get(silo)
        if reserved is None or not reserved.first <= round_ < reserved.last:
            raise Problem(f"round {round_} of '{silo}' was not reserved, so its noise is not drawn")
        if reserved.given.get(run, BEFORE) >= (round_, call):
            raise Problem(
                f"the noise of round {round_} of '{silo}' was drawn before; it is never drawn twice"
            )
        reserved.given[run] = round_, call
        since, dice = reserved.dice.get(run, (round_ - RENEWED, None))
        if dice is None or round_ >= since + RENEWED:
            text = f"door\0{silo}\0{run}\0{round_}\0".encode() + reserved.salt
            dice = KeyedDice(_key(text, self.secrets[silo]))
            reserved.dice[run] = round_, dice
        return dice

    def merging(self, run: int, silo: str, round_: int) -> KeyedDice:
        """Return the dice for the noise of one silo's upload to a merge, or of the merge itself, once.

        If `silo` is not a silo's name, the noise is that of the merge. It is keyed by the secrets and rows of
        all silos that reserved the round: anyone who does not know all of them does not know the noise.
        """
        spans = sorted(self._reserved.items())
        reserved = [name for name, span in spans if span.first <= round_ < span.last]
        concerned = [name for name in reserved if name == silo] if silo in self.secrets else reserved
        if not concerned:
            raise Problem(f"the merge of round {round_} was not reserved, so its noise is not drawn")
        whole = hashlib.blake2b(digest_size=KEY_BYTES)
        for name in concerned:
            key = f"{run}\0{round_}\0merge\0{silo}\0".encode() + self._reserved[name].salt
            whole.update(hashlib.blake2b(key, key=self.secrets[name]).digest())
        if whole.digest() in self._merged:
            raise Problem(
                f"the noise of the merge of round {round_} was drawn before; it is never drawn twice"
            )
        self._merged.add(whole.digest())
        return KeyedDice(whole.digest())

    def coins(self, run: int, round_: int, silos: int) -> np.ndarray:
        """Return a round's coins, once: a number in [0, 1) per silo that decides whether it takes part."""
        return self.merging(run, COINS, round_).random(silos)

    def kept(self, silo: str, what: str) -> KeyedDice:
        """Return the dice for one answer: the same if `what` is asked again, others for anything else."""
        return KeyedDice(_key(what.encode(), self.secrets[silo]))


def _key(text: bytes, secret: bytes) -> bytes:
    """Return the key of a keystream that only those who know the secret can work out."""
    return hashlib.blake2b(text, key=secret, digest_size=KEY_BYTES).digest()


def secret_of(folder: Path, identity: Identity) -> bytes:
    """Return a silo's secret, created on first use in a file that only its owner may read."""
    path = folder / f"{identity.fingerprint}.secret"
    try:
        if not path.exists():
            write_new(path, os.urandom(32), 0o600)  # unless another process is quicker
        secret = path.read_bytes()
    except OSError as error:
        raise Problem(
            f"secret '{path}' cannot be read or written: {reason(error)}; nothing is drawn without it"
        ) from error
    if len(secret) != 32:
        raise Problem(f"secret '{path}' is damaged: restore it from a backup")
    return secret
