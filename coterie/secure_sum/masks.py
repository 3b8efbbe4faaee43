"""Masks: keystreams added to words modulo 2^64.

A word plus a random word is a random word, and what two silos add and subtract cancels in the sum. Nothing
is lost: a silo refuses to send a number beyond `Terms.reach`, which is at most 2^52 cells, and there are at
most 255 silos. So the sum is below 2^60 in absolute value, and it is the only number below 2^63 that equals
the sum of the words modulo 2^64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..noise.keystream import WORD, Keystream

BLOCK = 2**15  # words at a time: they stay near the processor


def add_masks(words: np.ndarray, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add the keystreams of some keys to words, and subtract those of others, modulo 2^64, in place."""
    added, taken = [Keystream(key) for key in plus], [Keystream(key) for key in minus]
    mask = np.empty(min(BLOCK, len(words)), dtype=WORD)
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK]
        part = mask[: len(block)]
        for stream in added:
            stream.fill(part)
            np.add(block, part, out=block)
        for stream in taken:
            stream.fill(part)
            np.subtract(block, part, out=block)
