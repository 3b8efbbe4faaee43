"""The terms of a secure sum, and what silos contribute: clipped, noised, on the grid and in range."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import Refused
from coterie.noise.dice import KeyedDice
from coterie.noise.rounded import grid_exponent
from coterie.privacy.keys import draw_key
from coterie.secure_sum import (
    Member,
    Silo,
    contribution,
    from_cells,
    mask_upload,
    to_cells,
)
from tests.helpers import refused
from tests.secure_rounds import Round, key_of, terms_for


def test_a_silo_signs_with_the_key_of_the_plan():
    with refused("another key for 'silo-0'"):
        Silo(terms_for(3), "silo-0", draw_key("silo-0"))
    with refused("'nobody' is not a member"):
        Silo(terms_for(3), "nobody", key_of("silo-0"))


def test_terms_that_cannot_hold():
    with refused(
        "round: expected a whole number >= 0, got -1\nsecure sum: size: expected a whole number from 1"
    ):
        terms_for(round=-1, size=0)
    with refused("training: expected a name"):
        terms_for(training="")
    for bad in (0.0, -1.0, math.inf, math.nan, True, "1"):
        with refused("deviation: expected a number > 0"):
            terms_for(deviation=bad)
    with refused("a secure sum needs from 3 to 255 silos, got 2"):
        terms_for(2, dropouts=0)
    with refused("at most 1 may drop out, got 2"):
        terms_for(4, dropouts=2, colluding=1)
    with refused("deviation: 1e-14 is too small for a clip of 1"):
        terms_for(deviation=1e-14)
    whole = terms_for(3, dropouts=0)
    with refused("two of them have the same name"):
        replace(whole, members=(*whole.members[:2], Member("silo-0", "a" * 64)))
    with refused("two of them have the same key"):
        replace(whole, members=(*whole.members[:2], Member("x", whole.members[0].public)))
    with refused("the key of 'x' is not 64 hexadecimal digits"):
        replace(whole, members=(*whole.members[:2], Member("x", "A" * 64)))


def test_every_term_changes_the_digest():
    whole = terms_for(5)
    others = {"training": "other", "round": 1, "size": 7, "clip": 2.0, "deviation": 0.6, "dropouts": 0,
              "colluding": 1}  # fmt: skip
    digests = {replace(whole, **{name: value}).digest for name, value in others.items()}
    swapped = replace(whole, members=(whole.members[1], whole.members[0], *whole.members[2:]))
    assert len({whole.digest, swapped.digest, *digests}) == len(others) + 2
    assert whole.digest == terms_for(5).digest == terms_for(5, clip=1).digest


def dice(k=0):
    return KeyedDice(bytes([k]) * 32)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 1e30, 1e300])
def test_a_contribution_reaches_no_further_than_the_clip(scale):
    terms = terms_for(size=500, clip=0.7, deviation=1e-6)
    upload = scale * np.random.default_rng(0).standard_normal(500)
    cells = contribution(upload, terms, dice()) - contribution(np.zeros(500), terms, dice())
    slack = math.sqrt(500) * math.ldexp(1.0, terms.exponent)
    assert np.linalg.norm(from_cells(cells, terms)) <= 0.7 + slack
    if scale >= 1:
        assert np.linalg.norm(from_cells(cells, terms)) > 0.69
    smaller = contribution(upload, terms, dice(), clip=0.1) - contribution(np.zeros(500), terms, dice())
    assert np.linalg.norm(from_cells(smaller, terms)) <= 0.1 + slack


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_contribution_that_is_not_finite_counts_as_zeros(bad):
    terms = terms_for(size=4)
    found = contribution(np.array([1.0, bad, 0.0, 0.0]), terms, dice())
    assert (found == contribution(np.zeros(4), terms, dice())).all()


def test_contributions_that_are_refused():
    terms = terms_for(size=4)
    with refused("expected a clip from 0 to 1, got 1.5"):
        contribution(np.zeros(4), terms, dice(), clip=1.5)
    with refused("expected an upload of 4 numbers, got 5"):
        contribution(np.zeros(5), terms, dice())
    with refused("not on the grid"):
        to_cells(np.full(4, 0.3), terms)
    for far in (np.full(4, 1e9), np.array([0.0, math.nan, 0.0, 0.0])):
        with refused("further out than"):
            to_cells(far, terms)
    made = Round(terms).until("shares")
    boxes = made.messages["boxes"]["silo-0"]
    for far in (terms.reach + 1, -terms.reach - 1, -(2**63)):
        with pytest.raises(Refused, match="nothing is sent"):
            made.ask(mask_upload, "silo-0", boxes, np.array([0, 0, far, 0]))
    for wrong in (np.zeros(4), np.zeros(5, dtype=np.int64), np.zeros((4, 1), dtype=np.int64)):
        with refused("expected 4 cells of int64"):
            made.ask(mask_upload, "silo-0", boxes, wrong)


def test_cells_and_numbers_are_the_same():
    terms = terms_for(size=1000)
    values = dice().noisy(np.linspace(-1, 1, 1000), terms.own_deviation, exponent=terms.exponent)
    assert (from_cells(to_cells(values, terms), terms) == values).all()
    assert terms.exponent == grid_exponent(terms.own_deviation)
