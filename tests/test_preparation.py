"""New raw rows go the way that the examples of a federation went, to the bit; wrong rows are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.io import savemat

from coterie.data.federation import Federation, from_table, load
from coterie.data.partition import PARTITIONS
from coterie.data.preparation import Preparation
from coterie.data.preprocess import FEATURES
from coterie.data.sources.catalogue import find_table
from coterie.data.sources.memory import read as read_memory
from coterie.data.sources.table import Table
from tests.helpers import LABELS, ROWS, images, refused
from tests.source_files import archive, cell, leaf_text, write_har, write_idx


def row_numbers(table: Table, **options) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The rows of the table that each silo trains and tests with, found by features that are row numbers."""
    shape = table.x.shape[1:] if "rotated" in str(options.get("partition")) else (1,)
    x = np.arange(len(table.y), dtype=np.float32) + 2  # a mask paints 1
    x = np.broadcast_to(x.reshape(-1, *[1] * len(shape)), (len(x), *shape))
    plain = replace(table, x=np.ascontiguousarray(x), columns=("number",), indicators=(), raw_columns=())
    numbered = from_table(plain, **options)
    return {
        silo.name: tuple(part.flatten(1).amax(1).long() - 2 for part in (silo.x, silo.test_x))
        for silo in numbered.silos
    }


def same(before: torch.Tensor, after: torch.Tensor) -> None:
    assert before.dtype == after.dtype
    assert before.shape == after.shape
    assert before.numpy().tobytes() == after.numpy().tobytes()


def check(federation: Federation, table: Table, raw, **options) -> None:
    """Prepare raw rows for each silo, all at once, alone, and by a record that went through JSON."""
    preparation = federation.preparation
    copied = Preparation.from_json(json.loads(json.dumps(preparation.to_json(), allow_nan=False)))
    for silo in federation.silos:
        for places, tensor in zip(
            row_numbers(table, **options)[silo.name], (silo.x, silo.test_x), strict=True
        ):
            take = raw.iloc if isinstance(raw, pd.DataFrame) else raw
            same(preparation.prepare(take[places.numpy()], silo.name), tensor)
            same(copied.prepare(raw, silo.name)[places], tensor)
            first = int(places[0])
            same(copied.pick([silo.name]).prepare(take[first : first + 1], silo.name), tensor[:1])


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("features", FEATURES)
def test_arrays_with_every_choice_of_features(kind, features):
    if features == "invert" and kind != np.uint8:
        pytest.skip("for bytes only")
    raw = images().astype(kind) if kind == np.uint8 or features == "ids" else (images() / 7).astype(kind)
    table, options = Table("made", raw, LABELS), {"silos": 4, "seed": 3}
    federation = from_table(table, features=features, **options)
    check(federation, table, raw, **options)
    check(federation, table, raw.reshape(ROWS, 36), **options)
    silo = federation.names[1]
    inputs = federation.preparation.inputs(raw, silo)
    assert inputs.dtype == (torch.int64 if features == "ids" else torch.float32)
    same(inputs.float(), federation.preparation.prepare(raw, silo).float() * federation.scale)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize(
    "given", [{"feature_range": (3, 90.5)}, {"norm": 0.7}, {"norm": 300, "feature_range": (0, 255)}]
)
def test_public_bounds(kind, given):
    raw = images() if kind == np.uint8 else images() / np.float32(7)
    table, options = Table("made", raw, LABELS), {"silos": 3}
    check(from_table(table, **given, **options), table, raw, **options)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("partition", PARTITIONS)
def test_partitions_are_part_of_what_a_silo_sees(partition, features):
    table, options = Table("made", images(), LABELS), {"silos": 5, "partition": partition}
    check(from_table(table, features=features, **options), table, images(), **options)


@pytest.fixture
def frame() -> pd.DataFrame:
    generator = np.random.default_rng(4)
    return pd.DataFrame(
        {
            "ward": generator.choice(["north", "süd", "1", "01"], 60, p=[0.4, 0.4, 0.1, 0.1]),
            "age": generator.integers(18, 90, 60),
            "clinic": generator.choice(["a", "b", "c"], 60),
            "dose": generator.normal(size=60) * 1e3,
            "sex": generator.choice(["f", "m"], 60),
            "smokes": generator.random(60) < 0.5,
            "note": ["x"] * 60,
            "ill": generator.choice(["yes", "no"], 60),
        }
    )


COLUMNS = {"silo_column": "clinic", "target_column": "ill"}


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"features": "standardize"},
        {"features": "unit"},
        {"feature_range": (-10, 60)},
        {"feature_range": {"age": (18, 90), "dose": (-1000, 1000)}, "features": "log"},
        {"norm": 100.0},
    ],
)
def test_columns(tmp_path, frame, form, given):
    path = tmp_path / f"clinics.{form}"
    frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
    table = find_table(str(path), **COLUMNS, drop=["note"])
    federation = load(str(path), **COLUMNS, drop=["note"], **given)
    whole = pd.read_csv(path, dtype={"ward": str}) if form == "csv" else pd.read_parquet(path)
    check(federation, table, whole)
    check(federation, table, whole[["sex", "smokes", "dose", "ward", "age"]])
    same(federation.preparation.prepare(path, "b"), federation.preparation.prepare(whole, "b"))


def test_text_of_a_file_is_taken_as_it_is_written(tmp_path, frame):
    """A file with rows of one ward only, which look like numbers."""
    path, new = tmp_path / "clinics.csv", tmp_path / "new.csv"
    frame.to_csv(path, index=False)
    preparation = load(str(path), **COLUMNS, drop=["note"]).preparation
    frame[frame.ward == "01"].to_csv(new, index=False)
    same(preparation.prepare(new, "a"), preparation.prepare(path, "a")[(frame.ward == "01").tolist()])


def test_columns_of_numbers_may_come_as_an_array(tmp_path, frame):
    path = tmp_path / "clinics.csv"
    frame.drop(columns=["ward", "sex"]).to_csv(path, index=False)
    preparation = load(str(path), **COLUMNS, drop=["note"]).preparation
    same(
        preparation.prepare(frame[["age", "dose", "smokes"]].to_numpy(float), "a"),
        preparation.prepare(path, "a"),
    )


def test_data_in_memory(frame):
    federation = load(frame, **COLUMNS, drop=["note"], features="standardize")
    check(federation, read_memory(frame, "made", **COLUMNS, drop=["note"]), frame)
    arrays = {"x": images(), "y": LABELS, "silo": np.arange(ROWS) % 7}
    check(load(arrays), read_memory(arrays, "made"), images())


def test_every_other_source(tmp_path):
    digits = find_table("digits")
    check(load("digits", silos=3), digits, digits.x, silos=3)
    path = archive(tmp_path, x=images(), y=LABELS, silo=np.arange(ROWS) % 7)
    check(load(str(path)), find_table(str(path)), images())
    folder = write_idx(tmp_path)
    check(load(str(folder), silos=1), find_table(str(folder)), find_table(str(folder)).x, silos=1)
    (tmp_path / "leaf.json").write_text(leaf_text(ann=[0, 1, 0, 1], bob=[1, 0, 1]))
    leaf = find_table(str(tmp_path / "leaf.json"))
    check(load(str(tmp_path / "leaf.json")), leaf, leaf.x.reshape(7, 784))
    har = find_table(str(write_har(tmp_path, test=False)))
    check(load(str(tmp_path / "UCI HAR Dataset"), features="unit", seed=2), har, har.x, seed=2)
    generator = np.random.default_rng(0)
    x = [generator.normal(size=(n, 5)) for n in (6, 9)]
    savemat(tmp_path / "m.mat", {"X": cell(x), "Y": cell([rows[:, :1] for rows in x])})
    matlab = find_table(str(tmp_path / "m.mat"))
    check(load(str(tmp_path / "m.mat"), features="standardize"), matlab, np.concatenate(x))


def test_a_federation_of_some_silos_knows_nothing_of_the_others():
    made = from_table(Table("made", images(), LABELS), silos=4, features="standardize")
    assert set(made.preparation.silos) == set(made.names)
    assert list(made.pick(["silo-2"]).preparation.silos) == ["silo-2"]
    with refused("there is no silo 'silo-9'; did you mean"):
        made.preparation.prepare(images(), "silo-9")


def test_another_scale_is_the_preparation_s_too():
    made = replace(from_table(Table("made", images(), LABELS)), scale=0.25)
    same(made.preparation.inputs(images(), "silo-0"), torch.from_numpy(images()).float() * 0.25)


def test_the_record_says_what_no_budget_covers():
    made = from_table(Table("made", images(), LABELS), features="standardize")
    assert made.preparation.not_covered == made.not_covered
    assert "own statistics" in made.preparation.to_json()["not_covered"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.drop(columns=["age", "dose"]), "rows: missing column(s): 'age', 'dose'"),
        (lambda f: f.rename(columns={"age": "agee"}), "missing column(s): 'age'; unknown column(s): 'agee'; did you mean 'age'?"),
        (lambda f: f.assign(extra=1), "unknown column(s): 'extra'; remove what is no feature"),
        (lambda f: f.assign(**{f"e{k}": 1 for k in range(7)}), "'e0', 'e1', 'e2', 'e3', 'e4' and 2 more"),
        (lambda f: f.assign(age=["x", *f.age[1:]]), "column 'age' must hold numbers, got 'x' in row 1"),
        (lambda f: f.assign(age=pd.Timestamp(0)), "column 'age' must hold numbers, got datetime64"),
        (lambda f: f.assign(dose=[1.0, None, None, *f.dose[3:]]), "column 'dose' has no value in row 2 (and 1 more)"),
        (lambda f: f.assign(dose=[*f.dose[:-1], 1e300]), "column 'dose' has an infinite value in row 60"),
        (lambda f: f.assign(sex="d"), "column 'sex' has the unknown value 'd' in row 1 (and 59 more); known: 'f', 'm'"),
        (lambda f: f.assign(sex=[None, *f.sex[1:]]), "column 'sex' has no value in row 1"),
        (lambda f: f.iloc[:0], "rows: expected at least one row"),
        (lambda f: pd.concat([f, f[["age"]]], axis=1), "repeated column(s): 'age'"),
        (lambda f: f[["age", "dose"]].to_numpy(), "some of text: give a DataFrame with 'ward', 'age', 'dose', 'sex', 'smokes'"),
        (
            lambda f: f.assign(age="x", sex="d").drop(columns="dose"),
            "missing column(s): 'dose'; column 'age' must hold numbers, got 'x' in row 1 (and 59 more); column 'sex'",
        ),
        (lambda _: "nowhere.csv", "cannot read 'nowhere.csv'"),
    ],
)  # fmt: skip
def test_wrong_rows_of_columns(tmp_path, frame, change, words):
    frame.to_csv(tmp_path / "clinics.csv", index=False)
    preparation = load(str(tmp_path / "clinics.csv"), **COLUMNS, drop=["note"]).preparation
    with refused(words):
        preparation.prepare(change(frame), "a")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (np.zeros((6, 6)), "rows: expected an array of shape (rows, 6, 6) or (rows, 36), got (6, 6)"),
        (np.zeros((0, 36)), "rows: expected at least one row"),
        (np.zeros((2, 6, 7)), "got (2, 6, 7)"),
        (np.full((2, 36), np.nan), "rows: 72 value(s) are missing or infinite, the first in row 1"),
        (np.full((2, 36), 0.5), "expected whole numbers from 0 to 255, got values from 0.5 to 0.5"),
        (np.full((2, 36), 256), "trained on bytes"),
        ([["a"] * 36], "new rows must be numbers"),
        (pd.DataFrame(np.zeros((2, 3))), "trained on arrays of 36 numbers: expected as many columns"),
        (pd.DataFrame([["a", *[0] * 35]]), "column '0' must hold numbers, got 'a' in row 1"),
    ],
)
def test_wrong_rows_of_an_array(raw, words):
    preparation = from_table(Table("made", images(), LABELS)).preparation
    with refused(words):
        preparation.prepare(raw, "silo-0")


def test_flat_rows_in_a_file(tmp_path):
    pd.DataFrame(images().reshape(ROWS, 36)).to_csv(tmp_path / "flat.csv", index=False)
    preparation = from_table(Table("made", images(), LABELS)).preparation
    same(preparation.prepare(tmp_path / "flat.csv", "silo-0"), preparation.prepare(images(), "silo-0"))


def test_values_below_zero_have_no_logarithm():
    preparation = from_table(Table("made", images(np.float32), LABELS), features="log").preparation
    with refused("'log' needs values >= 0"):
        preparation.prepare(-images(np.float32) - 1, "silo-0")


def test_values_that_only_look_the_same_are_refused(frame, tmp_path):
    from coterie.data.sources.features import values_of

    with refused("column 'ward' holds '1' both as text and as something else"):
        values_of(pd.Series([1, "1"], name="ward", dtype=object))
