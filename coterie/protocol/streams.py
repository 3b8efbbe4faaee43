"""Random streams: one for each (seed, run, silo, round, call, purpose); the purpose is coins or noise.

A silo is identified by its name, so adding, dropping or reordering silos does not change the draws of the
others. Two runs with different names never share noise, even if their seeds are equal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

COUNTER = (1).to_bytes(8, "little")
WORD = np.dtype("<u8")
Pair = tuple[np.random.Generator, np.random.Generator]


class Streams(Protocol):
    """Where an engine gets its coins and its noise."""

    def generators(self, run: int, silo: str, round_: int, call: int) -> Pair:
        """Return the generators of coins and noise for one call of a door, at the start of their streams."""
        ...

    def merging(self, run: int, silo: str, round_: int) -> np.random.Generator:
        """Return the generator for the noise of a merge, or of one silo's upload to it."""
        ...


class Refilled:
    """Pairs of generators, created once for each run and silo and set to a new state for each call.

    Filling a pair again ends the streams that it held before.
    """

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, str], tuple[Pair, np.random.SFC64, np.random.SFC64, Any]] = {}

    def fill(self, key: tuple[int, str], digest: bytes) -> Pair:
        """Return the pair for `key`, its state set from 48 bytes."""
        entry = self._pairs.get(key)
        if entry is None:
            coins, noise = np.random.SFC64(0), np.random.SFC64(0)
            pair = np.random.Generator(coins), np.random.Generator(noise)
            entry = self._pairs[key] = pair, coins, noise, coins.state
        pair, coins, noise, state = entry
        words = np.frombuffer(digest[:24] + COUNTER + digest[24:] + COUNTER, dtype=WORD)
        state["state"]["state"] = words[:4]
        coins.state = state
        state["state"]["state"] = words[4:]
        noise.state = state
        return pair


@dataclass(frozen=True)
class SeededStreams:
    """The streams of a simulation: anyone who knows the seeds knows the noise.

    `keys` identifies each run by its seed and by a word or number that distinguishes runs of equal seed.
    """

    keys: tuple[tuple[int, int | str], ...]
    _generators: Refilled = field(default_factory=Refilled, repr=False, compare=False)

    def generators(self, run: int, silo: str, round_: int, call: int) -> Pair:
        """Return the generators of coins and noise for one call of a door, at the start of their streams."""
        seed, variant = self.keys[run]
        key = f"{seed}\0{variant}\0{round_}\0{call}\0{silo}"
        digest = hashlib.blake2b(key.encode(), digest_size=48).digest()
        return self._generators.fill((run, silo), digest)

    def merging(self, run: int, silo: str, round_: int) -> np.random.Generator:
        """Return the generator for the noise of a merge (`silo` is empty), or of one silo's upload to it."""
        seed, variant = self.keys[run]
        key = f"{seed}\0{variant}\0{round_}\0merge\0{silo}"
        digest = hashlib.blake2b(key.encode(), digest_size=32).digest()
        return np.random.Generator(np.random.SFC64(int.from_bytes(digest)))

    def for_run(self, run: int) -> SeededStreams:
        """Return the streams of one run alone."""
        return SeededStreams((self.keys[run],))
