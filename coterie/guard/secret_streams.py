"""Coins and noise of metered trainings: from the operating system's entropy, each answered once."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import Problem
from ..privacy.ledger.ledger import Identity
from ..protocol.streams import Pair, Refilled

COINS = "\0coins"  # no silo has this name
BEFORE = (-1, -1)  # any call
RENEWED = 8  # rounds after which generators are made anew


@dataclass
class Reserved:
    """What a silo reserved: rounds, a salt drawn for them and kept nowhere, what each run was given last.

    A run's generators only ever go on, so that nothing is drawn twice; some rounds later they are made
    anew, so that who should find out the state of one knows the noise of these rounds only.
    """

    first: int
    last: float
    salt: bytes
    given: dict[int, tuple[int, int]] = field(default_factory=dict)
    generators: dict[int, tuple[int, Pair]] = field(default_factory=dict)


@dataclass
class EntropyStreams:
    """Coins and noise from the operating system's entropy, keyed by a silo's secret and a ledger row.

    Each reservation has a salt of its own, drawn when it is made and kept nowhere: nobody can draw the
    same noise again. The salt seeds numpy's SFC64, which is not a cryptographic generator.
    """

    secrets: dict[str, bytes]
    _reserved: dict[str, Reserved] = field(default_factory=dict)
    _merged: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    _generators: Refilled = field(default_factory=Refilled)

    def begin(self, silo: str, row: str, first: int = 0, last: int | None = None) -> None:
        """Begin a reservation of the rounds from `first` to `last`, whose row has this hash."""
        salt = row.encode() + os.urandom(32)
        self._reserved[silo] = Reserved(first, math.inf if last is None else last, salt)
        self._merged = {name: done for name, done in self._merged.items() if name in self.secrets}
        self._merged.pop(silo, None)

    def end(self, silo: str) -> None:
        """End the reservation of a silo that takes part no more: nothing of it is answered."""
        self._reserved.pop(silo, None)

    def generators(self, run: int, silo: str, round_: int, call: int) -> Pair:
        """Give the generators for one call of a door, once: calls come in the order of their rounds."""
        own = self._reserved.get(silo)
        if own is None or not own.first <= round_ < own.last:
            raise Problem(f"round {round_} of '{silo}' was not reserved: it is not answered")
        if own.given.get(run, BEFORE) >= (round_, call):
            raise Problem(f"round {round_} of '{silo}' was answered before: it is never answered twice")
        own.given[run] = round_, call
        since, pair = own.generators.get(run, (round_ - RENEWED, None))
        if pair is None or round_ >= since + RENEWED:
            key = f"door\0{silo}\0{run}\0{round_}\0".encode() + own.salt
            digest = hashlib.blake2b(key, key=self.secrets[silo], digest_size=48).digest()
            pair = self._generators.fill((run, silo), digest)
            own.generators[run] = round_, pair
        return pair

    def merging(self, run: int, silo: str, round_: int) -> np.random.Generator:
        """Give the noise of one silo's upload to a merge, or (no silo's name) of the merge itself, once.

        That of a merge is keyed by the secrets and rows of all silos that reserved it: who does not know
        all of them does not know the noise.
        """
        reserved = [name for name, own in sorted(self._reserved.items()) if own.first <= round_ < own.last]
        concerned = [name for name in reserved if name == silo] if silo in self.secrets else reserved
        if not concerned:
            raise Problem(f"the merge of round {round_} was not reserved: it is not answered")
        done = self._merged.setdefault(silo, set())
        if (run, round_) in done:
            raise Problem(f"the merge of round {round_} was answered before: it is never answered twice")
        done.add((run, round_))
        whole = hashlib.blake2b(digest_size=32)
        for name in concerned:
            key = f"{run}\0{round_}\0merge\0{silo}\0".encode() + self._reserved[name].salt
            whole.update(hashlib.blake2b(key, key=self.secrets[name]).digest())
        return np.random.Generator(np.random.SFC64(int.from_bytes(whole.digest())))

    def coins(self, run: int, round_: int, silos: int) -> np.ndarray:
        """Toss the coins of a round, once: who of so many silos comes; numbers in [0, 1)."""
        return self.merging(run, COINS, round_).random(silos)

    def kept(self, silo: str, what: str) -> np.random.Generator:
        """Give noise for one answer: the same whenever it is repeated, another for any other question."""
        digest = hashlib.blake2b(what.encode(), key=self.secrets[silo], digest_size=32).digest()
        return np.random.Generator(np.random.SFC64(int.from_bytes(digest)))


def secret_of(folder: Path, identity: Identity) -> bytes:
    """Read a silo's secret, or make it: a file that only its owner may read."""
    path = folder / f"{identity.fingerprint}.secret"
    if not path.exists():
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(32))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was quicker
            os.link(beside, path)
        beside.unlink()
    secret = path.read_bytes()
    if len(secret) != 32:
        raise Problem(f"secret '{path}' is damaged: restore a copy")
    return secret
