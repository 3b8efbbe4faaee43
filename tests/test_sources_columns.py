"""CSV and Parquet: columns become silos, targets and features, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.data.federation import load
from tests.helpers import refused
from tests.source_files import FRAME, read, written


def clinics(path: Path, **settings):
    return load(str(path), silo_column="clinic", target_column="ill", test=0.3, **settings)


@pytest.mark.parametrize("form", ["csv", "parquet", "CSV", "Parquet"])
def test_columns_become_silos_targets_and_features(tmp_path, form):
    table = read(written(tmp_path, form), silo_column="clinic", target_column="ill")
    assert table.columns == ("age", "dose", "sex_f", "sex_m")
    assert table.x.dtype == np.float32
    assert table.x[1].tolist() == [40, 1, 0, 1]
    assert table.x[:, 2].tolist() == [1, 0, 1, 0, 0, 1]
    assert table.silo.tolist() == FRAME["clinic"]
    assert table.y.tolist() == FRAME["ill"]
    (said,) = table.not_covered
    assert said.startswith("text columns became one column for each value found in the data: 'sex' (2); so a")


def test_the_federation_says_that_text_columns_were_read(tmp_path):
    made = clinics(written(tmp_path))
    assert made.names == ("a", "b")
    assert made.classes == ("no", "yes")
    assert "one column for each value found in the data: 'sex' (2)" in made.not_covered[0]
    assert clinics(written(tmp_path, drop=("sex",))).not_covered == ()


def test_without_a_silo_column_the_rows_are_dealt(tmp_path):
    made = load(str(written(tmp_path, drop=("clinic",))), target_column="ill", silos=2)
    assert made.names == ("silo-0", "silo-1")
    assert made.sizes == (2, 2)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("target", "classes"),
    [
        (["yes", "no"] * 3, ("no", "yes")),
        ([True, False] * 3, ("0", "1")),
        ([1.0, 3.0] * 3, ("1", "3")),
        ([7, -7] * 3, ("-7", "7")),
        ([0.5, 3.0] * 3, ()),
    ],
)
def test_the_kind_of_target_is_read_off_the_column(tmp_path, form, target, classes):
    assert clinics(written(tmp_path, form, ill=target)).classes == classes


def test_nullable_columns_are_read(tmp_path):
    path = written(tmp_path, "parquet", ill=pd.array([True, False] * 3, dtype="boolean"))
    assert clinics(path).classes == ("0", "1")
    with refused("column 'age' of 'clinics.parquet' has 1 missing value(s), the first in row 2"):
        clinics(written(tmp_path, "parquet", age=pd.array([1, None, 3, 4, 5, 6], dtype="Int64")))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"silo_column": "clinic"}, "data.target_column: name the column of 'clinics.csv'"),
        (
            {"target_column": "il"},
            "data.target_column: 'clinics.csv' has no column 'il'; did you mean 'ill'?",
        ),
        (
            {"target_column": "ill", "silo_column": "clinics"},
            "data.silo_column: 'clinics.csv' has no column 'clinics'; did you mean 'clinic'?",
        ),
    ],
)
def test_a_column_that_is_not_there_is_named(tmp_path, settings, words):
    with refused(words):
        read(written(tmp_path), **settings)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("ill", ["yes", "no", None, "no", None, "no"]),
        ("ill", [1.5, 2.5, None, 2.5, None, 3.5]),
        ("clinic", ["a", "a", None, "b", None, "b"]),
        ("sex", ["f", "m", None, "m", None, "m"]),
    ],
)
def test_a_missing_target_silo_or_word_names_column_and_row(tmp_path, form, column, values):
    path = written(tmp_path, form, **{column: values})
    with refused(f"column '{column}' of '{path.name}' has 2 missing value(s), the first in row 3"):
        clinics(path)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            np.nan,
            "has 2 missing value(s), the first in row 4; fill them in, delete these rows, or say in data.missing",
        ),
        (-np.inf, "has an infinite value in row 4 (and 1 more)"),
        (1e300, "has an infinite value in row 4 (and 1 more)"),
    ],
)
def test_a_feature_that_is_not_finite_names_row_and_column(tmp_path, form, value, words):
    path = written(tmp_path, form, dose=[1, 2, 3, value, 5, value])
    with refused(f"data: column 'dose' of '{path.name}' {words}"):
        clinics(path)


def test_a_file_without_features_or_rows_is_refused(tmp_path):
    with refused("'clinics.csv' has no feature column besides the target and the silo"):
        clinics(written(tmp_path, drop=("age", "sex", "dose")))
    path = tmp_path / "empty.csv"
    path.write_text("clinic,age,ill\n")
    with refused("'empty' has no rows"):
        clinics(path)


def test_a_word_among_numbers_is_told_by_column_and_row(tmp_path):
    rows = "\n".join(f"a,{value},0" for value in (1, 2, "n/k", 4))
    path = tmp_path / "t.csv"
    path.write_text(f"silo,dose,y\n{rows}\n")
    with refused(
        "column 'dose' of 't.csv' has 3 numbers and 1 value(s) that are not numbers, the first 'n/k' in row 3"
    ):
        read(path, silo_column="silo", target_column="y")


def test_a_text_column_of_very_many_values_is_refused(tmp_path):
    path = tmp_path / "many.csv"
    pd.DataFrame({"ill": [0, 1] * 120, "name": [f"n{i // 2}" for i in range(240)]}).to_csv(path, index=False)
    with refused("column 'name' of 'many.csv' is text with 120 different values, more than the 100 allowed"):
        read(path, target_column="ill")


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", b""), ("a.csv", b"\xff\xfe\0"), ("a.parquet", b"no")]
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with refused("data: cannot read '"):
        read(tmp_path / name, target_column="y")
