"""Whose rows are whose: one person may have many rows in a silo.

Persons are numbered in the order of their first rows. Nothing here looks at features or targets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import Problem

MOST_ROWS = 8  # rows of one person that a training uses, unless data.rows_per_person says otherwise


def numbered(persons: np.ndarray) -> np.ndarray:
    """Return the number of each row's person, counted from 0 in the order of their first rows.

    >>> numbered(np.array(["b", "a", "b", "c"])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(persons, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def count_of(person: Tensor) -> int:
    """Return how many persons there are."""
    return int(person.max()) + 1 if len(person) else 0


def largest_of(person: Tensor) -> int:
    """Return the most rows that one person has."""
    return int(torch.bincount(person).max()) if len(person) else 0


def rows_by_person(person: Tensor, most: int, silo: str) -> tuple[Tensor, Tensor]:
    """Return each person's rows `[persons, most]`, and which of them are real.

    A person with fewer rows has the first of them again as padding. Of a person with more, `most` rows are
    drawn, in their order. What is drawn depends on the silo's name, the person's number and how many rows
    that person has, so nobody else's rows change it.
    """
    numbers = person.numpy()
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    starts = np.cumsum(counts) - counts
    kept = np.minimum(counts, most)
    real = np.arange(most) < kept[:, None]
    place = np.where(real, np.arange(most), 0)
    for i in np.flatnonzero(counts > most):
        digest = hashlib.blake2b(f"rows/{silo}/{i}/{counts[i]}".encode(), digest_size=8).digest()
        generator = np.random.default_rng(int.from_bytes(digest))
        place[i] = np.sort(generator.permutation(counts[i])[:most])
    return torch.from_numpy(order[starts[:, None] + place]), torch.from_numpy(real)


def check_rows_per_person(most: int | None, known: bool) -> None:
    """Raise `Problem` unless a limit of rows per person makes sense; `known` says if there are persons."""
    if most is None:
        return
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise Problem(f"data.rows_per_person: expected a whole number >= 1, got {most!r}")
    if not known:
        raise Problem(
            "data.rows_per_person: the data does not say whose rows are whose: name data.person_column"
        )


def check_numbers(silo: str, key: str, person: Tensor, rows: int) -> None:
    """Raise `Problem` unless a silo's persons are numbered from 0 without gaps, one number per row."""
    whole = not person.is_floating_point() and person.shape == (rows,)
    if not whole or not torch.equal(torch.unique(person), torch.arange(count_of(person))):
        raise Problem(
            f"data: silo '{silo}' needs the number of a person for each of its {rows} rows in '{key}',"
            " counted from 0 without gaps"
        )


def check_apart(silo: str, person: np.ndarray, test: np.ndarray) -> None:
    """Raise `Problem` if somebody has rows in training and in test; `test` marks the test rows."""
    both = np.intersect1d(person[test], person[~test])
    if len(both):
        raise Problem(
            f"data: silo '{silo}' has rows of {len(both)} person(s) both in training and in test by the"
            " official split; give data.test a share, such as 0.2, which keeps persons together"
        )


def blank(person: Tensor) -> Tensor:
    """Return numbers with the same public facts: how many persons and rows, and the most rows of a person."""
    rows, persons, largest = len(person), count_of(person), largest_of(person)
    numbers = torch.cat([torch.zeros(largest, dtype=torch.int64), torch.arange(1, persons)])
    rest = torch.arange(rows - len(numbers)) % max(1, persons - 1) + 1
    return torch.cat([numbers, rest])


def rows_of_groups(persons: np.ndarray, groups: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the rows of groups of persons, which are given by number: one person's after the other's."""
    numbers = numbered(persons)
    order, counts = np.argsort(numbers, kind="stable"), np.bincount(numbers)
    by_person = np.split(order, np.cumsum(counts)[:-1])
    return [np.concatenate([by_person[i] for i in members]) for members in groups]
