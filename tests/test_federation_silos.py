"""Which silos there are, and the split into training and test rows within each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.data.federation import from_table
from coterie.data.sources.table import Table
from tests.helpers import LABELS, ROWS, images, numbered, refused

# The split within each silo


def rows_of(made) -> list[tuple[list[float], list[float]]]:
    return [(silo.x[:, 0].tolist(), silo.test_x[:, 0].tolist()) for silo in made.silos]


@pytest.mark.parametrize("test", [0.01, 0.2, 0.5, 0.99])
def test_each_silo_is_split_into_disjoint_complete_parts(test):
    start = 0
    for (train, held_out), size in zip(
        rows_of(from_table(numbered(), test=test, seed=1)), (20, 7, 2, 50), strict=True
    ):
        assert sorted(train + held_out) == list(range(start, start + size))
        assert len(held_out) == min(max(1, round(test * size)), size - 1)
        assert len(train) >= 1
        start += size


def test_targets_stay_with_their_rows():
    for silo in from_table(numbered()).silos:
        assert torch.equal(silo.x[:, 0] % 2, silo.y.float())
        assert torch.equal(silo.test_x[:, 0] % 2, silo.test_y.float())


def test_the_split_follows_the_seed():
    first, again, other = (rows_of(from_table(numbered(), seed=seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_the_split_of_a_silo_does_not_depend_on_the_others():
    assert rows_of(from_table(numbered(), silos=2)) == [
        rows_of(from_table(numbered()))[0],
        rows_of(from_table(numbered()))[3],
    ]


def test_silos_of_one_size_are_split_apart():
    (_, first), (_, second) = rows_of(from_table(numbered((40, 40))))
    assert sorted(first) != sorted(row - 40 for row in second)


def test_the_official_split_is_taken_as_it_is():
    table = numbered((6, 6))
    split = np.array([0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1])
    table = Table("made", table.x, table.y, table.silo, split)
    assert rows_of(from_table(table, test="official")) == [([0, 1, 2, 4], [3, 5]), ([7, 8, 9, 10], [6, 11])]
    with refused("silo 'b' has no training example in the official split: give data.test a share"):
        from_table(
            Table("made", table.x, table.y, table.silo, np.where(np.arange(12) < 6, split, 1)),
            test="official",
        )


def test_dealt_silos_keep_the_official_split():
    split = np.arange(ROWS) % 4 == 0
    table = Table("made", np.arange(2 * ROWS).reshape(ROWS, 2) / 2, LABELS, None, split.astype(int))
    for train, held_out in rows_of(from_table(table, silos=4, test="official")):
        assert not split[np.array(train, int)].any()
        assert split[np.array(held_out, int)].all()


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("official", "data.test: the data has no official split"),
        ("half", "data.test: expected a share between 0 and 1 or 'official', got 'half'"),
        (0.0, "got 0.0"),
        (1.0, "got 1.0"),
        (float("nan"), "got nan"),
    ],
)
def test_impossible_splits_are_refused(test, words):
    with refused(words):
        from_table(numbered(), test=test)


def test_a_silo_with_one_example_is_refused():
    with refused("data: silo 'b' has 1 example(s), it needs at least 2 (some to train, some to test)"):
        from_table(numbered((5, 1, 5)))
    with refused("data: silo 'silo-0' has 1 example(s), it needs at least 2 (some to train, some to test)"):
        from_table(Table("made", np.zeros((4, 2)), np.arange(4) % 2), silos=4)


def test_a_label_never_seen_in_training_is_refused():
    table = numbered((6, 6))
    y, split = (
        np.array([0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 2, 2]),
        np.array([0, 0, 0, 1, 0, 1] + [0] * 4 + [1] * 2),
    )
    with refused("silo 'b' has the label '2' among its test examples, which no silo has in training"):
        from_table(Table("made", table.x, y, table.silo, split), test="official")
    y[0] = 2
    assert len(from_table(Table("made", table.x, y, table.silo, split), test="official")) == 2


# Which silos


def test_silos_come_in_the_order_of_the_data():
    silo = np.array(["z", "a", "z", "a", "m", "m", "z"])
    made = from_table(Table("made", np.eye(7), np.arange(7) % 2, silo))
    assert made.names == ("z", "a", "m")
    assert made.sizes == (2, 1, 1)
    assert len(made) == 3
    assert made.shape == (7,)


def test_min_examples_leaves_small_silos_out():
    assert from_table(numbered((20, 1, 7, 50)), min_examples=7).names == ("a", "c", "d")
    with refused("data.min_examples: no silo has 51 examples, the most is 50"):
        from_table(numbered(), min_examples=51)


def test_silos_keeps_the_largest_in_their_order():
    assert from_table(numbered((20, 50, 7, 50)), silos=2).names == ("b", "d")
    assert from_table(numbered((20, 50, 7, 50)), silos=3).names == ("a", "b", "d")
    with refused("data.silos: expected at most the 4 silos the data has, got 5"):
        from_table(numbered(), silos=5)


@pytest.mark.parametrize("silos", [0, -1])
@pytest.mark.parametrize("source", [numbered(), Table("made", images(), LABELS)])
def test_no_silos_at_all_are_refused(source, silos):
    with refused(f"data.silos: expected a whole number >= 1, got {silos}"):
        from_table(source, silos=silos)


def test_a_partition_goes_before_the_silos_of_the_data():
    made = from_table(numbered(), partition="iid", silos=3)
    assert made.names == ("silo-0", "silo-1", "silo-2")


def test_picked_silos_come_in_the_order_named():
    made = from_table(numbered())
    picked = made.pick(("d", "a"))
    assert picked.names == ("d", "a")
    assert picked.silos[0] is made.silos[3]
    with refused("'made' has no silo 'h'; known: a, b, c, d"):
        made.pick(("h",))
