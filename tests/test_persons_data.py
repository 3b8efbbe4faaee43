"""Whose rows are whose: reading, splitting and choosing rows, without a look at their values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.data.federation import Silo
from coterie.data.persons import count_of, numbered, rows_by_person, rows_of_groups
from coterie.errors import Problem


def visits(people: int = 12, silos: int = 2, seed: int = 0) -> pd.DataFrame:
    """Return one to five rows for each person of each clinic."""
    generator = np.random.default_rng(seed)
    rows = []
    for silo in range(silos):
        for person in range(people):
            for _ in range(1 + (person * 7 + silo) % 5):
                age, pressure = generator.random(2)
                rows.append((f"clinic-{silo}", f"p{person}", age, pressure, int(age + pressure > 1)))
    return pd.DataFrame(rows, columns=["clinic", "patient", "age", "pressure", "ill"]).sample(
        frac=1, random_state=seed, ignore_index=True
    )


NAMED = {"silo_column": "clinic", "target_column": "ill", "person_column": "patient"}


def test_a_person_is_in_training_or_in_test_and_never_a_feature():
    frame = visits()
    federation = ct.load(frame, **NAMED, name="visits")
    assert federation.shape == (2,)
    assert federation.knows_persons
    for silo in federation.silos:
        rows = frame[frame.clinic == silo.name]
        by_features = {
            tuple(np.float32(row[:2])): row[2] for row in rows[["age", "pressure", "patient"]].to_numpy()
        }
        sides = [{by_features[tuple(np.float32(x))] for x in part.numpy()} for part in (silo.x, silo.test_x)]
        assert not sides[0] & sides[1]
        assert len(sides[0]) == count_of(silo.person) == 10
        assert len(sides[1]) == count_of(silo.test_person) == 2
        names = [by_features[tuple(np.float32(x))] for x in silo.x.numpy()]
        assert len(set(zip(names, silo.person.tolist(), strict=True))) == 10
    assert federation.sizes == tuple(len(silo.y) for silo in federation.silos)
    assert federation.protected_sizes("person") == (10, 10)
    assert federation.protected_sizes("example") == federation.sizes


@pytest.mark.parametrize("seed", range(5))
def test_whoever_is_held_out_of_one_silo_is_held_out_of_all(seed):
    """Silos of different sizes share some persons; all of their rows are on one side."""
    generator = np.random.default_rng(seed)
    rows = [
        (f"clinic-{k}", int(person), float(generator.random()))
        for k, people in enumerate((6, 15, 40))
        for person in generator.choice(60, people, replace=False)
        for _ in range(2)
    ]
    frame = pd.DataFrame(rows, columns=["clinic", "patient", "age"])
    frame["ill"] = np.arange(len(frame)) % 2
    frame["copy"] = frame.patient  # which the models may see, so that the test does
    federation = ct.load(frame, **NAMED, seed=seed, keep=["copy"], name="visits")
    train, test = (
        {int(x[1]) for silo in federation.silos for x in part(silo)}
        for part in (lambda silo: silo.x, lambda silo: silo.test_x)
    )
    assert not train & test
    for silo, people in zip(federation.silos, (6, 15, 40), strict=True):
        assert count_of(silo.person) + count_of(silo.test_person) == people
        assert round(people * 0.1) <= count_of(silo.test_person) <= round(people * 0.4)


def test_a_silo_whose_persons_are_all_taken_is_named():
    frame = pd.DataFrame(
        [(f"clinic-{k}", f"p{person}", float(person), person % 2) for k, people in enumerate(((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)))
         for person in people for _ in range(1 + k)],
        columns=["clinic", "patient", "age", "ill"],
    )  # fmt: skip
    with pytest.raises(
        Problem, match=r"have rows in other silos too, and none is left for its (training|test)"
    ):
        ct.load(frame, **NAMED, name="visits")


def test_with_one_row_per_person_nothing_changes():
    frame = visits()
    frame["patient"] = [f"n{k}" for k in range(len(frame))]
    plain = ct.load(frame.drop(columns="patient"), silo_column="clinic", target_column="ill", name="visits")
    known = ct.load(frame, **NAMED, name="visits")
    for a, b in zip(plain.silos, known.silos, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.test_y, b.test_y)
        assert b.person.tolist() == list(range(len(b.y)))
    assert plain.identities == known.identities


def test_silos_are_cut_between_persons():
    frame = visits(people=30, silos=1).drop(columns="clinic")
    plain = ct.load(frame.drop(columns="patient"), target_column="ill", silos=3, name="visits")
    known = ct.load(frame, target_column="ill", person_column="patient", silos=3, name="visits")
    assert (
        sum(map(count_of, (s.person for s in known.silos)))
        + sum(count_of(s.test_person) for s in known.silos)
        == 30
    )
    assert sum(known.sizes) + sum(len(s.test_y) for s in known.silos) == len(frame)
    assert known.source != plain.source  # other rows are in these silos, so they are other data sets
    frame["patient"] = range(len(frame))
    alone = ct.load(frame, target_column="ill", person_column="patient", silos=3, name="visits")
    assert all(torch.equal(a.x, b.x) for a, b in zip(alone.silos, plain.silos, strict=True))


def test_arrays_may_say_whose_rows_they_are(tmp_path):
    x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 2
    arrays = {"x": x, "y": y, "silo": np.repeat([0, 1], 6), "person": np.arange(12) // 2}
    np.savez(tmp_path / "visits.npz", **arrays)
    for federation in (ct.load(arrays, name="visits"), ct.load(tmp_path / "visits.npz")):
        assert federation.protected_sizes("person") == (2, 2)
        assert federation.silos[0].person.tolist() == [0, 0, 1, 1]
    assert ct.load({**arrays, "person": None}, name="visits").knows_persons is False


def test_some_rows_keep_their_persons():
    federation = ct.load(visits(), **NAMED, rows=40, name="visits")
    assert sum(len(s.y) + len(s.test_y) for s in federation.silos) == 40
    assert federation.knows_persons


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_rows_by_person_are_a_persons_own(persons, most):
    person = torch.from_numpy(numbered(np.array(persons)))
    rows, real = rows_by_person(person, most, "north")
    for i in range(count_of(person)):
        own = torch.nonzero(person == i).flatten().tolist()
        chosen = rows[i][real[i]].tolist()
        assert chosen == sorted(set(chosen))
        assert set(chosen) <= set(own)
        assert len(chosen) == min(most, len(own))
        assert set(rows[i].tolist()) <= set(own)


def test_which_rows_are_chosen_depends_on_nobody_else():
    person = torch.tensor([0, 1, 0, 1, 1, 0, 1, 2])
    rows, _ = rows_by_person(person, 2, "north")
    other = torch.tensor([0, 1, 1, 1, 0, 0, 1, 2, 2, 2])  # person 1 still has four rows
    place = {row: k for k, row in enumerate(torch.nonzero(person == 1).flatten().tolist())}
    moved = {row: k for k, row in enumerate(torch.nonzero(other == 1).flatten().tolist())}
    again, _ = rows_by_person(other, 2, "north")
    assert [place[r] for r in rows[1].tolist()] == [moved[r] for r in again[1].tolist()]
    drawn = {tuple(rows_by_person(person, 2, f"silo {k}")[0][1].tolist()) for k in range(40)}
    assert len(drawn) == 6  # all pairs of four rows turn up


def test_rows_of_groups_keep_persons_whole():
    persons = np.array(["b", "a", "b", "c", "a"])
    assert [g.tolist() for g in rows_of_groups(persons, [np.array([2, 0]), np.array([1])])] == [
        [3, 0, 2],
        [1, 4],
    ]


FRAME = visits(people=4)
ALONE = FRAME.assign(patient="p0")
MISSING = FRAME.assign(patient=[None, *FRAME.patient[1:]])
SPLIT = {
    "x": np.zeros((4, 1)), "y": np.arange(4) % 2, "silo": np.zeros(4, int), "split": np.array([0, 1, 0, 1]),
    "person": np.array([0, 0, 1, 2]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (ALONE, NAMED, "each of the 2 silos has rows of one person only, but a silo needs at least two"),
        (FRAME[(FRAME.clinic != "clinic-0") | (FRAME.patient == "p3")], NAMED,
         "all rows of silo 'clinic-0' are about one person"),
        (pd.concat([ALONE, FRAME.assign(clinic="more")]), NAMED,
         "2 silos \\('clinic-[01]', 'clinic-[01]'\\) have rows of one person only"),
        (MISSING, NAMED, "column 'patient' of 'visits' has 1 missing value"),
        (FRAME, {**NAMED, "person_column": "patent"}, "data.person_column: 'visits' has no column 'patent'"),
        (FRAME, {**NAMED, "person_column": "ill"}, "data.person_column: 'ill' is the column to predict too"),
        (FRAME, {**NAMED, "person_column": "clinic"}, "data.person_column: 'clinic' is the silo_column too"),
        (FRAME, {**NAMED, "drop": ["patient"]}, "data.drop: 'patient' is the person_column"),
        (FRAME.drop(columns="patient"), {"silo_column": "clinic", "target_column": "ill", "rows_per_person": 3},
         "data.rows_per_person: the data does not say whose rows are whose"),
        (FRAME, {**NAMED, "rows_per_person": 0}, "data.rows_per_person: expected"),
        (FRAME.drop(columns="clinic"), {"target_column": "ill", "person_column": "patient", "partition": "shards",
                                        "silos": 2}, "data.partition: 'shards' distributes rows by their labels"),
        (FRAME.drop(columns="clinic"), {"target_column": "ill", "person_column": "patient", "silos": 5},
         "data.silos: 5 silos are too many for 4 persons"),
        (SPLIT, {"test": "official"}, "1 person\\(s\\) have rows both in training and in test"),
        ({**SPLIT, "person": np.array([0, 1, np.nan, 2])}, {}, "data: 'person' is missing in row 3"),
        ({**SPLIT, "person": np.zeros((4, 2))}, {}, "'person' of 'visits' must hold one number or text per row"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(source, options, message):
    with pytest.raises(Problem, match=message):
        ct.load(source, **options, name="visits")


@pytest.mark.parametrize("person", [torch.tensor([0, 2]), torch.tensor([0.0, 1.0]), torch.tensor([0])])
def test_a_silo_made_by_hand_needs_numbers_without_gaps(person):
    with pytest.raises(Problem, match="counted from 0 without gaps"):
        Silo("north", torch.zeros(2, 1), torch.zeros(2), torch.zeros(1, 1), torch.zeros(1), person)
