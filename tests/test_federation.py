"""From rows to silos: partitions, the split within each silo, and what is done to the numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from coterie.errors import Problem
from coterie.federation import from_table, load
from coterie.partition import PARTITIONS, Partition, split_into_silos
from coterie.sources.table import Table

ROWS = 200
LABELS = np.random.default_rng(0).permutation(np.arange(ROWS) % 10)


def test_ranges_by_column_and_text_columns_left_alone(tmp_path):
    from coterie.federation import load

    path = tmp_path / "t.csv"
    path.write_text("silo,age,dose,ward,skip,y\n" + "a,50,2.5,x,d1,0\na,100,10,y,d2,1\na,0,0,x,d3,1\n" * 4)
    options = {"silo_column": "silo", "target_column": "y", "drop": ["skip"]}
    whole = load(str(path), feature_range=(0, 100), **options).silos[0].x
    assert set(whole[:, 2:].flatten().tolist()) == {0.0, 1.0}
    assert set(whole[:, 0].tolist()) <= {0.0, 0.5, 1.0}
    named = load(str(path), feature_range={"dose": (0, 5)}, **options).silos[0].x
    assert set(named[:, 0].tolist()) <= {0.0, 50.0, 100.0}
    assert set(named[:, 1].tolist()) <= {0.0, 0.5, 1.0}
    with pytest.raises(Problem, match="has no column 'dosis'; did you mean 'dose'"):
        load(str(path), feature_range={"dosis": (0, 5)}, **options)
    with pytest.raises(Problem, match=r"data\.drop: 't\.csv' has no column 'date'"):
        load(str(path), **(options | {"drop": ["date"]}))


def refused(match: str):
    """Expect one sentence that contains the words given."""
    return pytest.raises(Problem, match=r"\A[^\n]*" + re.escape(match) + r"[^\n]*\Z")


def images(kind=np.uint8) -> np.ndarray:
    """Different images of 6 x 6 pixels, none of them white anywhere."""
    pixels = np.random.default_rng(1).integers(0, 250, size=(ROWS, 6, 6))
    return pixels.astype(np.uint8) if kind == np.uint8 else (pixels / 256).astype(np.float32)


def dealt(name: str, silos: int = 8, seed: int = 0, x=None, y=LABELS, classes=True, **settings):
    x = images() if x is None else x
    return split_into_silos(x, y, classes, Partition(name, **settings), silos, seed)


# Partitions


@pytest.mark.parametrize("silos", [1, 7, 20])
@pytest.mark.parametrize("name", PARTITIONS)
def test_every_row_is_dealt_exactly_once(name, silos):
    parts = dealt(name, silos)
    assert len(parts) == len({name for name, _, _ in parts}) == silos
    assert sorted(np.concatenate([rows for _, rows, _ in parts])) == list(range(ROWS))
    assert all(len(rows) == len(own) for _, rows, own in parts)


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_follow_the_seed(name):
    first, again, other = (dealt(name, seed=seed) for seed in (3, 3, 4))
    for (_, rows, own), (_, same_rows, same_own) in zip(first, again, strict=True):
        assert np.array_equal(rows, same_rows)
        assert np.array_equal(own, same_own)
    assert any(not np.array_equal(a[1], b[1]) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["iid", "shards", "dirichlet"])
def test_features_are_untouched_unless_rotated(name):
    for _, rows, own in dealt(name):
        assert np.array_equal(own, images()[rows])


def test_iid_silos_are_equal_in_size_and_mixed():
    parts = dealt("iid", 6)
    assert {len(rows) for _, rows, _ in parts} == {33, 34}
    assert min(len(np.unique(LABELS[rows])) for _, rows, _ in parts) >= 8


@pytest.mark.parametrize(("silos", "shards"), [(10, 1), (5, 2), (2, 5)])
def test_shards_give_each_silo_few_labels(silos, shards):
    """Ten pieces of ten labels with equally many rows lie within a label each."""
    parts = dealt("shards", silos, shards=shards)
    assert [len(np.unique(LABELS[rows])) for _, rows, _ in parts] == [shards] * silos


def skew(alpha: float) -> float:
    """Give the share of a silo's commonest label, averaged over silos and seeds."""
    parts = [part for seed in range(5) for part in dealt("dirichlet", 5, seed, alpha=alpha)]
    return float(np.mean([np.bincount(LABELS[rows]).max() / len(rows) for _, rows, _ in parts]))


def test_a_small_alpha_is_skewed_and_a_large_one_is_not():
    assert skew(1000.0) < 0.16
    assert skew(1.0) < skew(0.1)
    assert skew(0.1) > 0.35


def test_dirichlet_needs_classes():
    with refused("data.partition: 'dirichlet' needs classes, the target is a number"):
        from_table(Table("made", images(), LABELS + 0.5), partition="dirichlet")


def test_an_alpha_that_starves_silos_is_refused():
    with refused("data.alpha: with alpha 0.001 some of the 30 silos get fewer than two examples"):
        dealt("dirichlet", 30, alpha=0.001)


@pytest.mark.parametrize("name", ["rotated", "rotated-masked"])
@pytest.mark.parametrize(("silos", "rotations"), [(8, 4), (8, 2), (6, 3), (3, 1)])
def test_groups_of_silos_are_rotated_by_quarter_turns(name, silos, rotations):
    """Pixel (i, j) of a 6 x 6 image comes from (j, 5 - i), once for each quarter turn."""
    i, j = np.indices((6, 6))
    for k, (_, rows, own) in enumerate(dealt(name, silos, rotations=rotations, mask=0.0)):
        expected = images()[rows]
        for _ in range(k // (silos // rotations)):
            expected = expected[:, j, 5 - i]
        assert np.array_equal(own, expected)


@pytest.mark.parametrize(("kind", "white"), [(np.uint8, 255), (np.float32, 1)])
def test_each_silo_has_its_own_mask_of_white_patches(kind, white):
    masks = []
    x = images(kind)
    plain = dealt("rotated", x=x)
    for (_, rows, own), (_, same_rows, turned) in zip(
        dealt("rotated-masked", x=x, mask=0.3), plain, strict=True
    ):
        mask = (own == white).all(0)
        patches = mask.reshape(3, 2, 3, 2).transpose(0, 2, 1, 3).reshape(9, 4)
        assert np.array_equal(rows, same_rows)
        assert own.dtype == kind
        assert (patches.all(1) == patches.any(1)).all()
        assert np.array_equal(own, np.where(mask, x.dtype.type(white), turned))
        masks.append(mask)
    assert len({mask.tobytes() for mask in masks}) >= 6
    assert 0.15 < np.mean(masks) < 0.45
    assert np.array_equal(x, images(kind))


@pytest.mark.parametrize(("mask", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_the_mask_is_a_chance(mask, share):
    assert all((own == 255).mean() == share for _, _, own in dealt("rotated-masked", mask=mask))


def test_masks_fit_images_of_odd_size_and_colour():
    x = np.zeros((ROWS, 5, 5, 3), np.uint8)
    for _, _, own in dealt("rotated-masked", x=x, mask=0.5):
        assert own.shape[1:] == (5, 5, 3)
        assert np.array_equal((own == 255).any(-1), (own == 255).all(-1))


@pytest.mark.parametrize("shape", [(36,), (4, 9)])
def test_rotation_needs_square_images(shape):
    with refused(f"rotation needs square images, the examples have shape {shape}"):
        dealt("rotated", x=images().reshape(ROWS, *shape))


@pytest.mark.parametrize("name", PARTITIONS)
def test_more_silos_than_examples_are_refused(name):
    with refused("data.silos: 201 silos for 200 examples"):
        dealt(name, 201)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "dirichlets"}, "data.partition: unknown partition 'dirichlets'; did you mean 'dirichlet'?"),
        ({"name": "shards", "shards": 0}, "data.shards: expected a whole number >= 1, got 0"),
        ({"name": "dirichlet", "alpha": 0.0}, "data.alpha: expected a number > 0, got 0.0"),
        ({"name": "rotated", "rotations": 5}, "data.rotations: expected a whole number from 1 to 4, got 5"),
        ({"name": "rotated-masked", "mask": 1.5}, "data.mask: expected a chance from 0 to 1, got 1.5"),
    ],
)
def test_impossible_partitions_are_refused(settings, words):
    with refused(words):
        Partition(**settings)


def test_more_shards_than_examples_are_refused():
    with refused("data.shards: 20 x 11 shards for 200 examples"):
        dealt("shards", 20, shards=11)


# The split within each silo


def numbered(sizes=(20, 7, 2, 50)) -> Table:
    """Rows that carry their own number, two classes."""
    rows = sum(sizes)
    x = np.stack([np.arange(rows), np.zeros(rows)], 1)
    return Table("made", x, np.arange(rows) % 2, np.repeat(list("abcdefg"[: len(sizes)]), sizes))


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


# Features and targets


def test_bytes_stay_bytes_and_are_scaled_late():
    made = from_table(Table("made", images(), LABELS))
    assert made.silos[0].x.dtype == torch.uint8
    assert made.scale == 1 / 255
    assert from_table(Table("made", images(), LABELS), features="none").scale == 1
    assert from_table(Table("made", images(np.float32), LABELS)).scale == 1


def test_rotated_bytes_stay_bytes():
    made = from_table(Table("made", images(), LABELS), partition="rotated-masked")
    assert all(silo.x.dtype == torch.uint8 and silo.x.is_contiguous() for silo in made.silos)


def test_other_numbers_become_floats():
    made = from_table(numbered())
    assert made.silos[0].x.dtype == made.silos[0].test_x.dtype == torch.float32
    assert made.silos[0].y.dtype == torch.int64
    assert from_table(Table("made", images(), LABELS / 3)).silos[0].y.dtype == torch.float32


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_log_is_log_of_one_more(kind):
    plain = from_table(Table("made", images(kind), LABELS), features="none")
    made = from_table(Table("made", images(kind), LABELS), features="log")
    assert made.scale == 1
    for silo, source in zip(made.silos, plain.silos, strict=True):
        torch.testing.assert_close(silo.x, torch.log(1 + source.x.float()))
        torch.testing.assert_close(silo.test_x, torch.log(1 + source.test_x.float()))


def test_log_of_what_is_below_zero_is_refused():
    with refused("data.features: 'log' needs values >= 0"):
        from_table(Table("made", images(np.float32) - 1, LABELS), features="log")


def test_standardize_uses_the_training_rows_of_each_silo():
    plain = from_table(numbered())
    made = from_table(numbered(), features="standardize")
    assert made.not_covered == ("features standardized with each silo's own statistics, without noise",)
    assert plain.not_covered == ()
    for silo, source in zip(made.silos, plain.silos, strict=True):
        column = source.x[:, 0]
        deviation = column.std(correction=0) if len(column) > 1 else 1.0
        torch.testing.assert_close(silo.x[:, 0], (column - column.mean()) / deviation)
        torch.testing.assert_close(silo.test_x[:, 0], (source.test_x[:, 0] - column.mean()) / deviation)
        assert not silo.x[:, 1].any()


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1e6])
def test_a_constant_column_is_standardized_to_zero(constant):
    x = np.full((ROWS, 2), constant)
    x[:, 1] = np.arange(ROWS)
    made = from_table(Table("made", x, LABELS), features="standardize")
    assert all(not silo.x[:, 0].any() and not silo.test_x[:, 0].any() for silo in made.silos)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("limits", [(10, 60), (0, 300), (-5.0, 20.0)])
def test_the_feature_range_is_clipped_to_zero_and_one(kind, limits):
    low, high = limits
    x = np.arange(2 * ROWS).reshape(ROWS, 2) % 100
    made = from_table(Table("made", x.astype(kind), LABELS), silos=1, feature_range=limits)
    source = from_table(Table("made", x.astype(kind), LABELS), silos=1, features="none")
    expected = (source.silos[0].x.double().clip(low, high) - low) / (high - low)
    torch.testing.assert_close(made.silos[0].x, expected.float())
    assert made.scale == 1


def test_the_target_range_is_clipped_to_zero_and_one():
    table = Table("made", images(), np.arange(ROWS) + 0.5)
    source = from_table(table, silos=1).silos[0]
    made = from_table(table, silos=1, target_range=(50, 100)).silos[0]
    torch.testing.assert_close(made.y, (source.y.clip(50, 100) - 50) / 50)
    torch.testing.assert_close(made.test_y, (source.test_y.clip(50, 100) - 50) / 50)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"features": "standardise"},
            "data.features: unknown choice 'standardise'; did you mean 'standardize'?",
        ),
        ({"kind": "regress"}, "data.kind: unknown choice 'regress'; did you mean 'regression'?"),
        ({"target_range": (0, 1)}, "data.target_range: the target is a class, not a number"),
        ({"feature_range": (1, 1)}, "data.feature_range: expected [lowest, highest], got [1, 1]"),
        (
            {"target_range": (2, 1), "kind": "regression"},
            "data.target_range: expected [lowest, highest], got [2, 1]",
        ),
    ],
)
def test_impossible_choices_are_refused(settings, words):
    with refused(words):
        from_table(numbered(), **settings)


@pytest.mark.parametrize(
    ("y", "kind", "classes"),
    [
        ([0, 5], "auto", ("0", "5")),
        ([0, 5], "regression", ()),
        ([0.0, 5.0], "auto", ()),
        ([0.0, 5.0], "classification", ("0.0", "5.0")),
        ([False, True], "auto", ("False", "True")),
        (["no", "yes"], "auto", ("no", "yes")),
    ],
)
def test_the_kind_decides_between_classes_and_numbers(y, kind, classes):
    made = from_table(Table("made", images(), np.array(y * 100)), kind=kind)
    assert made.classes == classes
    assert made.silos[0].y.dtype == (torch.int64 if classes else torch.float32)


def test_words_are_no_numbers():
    with refused("the targets of 'made', which are not classes for this loss, must be numbers"):
        from_table(Table("made", images(), np.array(["no", "yes"] * 100)), kind="regression")


def test_classes_are_numbered_in_order():
    made = from_table(Table("made", np.eye(6), np.array([30, 7, 30, 7, 7, 30])), silos=1, test=0.4)
    silo = made.silos[0]
    assert made.classes == ("7", "30")
    rows = torch.cat([silo.x, silo.test_x]).argmax(1)
    codes = torch.cat([silo.y, silo.test_y])[rows.argsort()]
    assert codes.tolist() == [1, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_digits_load_under_every_partition(partition):
    made = load("digits", silos=6, partition=partition, seed=2)
    assert len(made) == 6
    assert made.shape == (8, 8)
    assert made.classes == tuple("0123456789")
    assert sum(made.sizes) + sum(len(silo.test_y) for silo in made.silos) == 1797
