"""Random streams: one for each (seed, run, silo, round, call, purpose); the purpose is coins or noise.

A silo is identified by its name, so adding, dropping or reordering silos does not change the draws of the
others. Two runs with different names never share noise, even if their seeds are equal.

A simulation draws from seeds, fast and repeatable: anyone who knows the seed knows the noise. A metered
training draws from a keystream, exactly (`coterie.noise`). Both offer the same `Dice`.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

COUNTER = (1).to_bytes(8, "little")
WORD = np.dtype("<u8")
FAST = np.dtype(np.float32)


class Dice(Protocol):
    """What one call of a door, or one merge, draws from."""

    @property
    def material(self) -> np.dtype[Any]:
        """The type of what is drawn beforehand for the noise of a number."""
        ...

    def toss_batches(self, rate: float, hits: np.ndarray, most: int) -> None:
        """Fill `hits` `[batches, size]` with coins that are True with at most the probability `rate`.

        If batches have slots, none has more than `most` hits.
        """
        ...

    def allocate(self, size: int, steps: int, most: int) -> np.ndarray:
        """Return the step of each of `size` examples in one pass, uniform and drawn on its own, from 0 on.

        If batches have slots, no step has more than `most` examples.
        """
        ...

    def slots(self, hits: np.ndarray, slots: int) -> np.ndarray | None:
        """Return distinct slots for the hits of batches `[batches, size]`, or None: one after the other."""
        ...

    def permutation(self, count: int) -> np.ndarray:
        """Return the numbers below `count` in random order."""
        ...

    def random(self, count: int) -> np.ndarray:
        """Return random multiples of 2^-53 in [0, 1)."""
        ...

    def fill(self, out: np.ndarray) -> None:
        """Draw the material of some numbers' noise."""
        ...

    def noisy(self, sums: np.ndarray, deviation: float, material: np.ndarray | None = None) -> np.ndarray:
        """Return sums plus noise of a deviation, in float64."""
        ...

    def choose(self, penalties: np.ndarray, scale: float) -> int:
        """Return a candidate, chosen with probability proportional to exp(-penalty / scale)."""
        ...


class Streams(Protocol):
    """Where an engine gets its coins and its noise."""

    def dice(self, run: int, silo: str, round_: int, call: int) -> Dice:
        """Return the dice of one call of a door."""
        ...

    def merging(self, run: int, silo: str, round_: int) -> Dice:
        """Return the dice for the noise of a merge, or of one silo's upload to it."""
        ...


def threshold(rate: float) -> float:
    """Return the number that a draw from [0, 1) must be below to count as a hit.

    Draws are multiples of 2^-53, and so is the threshold, which is at most the rate. So the sampling rate
    that runs is never above the one that is charged.
    """
    return 1.0 if rate >= 1 else math.floor(math.ldexp(rate, 53)) * 2.0**-53


class SeededDice(NamedTuple):
    """The dice of a simulation."""

    coins: np.random.Generator
    noise: np.random.Generator

    @property
    def material(self) -> np.dtype[Any]:
        """The type of what is drawn beforehand: standard normal numbers."""
        return FAST

    def toss_batches(self, rate: float, hits: np.ndarray, most: int) -> None:
        """Fill `hits` `[batches, size]` with coins that are True with at most the probability `rate`."""
        np.less(self.coins.random(hits.shape), threshold(rate), out=hits)

    def allocate(self, size: int, steps: int, most: int) -> np.ndarray:
        """Return the step of each of `size` examples in one pass, uniform and drawn on its own, from 0 on."""
        return self.coins.integers(0, steps, size)

    def slots(self, hits: np.ndarray, slots: int) -> None:
        """Return None: the examples of a batch lie one after the other."""

    def permutation(self, count: int) -> np.ndarray:
        """Return the numbers below `count` in random order."""
        return self.coins.permutation(count)

    def random(self, count: int) -> np.ndarray:
        """Return random multiples of 2^-53 in [0, 1)."""
        return self.coins.random(count)

    def fill(self, out: np.ndarray) -> None:
        """Fill an array with standard normal numbers."""
        self.noise.standard_normal(dtype=np.float32, out=out)

    def noisy(self, sums: np.ndarray, deviation: float, material: np.ndarray | None = None) -> np.ndarray:
        """Return sums plus noise of a deviation; without `material` the noise is drawn in float64."""
        return sums + deviation * (
            self.noise.standard_normal(np.shape(sums)) if material is None else material
        )

    def choose(self, penalties: np.ndarray, scale: float) -> int:
        """Return the candidate with the smallest penalty after Gumbel noise."""
        return int(np.argmax(scale * self.noise.gumbel(size=len(penalties)) - penalties))


class Refilled:
    """Seeded dice, created once for each run and silo and set to a new state for each call.

    Filling dice again ends the streams that they held before.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], tuple[SeededDice, np.random.SFC64, np.random.SFC64, Any]] = {}

    def fill(self, key: tuple[int, str], digest: bytes) -> SeededDice:
        """Return the dice for `key`, their state set from 48 bytes."""
        entry = self._kept.get(key)
        if entry is None:
            coins, noise = np.random.SFC64(0), np.random.SFC64(0)
            dice = SeededDice(np.random.Generator(coins), np.random.Generator(noise))
            entry = self._kept[key] = dice, coins, noise, coins.state
        dice, coins, noise, state = entry
        words = np.frombuffer(digest[:24] + COUNTER + digest[24:] + COUNTER, dtype=WORD)
        state["state"]["state"] = words[:4]
        coins.state = state
        state["state"]["state"] = words[4:]
        noise.state = state
        return dice


@dataclass(frozen=True)
class SeededStreams:
    """The streams of a simulation: anyone who knows the seeds knows the noise.

    `keys` identifies each run by its seed and by a word or number that distinguishes runs of equal seed.
    """

    keys: tuple[tuple[int, int | str], ...]
    _dice: Refilled = field(default_factory=Refilled, repr=False, compare=False)

    def dice(self, run: int, silo: str, round_: int, call: int) -> SeededDice:
        """Return the dice of one call of a door, at the start of their streams."""
        seed, variant = self.keys[run]
        key = f"{seed}\0{variant}\0{round_}\0{call}\0{silo}"
        digest = hashlib.blake2b(key.encode(), digest_size=48).digest()
        return self._dice.fill((run, silo), digest)

    def merging(self, run: int, silo: str, round_: int) -> SeededDice:
        """Return the dice for the noise of a merge (`silo` is empty), or of one silo's upload to it."""
        seed, variant = self.keys[run]
        key = f"{seed}\0{variant}\0{round_}\0merge\0{silo}"
        digest = hashlib.blake2b(key.encode(), digest_size=32).digest()
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(digest)))
        return SeededDice(generator, generator)

    def for_run(self, run: int) -> SeededStreams:
        """Return the streams of one run alone."""
        return SeededStreams((self.keys[run],))
