"""Partitions: rows dealt to silos, by label or at random, with images turned and masked."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data.federation import from_table, load
from coterie.data.partition import PARTITIONS, Partition, split_into_silos
from coterie.data.sources.table import Table
from tests.helpers import LABELS, ROWS, images, refused


def dealt(name: str, silos: int = 8, seed: int = 0, x=None, y=LABELS, classes=True, **settings):
    x = images() if x is None else x
    parts = split_into_silos(x, y, classes, Partition(name, **settings), silos, seed)
    return [(name, rows, view.apply(x[rows])) for name, rows, view in parts]


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
    with refused("data.partition: 'dirichlet' needs classes, but the target is a number; use 'shards'"):
        from_table(Table("made", images(), LABELS + 0.5), partition="dirichlet")


def test_an_alpha_that_starves_silos_is_refused():
    with refused("data.alpha: with alpha 0.001 some of the 30 silos got fewer than two examples"):
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
    with refused(f"rotation needs square images, but the examples have shape {shape}"):
        dealt("rotated", x=images().reshape(ROWS, *shape))


@pytest.mark.parametrize("name", PARTITIONS)
def test_more_silos_than_examples_are_refused(name):
    with refused("data.silos: 201 silos are too many for 200 examples"):
        dealt(name, 201)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "dirichlets"}, "data.partition: unknown partition 'dirichlets'; did you mean 'dirichlet'?"),
        ({"name": "shards", "shards": 0}, "data.shards: expected a whole number >= 1, got 0"),
        ({"name": "dirichlet", "alpha": 0.0}, "data.alpha: expected a number > 0, got 0.0"),
        ({"name": "rotated", "rotations": 5}, "data.rotations: expected a whole number from 1 to 4, got 5"),
        ({"name": "rotated-masked", "mask": 1.5}, "data.mask: expected a probability from 0 to 1, got 1.5"),
    ],
)
def test_impossible_partitions_are_refused(settings, words):
    with refused(words):
        Partition(**settings)


def test_more_shards_than_examples_are_refused():
    with refused("data.shards: 20 x 11 shards are too many for 200 examples"):
        dealt("shards", 20, shards=11)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_digits_load_under_every_partition(partition):
    made = load("digits", silos=6, partition=partition, seed=2)
    assert len(made) == 6
    assert made.shape == (8, 8)
    assert made.classes == tuple("0123456789")
    assert sum(made.sizes) + sum(len(silo.test_y) for silo in made.silos) == 1797
