"""Whose rows are whose: one person may have many rows in a silo.

Persons are numbered in the order of their first rows. Nothing here looks at features or targets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import Problem

MOST_ROWS = 8  # rows of one person that a training uses, unless data.rows_per_person says otherwise
LIMIT = 10_000  # of that number: every step makes room for so many rows of each person
PLACE = 32  # bytes that the place of one row takes while places are found


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


@dataclass(frozen=True)
class PersonFacts:
    """What is public about the persons of a silo: how many there are in training and in test.

    `largest` is the most rows that one of them has in training.
    """

    train: int
    test: int
    largest: int


def facts_of_persons(person: Tensor | None, test_person: Tensor | None) -> PersonFacts | None:
    """Return what is public about persons; None if nobody knows whose rows are whose."""
    if person is None or test_person is None:
        return None
    return PersonFacts(count_of(person), count_of(test_person), largest_of(person))


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
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= LIMIT:
        raise Problem(f"data.rows_per_person: expected a whole number from 1 to {LIMIT:,}, got {most!r}")
    if not known:
        raise Problem(
            "data.rows_per_person: the data does not say whose rows are whose: name data.person_column"
        )


def check_room(each: int | None, persons: Sequence[int], memory: int) -> None:
    """Raise `Problem` if the places of a silo's rows, `each` for every person, take more than `memory` bytes.

    `persons` says how many each silo has. Padding counts, so one person with very many rows costs as much as
    if all had so many.
    """
    needed = PLACE * max(persons) * (each or 0)
    if needed > memory:
        raise Problem(
            f"data.rows_per_person: room for {each:,} rows of each of {max(persons):,} persons takes"
            f" {needed / 2**20:,.0f} MB, but train.memory is {memory / 2**20:,.0f} MB: use fewer rows of each"
            " person, or raise the limit"
        )


def check_numbers(silo: str, key: str, person: Tensor, rows: int) -> None:
    """Raise `Problem` unless a silo's persons are numbered from 0 without gaps, one number per row."""
    whole = not person.is_floating_point() and person.shape == (rows,)
    if not whole or not torch.equal(torch.unique(person), torch.arange(count_of(person))):
        raise Problem(
            f"data: silo '{silo}' needs the number of a person for each of its {rows} rows in '{key}',"
            " counted from 0 without gaps"
        )


def needs_persons(known: bool) -> None:
    """Raise `Problem` if persons are to be protected, but nobody knows whose rows are whose."""
    if not known:
        raise Problem(
            "privacy.unit: 'person' needs to know whose rows are whose: name data.person_column, or give an"
            " array 'person'"
        )


def check_apart(person: np.ndarray, test: np.ndarray) -> None:
    """Raise `Problem` if somebody has rows in training and in test; `test` marks the test rows."""
    both = np.intersect1d(person[test], person[~test])
    if len(both):
        raise Problem(
            f"data: {len(both)} person(s) have rows both in training and in test by the official split; give"
            " data.test a share, such as 0.2, which keeps persons together"
        )


def rows_of_groups(persons: np.ndarray, groups: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the rows of groups of persons, which are given by number: one person's after the other's."""
    numbers = numbered(persons)
    order, counts = np.argsort(numbers, kind="stable"), np.bincount(numbers)
    by_person = np.split(order, np.cumsum(counts)[:-1])
    return [np.concatenate([by_person[i] for i in members]) for members in groups]
