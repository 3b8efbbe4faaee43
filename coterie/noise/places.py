"""Random places: steps for the examples of a pass, and slots for those of a batch.

Nobody learns from slots who was drawn. A batch is laid out over a fixed, public number of slots. Its examples
get distinct slots, and every way to hand them out is equally likely. So whether an example was drawn does not
change how the others are placed."""

from __future__ import annotations

import numpy as np
from numba import njit

from .keystream import Keystream


def distinct_slots(stream: Keystream, counts: np.ndarray, slots: int) -> np.ndarray:
    """Return random distinct slots for the `counts` `[batches]` examples of each batch: `[batches, slots]`.

    Only the first `counts[k]` numbers of row k mean anything. The draw is exact: a word that would favour
    some slots is thrown away, together with its row, which is drawn again. A slot is chosen by the upper half
    of a word: the integer part of (a number below 2^32) / 2^32 times the slots that are left.
    """
    if counts.max(initial=0) > slots:
        raise ValueError(f"a batch of {counts.max()} examples does not fit into {slots} slots")
    if slots >= 2**31:
        raise ValueError(f"expected fewer than 2^31 slots, got {slots}")
    drawn = np.empty((len(counts), slots), dtype=np.int64)
    again = np.flatnonzero(_deal(stream.words(len(counts), slots), counts, drawn))
    while len(again):
        part = drawn[again]
        biased = _deal(stream.words(len(again), slots), counts[again], part)
        drawn[again] = part
        again = again[biased]
    return drawn


def uniform_places(stream: Keystream, count: int, places: int) -> np.ndarray:
    """Return `count` independent places, exactly uniform: a word that would favour some is drawn again."""
    words = stream.words(count)
    again = np.arange(count)
    # 2^64 is no multiple of `places`: the first (2^64 mod places) words are one too many for some of them
    while len(again := again[words[again] < np.uint64(2**64 % places)]):
        words[again] = stream.words(len(again))
    return (words % np.uint64(places)).astype(np.int64)


@njit(nogil=True, cache=True)
def count_hits(hits):  # type: ignore[no-untyped-def] # pragma: no cover - compiled
    """Return how many examples are in each batch of `hits` `[batches, size]`."""
    counts = np.zeros(len(hits), dtype=np.int64)
    for batch in range(len(hits)):
        for hit in hits[batch]:
            counts[batch] += hit
    return counts


@njit(nogil=True, cache=True)
def _deal(words, counts, slots):  # type: ignore[no-untyped-def] # pragma: no cover - compiled
    """Deal slots by the first steps of a Fisher-Yates shuffle; return the rows that met a biased word."""
    rows, width = slots.shape
    biased = np.zeros(rows, dtype=np.bool_)
    for row in range(rows):
        for slot in range(width):
            slots[row, slot] = slot
        for k in range(counts[row]):
            left = np.uint64(width - k)
            product = (words[row, k] >> np.uint64(32)) * left
            low = product & np.uint64(0xFFFFFFFF)
            # 2^32 is no multiple of `left`: products with a low half below 2^32 mod `left` are too many
            if low < left and low < np.uint64(2**32) % left:
                biased[row] = True
            other = k + np.int64(product >> np.uint64(32))
            slots[row, k], slots[row, other] = slots[row, other], slots[row, k]
    return biased


@njit(nogil=True, cache=True)
def put_in_slots(hits, slots, first, examples, real):  # type: ignore[no-untyped-def] # pragma: no cover - compiled
    """Write the hits of each batch `[batches, size]` into its slots, which begin at `first[batch]`."""
    for batch in range(len(hits)):
        k = 0
        for example in range(hits.shape[1]):
            if hits[batch, example]:
                place = first[batch] + slots[batch, k]
                examples[place], real[place] = example, True
                k += 1
