"""Missing values, vocabularies and dates of tables: public rules, the same for training rows and new rows."""

from __future__ import annotations

import datetime
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.data.federation import load
from coterie.data.preparation import Preparation
from coterie.data.sources.cells import words_of
from coterie.experiment.config.schema import check
from tests.helpers import refused

ROWS = 12
COLUMNS = {"silo_column": "clinic", "target_column": "ill"}
FRAME = {
    "clinic": ["a", "b"] * 6,
    "age": [30.0, None, 50, 60, 70, 80] * 2,
    "ward": ["north", "south", None, "rare", "north", "south"] * 2,
    "seen": ["2020-01-01", "2021-01-01", "2020-07-01", None, "2020-01-02", "2019-01-01"] * 2,
    "ill": ["yes", "yes", "no", "no"] * 3,
}
RULES = {
    "missing": {"age": 50, "ward": "indicator", "seen": "indicator"},
    "categories": {"ward": ["south", "north"]},
    "dates": {"seen": "2020-01-01"},
}


def frame(**columns) -> pd.DataFrame:
    return pd.DataFrame({**FRAME, **columns})


def encoded(data, **rules) -> dict[str, list[float]]:
    """What a model gets of each column, row by row in the order of the data."""
    made = ct.load(data, **COLUMNS, **rules).preparation
    return dict(zip(made.encoded, made.prepare(data, "a").T.tolist(), strict=True))


def test_missing_values_words_and_dates_become_numbers():
    got = encoded(frame(), **RULES)
    assert list(got) == [
        "age", "seen", "ward_south", "ward_north", "ward (other)", "ward (missing)", "seen (missing)",
    ]  # fmt: skip
    assert got["age"][:6] == [30, 50, 50, 60, 70, 80]
    assert got["seen"][:6] == pytest.approx(
        [0, 366 / 365.25, 182 / 365.25, 0, 1 / 365.25, -365 / 365.25], rel=1e-6
    )
    assert got["seen (missing)"][:6] == [0, 0, 0, 1, 0, 0]
    assert got["ward_south"][:6] == [0, 1, 0, 0, 0, 1]
    assert got["ward_north"][:6] == [1, 0, 0, 0, 1, 0]
    assert got["ward (other)"][:6] == [0, 0, 0, 1, 0, 0]
    assert got["ward (missing)"][:6] == [0, 0, 1, 0, 0, 0]


def test_public_bounds_leave_indicators_alone_and_apply_to_what_missing_values_become():
    got = encoded(frame(), **RULES, feature_range=(0, 100))
    assert got["age"][:2] == pytest.approx([0.3, 0.5])
    assert got["ward (missing)"][2] == 1
    with refused("'ward' is a column of text"):
        encoded(frame(), **RULES, feature_range={"ward": (0, 1)})


def test_a_rare_value_in_one_silo_changes_neither_the_shape_nor_another_silo():
    plain, rare = (
        ct.load(frame(ward=values), **COLUMNS, **RULES)
        for values in (["north", "south"] * 6, ["north", "south"] * 5 + ["north", "leprosy"])
    )
    assert plain.shape == rare.shape
    assert plain.preparation.to_json() == rare.preparation.to_json()
    assert plain.not_covered == rare.not_covered == ()
    assert torch.equal(plain.silos[0].x, rare.silos[0].x)
    assert "leprosy" not in json.dumps(rare.preparation.to_json())


def test_silos_whose_values_differ_get_the_same_columns_when_each_is_loaded_alone():
    whole = frame()
    alone = [ct.load(whole[whole.clinic == name], **COLUMNS, **RULES) for name in "ab"]
    assert alone[0].preparation.encoded == alone[1].preparation.encoded


def test_without_a_vocabulary_the_statement_says_what_a_model_tells():
    made = ct.load(frame(ward=["north", "south"] * 6), **COLUMNS, missing=0, dates=["seen"])
    (said,) = made.not_covered
    assert "'ward' (2); so a model tells that some example has each of these values" in said


def test_what_a_value_outside_the_vocabulary_becomes_can_be_a_refusal():
    rules = {**RULES, "unknown": "refuse"}
    with refused(
        "column 'ward' of 'the frame' has the unknown value 'rare' in row 4 (and 1 more); known: 'south'"
    ):
        ct.load(frame(), **COLUMNS, **rules)
    made = ct.load(frame(ward=["north", "south"] * 6), **COLUMNS, **rules)
    assert "ward (other)" not in made.preparation.encoded
    with refused("rows: column 'ward' has the unknown value 'rare' in row 4"):
        made.preparation.prepare(frame(), "a")


@pytest.mark.parametrize(
    ("missing", "medians", "age"),
    [(7, {}, 7), ("public-median", {"age": 54}, 54), ("indicator", {}, 0), ({"default": -1.5}, {}, -1.5)],
)
def test_one_rule_for_all_columns(missing, medians, age):
    data = frame(ward="x", seen=1)
    got = encoded(data, missing=missing, medians=medians, categories={"ward": ["x"]})
    assert got["age"][:2] == [30, age]
    # Which columns there are depends on the rule, not on which columns have missing values.
    assert ("seen (missing)" in got) == ("age (missing)" in got) == (missing == "indicator")


def test_a_word_may_stand_for_missing_words():
    known = encoded(frame(), **{**RULES, "missing": {**RULES["missing"], "ward": "south"}})
    assert known["ward_south"][:3] == [0, 1, 1]
    other = encoded(frame(), **{**RULES, "missing": {**RULES["missing"], "ward": "unknown"}})
    assert other["ward (other)"][2] == 1
    found = encoded(frame(seen=0), missing={"age": 0, "ward": "none"})
    assert found["ward_none"][2] == 1
    day = encoded(frame(), **{**RULES, "missing": {**RULES["missing"], "seen": "2021-01-01"}})
    assert day["seen"][3] == day["seen"][1]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_words_are_taken_as_they_are_written(tmp_path, form):
    """Codes that look like numbers, and words that pandas takes for missing ones."""
    path = tmp_path / f"t.{form}"
    data = frame(age=1, seen=2, ward=["01", "1", "None", "NA"] * 3)
    data.to_csv(path, index=False) if form == "csv" else data.to_parquet(path)
    made = ct.load(path, **COLUMNS, categories={"ward": ["01", "1", "None", "NA"]})
    x = dict(zip(made.preparation.encoded, made.preparation.prepare(path, "a").T.tolist(), strict=True))
    for place, word in enumerate(["01", "1", "None", "NA"]):
        assert [row for row in range(4) if x[f"ward_{word}"][row]] == [place]
    assert not any(x["ward (other)"])


def test_whole_numbers_are_words_without_a_point():
    assert words_of(pd.Series([1.0, None, 3.0])).tolist() == ["1", None, "3"]
    assert words_of(pd.Series([1.5, 2.0])).tolist() == ["1.5", "2.0"]
    got = encoded(
        frame(ward=[1.0, None] * 6, age=0, seen=0), categories={"ward": [1, 2]}, missing="indicator"
    )
    assert got["ward_1"][:2] == [1, 0]


@pytest.mark.parametrize(
    ("written", "dates"),
    [
        ("01.02.2020", {"seen": {"since": "2020-01-01", "format": "%d.%m.%Y"}}),
        ("2020-02-01", {"seen": datetime.date(2020, 1, 1)}),
        ("2020-02-01T00:00:00Z", {"seen": "2020-01-01"}),
        (pd.Timestamp("2020-02-01"), {"seen": "2020-01-01"}),
        (datetime.date(2020, 2, 1), {"seen": "2020-01-01"}),
        ("20200201", {"seen": {"since": "2020-01-01", "format": "%Y%m%d"}}),
    ],
)
def test_ways_to_write_a_date(written, dates):
    got = encoded(frame(seen=written, ward=1, age=1), dates=dates)
    assert got["seen"] == pytest.approx([31 / 365.25] * ROWS, rel=1e-6)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"missing": "median"}, "data.missing: unknown choice 'median'; did you mean 'public-median'?"),
        ({"missing": {"age": True}}, "data.missing.age: expected 'refuse', 'indicator', 'public-median' or a value, got True"),
        ({"missing": {"age": "x"}}, "data.missing.age: expected a number, got 'x'"),
        ({"missing": {"ages": 1}}, "data.missing: 'the frame' has no column 'ages'; did you mean 'age'?"),
        ({"missing": {"clinic": 1}}, "data.missing: 'clinic' is no feature, but data.silo_column: leave it out"),
        ({"missing": "public-median"}, "column 'age' of 'the frame' has 2 missing value(s), the first in row 2; give its public median in data.medians.age"),
        ({"medians": {"age": "1"}}, "data.medians.age: expected a finite number, got '1'"),
        ({"categories": {"ward": "north"}}, "data.categories.ward: expected a list with at least one value, got 'north'"),
        ({"categories": {"ward": ["a", "a"]}}, "data.categories.ward: 'a' is listed twice"),
        ({"categories": {"ward": [1.5]}}, "data.categories.ward: expected texts or whole numbers, got [1.5]"),
        ({"categories": ["ward"]}, "data.categories: expected a table, a list of values for each column, got ['ward']"),
        ({"unknown": "others"}, "data.unknown: expected 'other' or 'refuse', got 'others'"),
        ({"dates": {"seen": "2020"}}, "data.dates.seen: expected a day such as 2000-01-01, got '2020'"),
        ({"dates": {"seen": {"until": 1}}}, "data.dates.seen: unknown key 'until'; known: format, since"),
        ({"dates": {"seen": {"format": "day"}}}, "data.dates.seen: expected a format such as '%d.%m.%Y', got 'day'"),
        ({"dates": ["age"]}, "column 'age' of 'the frame' must hold dates, got float64"),
        ({"dates": ["ward"]}, "column 'ward' of 'the frame' must hold dates such as 2024-01-31, got 'north' in row 1 (and 9 more); for another way"),
        ({"dates": ["ward"], "categories": {"ward": ["a"]}}, "data.dates: 'ward' has data.categories too: leave out one"),
        ({"keep": "age"}, "data.keep: expected a list of columns, got 'age'"),
        ({"missing": {"ward": "x"}, "categories": {"ward": ["south", "north", "rare"]}, "unknown": "refuse"}, "data.missing.ward: 'x' is not in data.categories.ward"),
        ({"missing": {"seen": "soon"}, "dates": ["seen"]}, "data.missing.seen: expected a date, written as the column is, or a number of years"),
    ],
)  # fmt: skip
def test_wrong_rules_are_named(rules, words):
    with pytest.raises(ct.Problem) as problem:
        load(frame(), **COLUMNS, **rules)
    assert words in str(problem.value)


@pytest.mark.parametrize(
    ("rules", "key"), [({"missing": 0}, "missing"), ({"keep": ["a"]}, "keep"), ({"dates": ["a"]}, "dates")]
)
def test_rules_for_data_without_columns_are_refused(tmp_path, rules, key):
    arrays = {"x": np.ones((8, 2)), "y": [0, 1] * 4, "silo": [0] * 4 + [1] * 4}
    np.savez(tmp_path / "a.npz", **arrays)
    for source in ("digits", arrays, tmp_path / "a.npz"):
        with refused(f"data.{key}: '"):
            ct.load(source, **rules)


def test_a_column_that_is_called_like_one_of_a_rule_is_refused():
    data = frame(ward=1, seen=1).assign(**{"age (missing)": 1})
    with refused("'the frame' has a column 'age (missing)', and so would a rule call another one: rename it"):
        ct.load(data, **COLUMNS, missing={"age": "indicator"})
    assert ct.load(data, **COLUMNS, missing={"age": 1}).shape == (4,)


def test_all_problems_of_a_file_are_named_at_once():
    data = frame(dose=[1.0, np.inf] * 6, when=["2020-01-01", "soon"] * 6, mixed=["1", "2", "x", "3"] * 3)
    with pytest.raises(ct.Problem) as problem:
        ct.load(
            data, **COLUMNS, drop=["nothing"], dates=["when"], categories={"wart": ["a"]}, missing={"seen": 0}
        )
    lines = str(problem.value).splitlines()
    assert lines[0] == "data: 'the frame' has 7 problems:"
    starts = [
        "data.drop: 'the frame' has no column 'nothing'",
        "data.categories: 'the frame' has no column 'wart'; did you mean 'ward'?",
        "column 'age' of 'the frame' has 2 missing value(s), the first in row 2",
        "column 'ward' of 'the frame' has 2 missing value(s), the first in row 3",
        "column 'dose' of 'the frame' has an infinite value in row 2 (and 5 more)",
        "column 'when' of 'the frame' must hold dates such as 2024-01-31, got 'soon' in row 2 (and 5 more)",
        "column 'mixed' of 'the frame' has 9 numbers and 3 value(s) that are not numbers",
    ]
    for line, start in zip(lines[1:], starts, strict=True):
        assert line.strip().startswith(start)


def test_a_column_that_says_what_is_missing_may_hold_a_public_number_there():
    got = encoded(frame(ward=1, seen=2), missing="indicator", medians={"age": 54})
    assert got["age"][:2] == [30, 54]
    assert got["age (missing)"][:2] == [0, 1]


def test_a_configuration_names_all_wrong_rules_and_gives_them_back(tmp_path: Path):
    def text(data: str) -> dict:
        return tomllib.loads(f'[data]\n{data}\n[privacy]\nepsilon = 1\n[[method]]\nname = "local"')

    good = check(
        text('missing = { age = "indicator" }\ndates = { seen = 2020-01-01 }\ncategories.ward = ["a"]')
    )
    again = check(tomllib.loads(good.to_toml()))
    assert again.data == good.data
    assert good.data.dates == {"seen": "2020-01-01"}
    with pytest.raises(ct.Problem) as problem:
        check(
            text(
                'missing = "no"\ncategories = { a = [], b = ["x", "x"] }\nunknown = "drop"\nmedians.age = "1"'
            )
        )
    said = str(problem.value)
    assert "config has 5 problem(s)" in said
    for key in (
        "data.missing:",
        "data.categories.a:",
        "data.categories.b:",
        "data.unknown:",
        "data.medians.age:",
    ):
        assert f"\n  {key}" in said


def test_columns_that_look_like_ids_are_left_out_and_named():
    n = 120
    data = pd.DataFrame(
        {
            "patient_id": np.arange(n) // 2,
            "ward_id": np.arange(n) % 5,
            "row": np.arange(n),
            "name": [f"n{k}" for k in range(n)],
            "dose": np.linspace(0, 1, n),
            "clinic": ["a", "b"] * (n // 2),
            "ill": ["yes", "no", "no"] * (n // 3),
        }
    )
    made = ct.load(data, **COLUMNS)
    assert made.preparation.encoded == ("ward_id", "dose")
    assert made.notes[0] == (
        "column(s) 'patient_id', 'row', 'name' look like ids and were left out: name them in data.drop, or in"
        " data.keep to use them as features"
    )
    assert made.not_covered == (
        "columns were left out because their values look like ids: 'patient_id', 'row', 'name'",
    )
    new = data.drop(columns=["clinic", "ill", "row"])  # ids may be in new rows, or not
    assert torch.equal(made.preparation.prepare(new, "a"), made.preparation.prepare(data, "a"))
    kept = ct.load(data, **COLUMNS, keep=["patient_id"], feature_range={"row": (0, n)}, drop=["name"])
    assert kept.preparation.encoded == ("patient_id", "ward_id", "row", "dose")
    assert kept.notes == kept.not_covered == ()
    tokens = data[["patient_id", "row", "clinic", "ill"]]
    assert ct.load(tokens, **COLUMNS, features="ids").preparation.encoded == ("patient_id", "row")
    with refused("data: 'the frame' has no feature column: 'patient_id' look like ids"):
        ct.load(data[["patient_id", "clinic", "ill"]], **COLUMNS)


def test_suspicious_columns_are_noted():
    data = frame(ward="x", age=1, seen=["2020-01-01", "2021-01-01"] * 6, sex=["f", "m"] * 6)
    notes = " ".join(ct.load(data, **COLUMNS, categories={"sex": ["F", "M"]}).notes)
    assert "column(s) 'age', 'ward' have one value in all rows" in notes
    assert "column(s) 'seen' hold dates as words: name them in data.dates" in notes
    assert "data.categories: no value of column(s) 'sex' is in the vocabulary" in notes


NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-9, 9).map(float))
WORDS = st.sampled_from([None, "north", "south", "None", "NA", "01", "1", 'ö,"x"'])
FOUND = st.sampled_from([None, "north", "ö", "1 b"])
DAYS = st.one_of(st.none(), st.dates(datetime.date(1900, 1, 1)).map(str))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, WORDS, FOUND, DAYS), min_size=ROWS, max_size=ROWS),
    st.sampled_from(["indicator", 3.5, "public-median"]),
    st.sampled_from(["auto", "standardize", "unit"]),
    st.booleans(),
)
def test_training_rows_passed_as_new_rows_give_the_same_bits(
    tmp_path_factory, rows, missing, features, as_file
):
    data = pd.DataFrame(rows, columns=["n", "m", "word", "found", "day"])
    data = data.astype({"n": float, "m": float, "word": object, "found": object, "day": object})
    data["clinic"], data["ill"], data["k"] = ["a", "b"] * 6, ["yes", "yes", "no", "no"] * 3, range(ROWS)
    rules = {
        "missing": {"default": missing, "word": "indicator", "found": "none", "day": "indicator"},
        "medians": {"n": 1, "m": 2, "k": 3},
        "categories": {"word": ["north", "None", "01"]},
        "dates": ["day"],
        "keep": ["n", "m", "found"],
        "features": features,
        "standardize": {} if features == "standardize" else {"n": (0.3, 1.7), "day": (20, 30)},
    }
    source = data
    if as_file:
        source = tmp_path_factory.mktemp("rules") / "t.csv"
        data.to_csv(source, index=False, na_rep="")
    made = ct.load(source, **COLUMNS, **rules)
    again = Preparation.from_json(json.loads(json.dumps(made.preparation.to_json(), allow_nan=False)))
    for silo in made.silos:
        prepared = again.prepare(source, silo.name)
        mine = [k for k in range(ROWS) if data["clinic"][k] == silo.name]
        held = sorted(map(bytes, prepared[mine].numpy()))
        assert held == sorted(map(bytes, torch.cat([silo.x, silo.test_x]).numpy()))


def one_row(row, fill: float | None) -> dict[str, float]:
    """What a model gets of one row: the rules, applied to one cell at a time. Without `fill`, 0 and a column."""
    number, word, day = row
    got = {f"word_{value}": float(word == value) for value in ("north", "None")}
    got["word (other)"] = float(word is not None and word not in ("north", "None"))
    got["word (missing)"] = float(word is None)
    since = datetime.date(2020, 1, 1)
    got["day"] = 0.0 if day is None else (datetime.date.fromisoformat(day) - since).days / 365.25
    got["day (missing)"] = float(day is None)
    got["n"] = (fill or 0.0) if number is None else number
    if fill is None:
        got["n (missing)"] = float(number is None)
    return got


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(NUMBERS, WORDS, DAYS), min_size=ROWS, max_size=ROWS),
    st.sampled_from([None, 2.5]),
    st.booleans(),
)
def test_columns_become_what_the_rules_say_of_each_cell(tmp_path_factory, rows, fill, as_file):
    data = pd.DataFrame(rows, columns=["n", "word", "day"]).astype(
        {"n": float, "word": object, "day": object}
    )
    data["clinic"], data["ill"] = ["a", "b"] * 6, ["yes", "yes", "no", "no"] * 3
    source = data
    if as_file:
        source = tmp_path_factory.mktemp("slow") / "t.csv"
        data.to_csv(source, index=False, na_rep="")
    rules = {
        "missing": {"default": "indicator", "n": "indicator" if fill is None else fill},
        "categories": {"word": ["north", "None"]},
        "dates": {"day": "2020-01-01"},
    }
    got = pd.DataFrame(encoded(source, **rules))
    if as_file:  # there, "NA" is a missing cell, since the vocabulary does not name it
        rows = [(number, None if word == "NA" else word, day) for number, word, day in rows]
    want = pd.DataFrame([one_row(row, fill) for row in rows])
    assert set(got) == set(want)
    assert np.allclose(got[list(want)], want, rtol=1e-6, atol=1e-6)
