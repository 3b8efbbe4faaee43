"""Which rows are in which silo, for data that has silos, and which of a silo's rows are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from ..errors import Problem
from .partition import Part, View
from .persons import check_apart
from .sources.cells import listed


def natural_silos(silo: np.ndarray, limit: int | None, min_examples: int) -> list[Part]:
    """Return the data's own silos: those with enough examples, and at most the `limit` largest."""
    names, owner, counts = np.unique(silo, return_inverse=True, return_counts=True)
    first = np.full(len(names), len(silo))
    np.minimum.at(first, owner, np.arange(len(silo)))
    if min_examples > 2:
        kept = [k for k in range(len(names)) if counts[k] >= min_examples]
        if not kept:
            raise Problem(
                f"data.min_examples: no silo has {min_examples} examples, the most is {counts.max()}"
            )
    else:
        kept = list(range(len(names)))
    if limit is not None and limit > len(kept):
        raise Problem(f"data.silos: expected at most the {len(kept)} silos the data has, got {limit}")
    if limit is not None:
        kept = sorted(kept, key=lambda k: (-counts[k], first[k]))[:limit]
    kept.sort(key=lambda k: first[k])
    return [(str(names[k]), np.flatnonzero(owner == k), View()) for k in kept]


def held_out_rows(
    name: str, rows: np.ndarray, split: np.ndarray | None, test: float | str, seed: int
) -> np.ndarray:
    """Return which rows of one silo are test rows."""
    if test == "official":
        if split is None:
            raise Problem("data.test: the data has no official split: give a share, as 0.2")
        return np.asarray(split[rows] == 1)
    order, count = _drawn(name, len(rows), test, seed)
    marked = np.zeros(len(rows), dtype=bool)
    marked[order[:count]] = True
    return marked


def held_out_persons(
    parts: Sequence[Part], person: np.ndarray, split: np.ndarray | None, test: float | str, seed: int
) -> list[np.ndarray]:
    """Return, for each silo, which of its rows are test rows: all rows of some persons.

    Whoever is held out of one silo is held out of all others. Small silos choose first, since they have the
    fewest to choose from; each chooses among those whom no other silo has seen.
    """
    _, ids = np.unique(person, return_inverse=True)
    if test == "official":
        marks = [held_out_rows(name, rows, split, test, seed) for name, rows, _ in parts]
        rows_of_all = np.concatenate([rows for _, rows, _ in parts])
        check_apart(ids[rows_of_all], np.concatenate(marks))
        return marks
    out, seen = np.zeros(len(ids), dtype=bool), np.zeros(len(ids), dtype=bool)
    for name, rows, _ in sorted(parts, key=lambda part: len(part[1])):
        mine = ids[rows]
        own = mine[np.sort(np.unique(mine, return_index=True)[1])]  # in the order of their first rows
        order, count = _drawn(name, len(own), test, seed)
        free = [i for i in own[order] if not seen[i]]
        out[free[: max(0, count - int(out[own].sum()))]] = True
        seen[own] = True
        if out[own].all() or not out[own].any():
            raise Problem(
                f"data.person_column: the persons of silo '{name}' have rows in other silos too, and none is"
                f" left for its {'training' if out[own].all() else 'test'}: choose another data.seed"
            )
    return [out[ids[rows]] for _, rows, _ in parts]


def _drawn(name: str, several: int, test: float | str, seed: int) -> tuple[np.ndarray, int]:
    """Return a silo's rows or persons in random order, and how many of them are held out."""
    if isinstance(test, str) or not 0 < test < 1:
        raise Problem(f"data.test: expected a share between 0 and 1 or 'official', got {test!r}")
    digest = hashlib.blake2b(f"split/{seed}/{name}".encode(), digest_size=8).digest()
    order = np.random.default_rng(int.from_bytes(digest)).permutation(several)
    return order, min(max(1, round(several * test)), several - 1)


def check_persons(parts: Sequence[Part], person: np.ndarray) -> None:
    """Raise `Problem` if all rows of some silos are about one person, who cannot be split."""
    alone = [name for name, places, _ in parts if len(places) > 1 and len(np.unique(person[places])) < 2]
    if not alone:
        return
    if len(alone) > 1 and len(alone) == len(parts):
        which = f"each of the {len(alone)} silos has rows of one person only"
    elif len(alone) > 1:
        which = f"{len(alone)} silos ({listed(alone, 5)}) have rows of one person only"
    else:
        which = f"all rows of silo '{alone[0]}' are about one person"
    raise Problem(
        f"data.person_column: {which}, but a silo needs at least two persons (some to train, some to test)"
    )


def check_labels(
    members: Sequence[tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
    classes: tuple[str, ...],
) -> None:
    """Raise a Problem for a test label that no silo has in training."""
    if not classes:
        return
    seen = set(np.concatenate([np.unique(m[2]) for m in members]).tolist())
    for name, _, _, _, test_y in members:
        unseen = sorted(set(np.unique(test_y).tolist()) - seen)
        if unseen:
            raise Problem(
                f"data: silo '{name}' has the label '{classes[unseen[0]]}' among its test examples,"
                " which no silo has in training: drop it, or choose another data.seed"
            )
