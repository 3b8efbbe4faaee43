"""The dice of one call in a metered training: secret coins, exact noise, exact choices."""

from __future__ import annotations

import functools
import hashlib
import math
from fractions import Fraction

import numpy as np

from .choice import choose
from .keystream import KEY_BYTES, WORD, Keystream
from .places import count_hits, distinct_slots, uniform_places
from .rounded import add_noise


def _part(key: bytes, purpose: bytes) -> bytes:
    """Return the key of one purpose."""
    return hashlib.blake2b(key=key, person=purpose, digest_size=KEY_BYTES).digest()


def _toss(stream: Keystream, rate: float, out: np.ndarray) -> None:
    """Fill an array with coins that are True with probability `rate`, rounded down."""
    limit = _limit(rate)
    if limit >= 2**64:
        out[...] = True
    else:
        np.less(stream.words(*out.shape), np.uint64(limit), out=out)


@functools.lru_cache(maxsize=2**12)
def _limit(rate: float) -> int:
    """Return how many of the 2^64 words count as a hit."""
    return math.floor(Fraction(rate) * 2**64)


class KeyedGenerator:
    """Ordinary random numbers from a keystream, under the names that numpy's generators have.

    They are float64, so their distributions are met to about 2^-50.
    """

    def __init__(self, key: bytes) -> None:
        self.stream = Keystream(key)

    def random(self) -> float:
        """Return a random multiple of 2^-53 in [0, 1)."""
        return (self.stream.word() >> 11) * 2.0**-53

    def poisson(self, mean: float) -> int:
        """Return a Poisson number: how many waiting times fit into the mean."""
        count, time = -1, 0.0
        while time <= mean:
            count, time = count + 1, time - math.log1p(-self.random())
        return count

    def integers(self, low: int, high: int, count: int) -> np.ndarray:
        """Return integers from `low` up to but without `high`, equally likely to about 2^-64."""
        drawn = [low + (self.stream.word() * (high - low) >> 64) for _ in range(count)]
        return np.array(drawn, dtype=np.int64)


class KeyedDice:
    """Coins, noise and the bits that settle doubts, each from a keystream that only moves forward.

    With streams of their own, what is drawn does not depend on the order in which an engine asks for it.
    """

    material = WORD  # what is drawn beforehand for a number's noise: 64 secret bits

    def __init__(self, key: bytes) -> None:
        self._key = key

    @functools.cached_property
    def _coins(self) -> Keystream:
        return Keystream(_part(self._key, b"coins"))

    @functools.cached_property
    def _again(self) -> Keystream:
        return Keystream(_part(self._key, b"again"))

    @functools.cached_property
    def _slots(self) -> Keystream:
        return Keystream(_part(self._key, b"slots"))

    @functools.cached_property
    def _noise(self) -> Keystream:
        return Keystream(_part(self._key, b"noise"))

    @functools.cached_property
    def doubts(self) -> Keystream:
        """The further bits of numbers whose first bits do not decide."""
        return Keystream(_part(self._key, b"doubts"))

    def toss(self, rate: float, out: np.ndarray) -> None:
        """Fill an array with coins: True with probability `rate`, rounded down to a multiple of 2^-64.

        So the rate that is charged is never below the one that runs.
        """
        _toss(self._coins, rate, out)

    def toss_batches(self, rate: float, hits: np.ndarray, most: int) -> None:
        """Fill `hits` `[batches, size]` with coins; a batch with more than `most` hits is tossed again.

        Given the coins of the others, an example is then drawn with probability `rate`, or not at all.
        """
        self.toss(rate, hits)
        if most >= hits.shape[1]:
            return
        for batch in np.flatnonzero(count_hits(hits) > most):
            while np.count_nonzero(hits[batch]) > most:
                _toss(self._again, rate, hits[batch])

    def allocate(self, size: int, steps: int, most: int) -> np.ndarray:
        """Return the step of each of `size` examples in one pass, uniform and drawn on its own, from 0 on.

        If a step has more than `most` examples, the whole pass is drawn again. Drawing only that batch again
        would tell about the others (see `coterie.privacy.pld.allocation`).
        """
        while True:
            drawn = uniform_places(self._coins, size, steps)
            if np.bincount(drawn, minlength=steps).max() <= most:
                return drawn

    def slots(self, hits: np.ndarray, slots: int) -> np.ndarray:
        """Return random distinct slots for the hits of batches `[batches, size]`: `[batches, slots]`.

        The k-th hit of a batch stands in the k-th of its slots.
        """
        return distinct_slots(self._slots, count_hits(hits), slots)

    def permutation(self, count: int) -> np.ndarray:
        """Return the numbers below `count` in random order."""
        order = np.argsort(self._coins.words(count), kind="stable")
        return order.astype(np.int64)

    def random(self, count: int) -> np.ndarray:
        """Return random multiples of 2^-53 in [0, 1)."""
        return (self._coins.words(count) >> np.uint64(11)) * 2.0**-53

    def fill(self, out: np.ndarray) -> None:
        """Draw the material of some numbers' noise."""
        self._noise.fill(out)

    def noisy(
        self,
        sums: np.ndarray,
        deviation: float,
        material: np.ndarray | None = None,
        exponent: int | None = None,
    ) -> np.ndarray:
        """Return sums plus noise, rounded to the grid of the deviation, or of 2 to a given power."""
        rows = np.array(sums, dtype=np.float64).reshape(1, -1)
        words = self._noise.words(rows.size) if material is None else np.ascontiguousarray(material)
        add_noise(rows, np.array([deviation]), words, [self], exponent)
        return rows.reshape(np.shape(sums))

    def choose(self, penalties: np.ndarray, scale: float) -> int:
        """Return a candidate, chosen with probability proportional to exp(-penalty / scale)."""
        return choose(penalties, scale, self._noise)
