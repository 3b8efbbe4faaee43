"""What is done to features and targets: scaling, ranges, standardizing, and classes or numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.data.federation import from_table
from coterie.data.sources.table import Table
from coterie.errors import Problem
from tests.helpers import LABELS, ROWS, images, numbered, refused


def test_ranges_by_column_and_text_columns_left_alone(tmp_path):
    from coterie.data.federation import load

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


def test_invert_exchanges_dark_and_light():
    plain = from_table(Table("made", images(), LABELS))
    made = from_table(Table("made", images(), LABELS), features="invert")
    for silo, source in zip(made.silos, plain.silos, strict=True):
        torch.testing.assert_close(silo.x * made.scale, 1 - source.x * plain.scale)
        torch.testing.assert_close(silo.test_x * made.scale, 1 - source.test_x * plain.scale)
    assert made.not_covered == ()
    with refused("'invert' is for images in bytes"):
        from_table(Table("made", images(np.float32), LABELS), features="invert")


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
