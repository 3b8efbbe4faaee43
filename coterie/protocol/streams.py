"""Random streams: one for each (seed, run, silo, round, call, purpose), the purpose being coins or noise.

A silo is known by its name, so adding, dropping or reordering silos changes nobody else's
draws, and two runs of different names never share noise, even with equal seeds.
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
        """Give the generators of coins and of noise for one call of a door, at their beginning."""
        ...

    def merging(self, run: int, silo: str, round_: int) -> np.random.Generator:
        """Give the noise of a merge, or of one silo's upload to it."""
        ...


class Refilled:
    """Pairs of generators, made once for each run and silo and set to a new state for each call.

    Asking again ends the streams that were given before.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, str], tuple[Pair, np.random.SFC64, np.random.SFC64, Any]] = {}

    def fill(self, key: tuple[int, str], digest: bytes) -> Pair:
        """Give a pair, its state made of 48 bytes."""
        made = self._made.get(key)
        if made is None:
            coins, noise = np.random.SFC64(0), np.random.SFC64(0)
            pair = np.random.Generator(coins), np.random.Generator(noise)
            made = self._made[key] = pair, coins, noise, coins.state
        pair, coins, noise, state = made
        words = np.frombuffer(digest[:24] + COUNTER + digest[24:] + COUNTER, dtype=WORD)
        state["state"]["state"] = words[:4]
        coins.state = state
        state["state"]["state"] = words[4:]
        noise.state = state
        return pair


@dataclass(frozen=True)
class SeededStreams:
    """Streams of a simulation: whoever knows the seeds knows the noise.

    `keys` names each run: its seed, and a word or number that tells apart runs of equal seed.
    """

    keys: tuple[tuple[int, int | str], ...]
    _generators: Refilled = field(default_factory=Refilled, repr=False, compare=False)

    def generators(self, run: int, silo: str, round_: int, call: int) -> Pair:
        """Give the generators of coins and of noise for one call of a door, at their beginning."""
        seed, variant = self.keys[run]
        key = f"{seed}\0{variant}\0{round_}\0{call}\0{silo}"
        digest = hashlib.blake2b(key.encode(), digest_size=48).digest()
        return self._generators.fill((run, silo), digest)

    def merging(self, run: int, silo: str, round_: int) -> np.random.Generator:
        """Give the noise of a merge (a silo without a name), or of one silo's upload to it."""
        seed, variant = self.keys[run]
        key = f"{seed}\0{variant}\0{round_}\0merge\0{silo}"
        digest = hashlib.blake2b(key.encode(), digest_size=32).digest()
        return np.random.Generator(np.random.SFC64(int.from_bytes(digest)))

    def for_run(self, run: int) -> SeededStreams:
        """Give the streams of one run alone."""
        return SeededStreams((self.keys[run],))
