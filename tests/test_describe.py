"""Descriptions of tables: what columns hold, which [data] table they suggest, and that it loads."""

from __future__ import annotations

import datetime
import json
import tomllib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.data.describe import describe
from coterie.data.sources.dates import format_of
from coterie.experiment.starter import data_table_of
from tests.helpers import call, refused

N = 120


def table(**columns) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "row": np.arange(N) * 3,
            "site": ["a", "b", "c"] * 40,
            "patient_id": np.arange(N) // 2,
            "seen": ["2020-01-31", "2021-06-01"] * 60,
            "ward": ["north"] * 60 + ["south"] * 57 + ["rare"] * 3,
            "age": draw.integers(18, 98, N),
            "dose": np.where(draw.random(N) < 0.2, np.nan, draw.normal(size=N)),
            "consent": "yes",
            "died": ["yes"] + ["no"] * 9 + ["no"] * 110,
            "grade": ["x", "y"] * 60,
            **columns,
        }
    )


def test_roles_ids_dates_words_and_missing_values_are_suggested():
    found = describe(table())
    assert found.data == {
        "source": "in memory",
        "silo_column": "site",
        "person_column": "patient_id",
        "target_column": "died",
        "drop": ["row", "consent"],
        "missing": {"dose": "indicator"},
        "categories": {"ward": ["north", "south"], "grade": ["x", "y"]},
        "dates": {"seen": "2000-01-01"},
    }
    assert set(found.guesses) == {"silo_column", "person_column", "target_column"}
    assert found.ranges == {"seen": (20.0, 22.0), "age": (0.0, 100.0), "dose": (-5.0, 5.0)}
    assert found.silo_sizes == {"a": 40, "b": 40, "c": 40}
    uses = {column.name: (column.kind, column.use) for column in found.columns}
    assert uses["row"] == ("whole number", "left out: looks like ids")
    assert uses["consent"] == ("text", "left out: the same in all rows")
    assert uses["ward"] == ("text", "2 words and others")
    assert uses["dose"] == ("number", "number, and whether it is missing")
    remarks = " ".join(found.remarks)
    assert (
        "1 value(s) of 'ward' are in fewer than 10 persons, or in one silo only: they are not listed"
        in remarks
    )
    assert "only 0.8% of the rows have 'died' = yes" in remarks


def test_what_was_not_recognised_is_told_with_what_to_do():
    renamed = table().rename(columns={"site": "Klinik", "patient_id": "FallID"})
    silo, person = (remark for remark in describe(renamed).remarks if "name it as" in remark)
    assert silo.startswith("no column was recognised as the silo, so rows are cut into 10 silos at random")
    assert person.startswith("'FallID' looks like ids, and the same one is in several rows")
    named = describe(renamed, silo_column="Klinik", person_column="FallID")
    alone = describe(renamed.assign(FallID=np.arange(N)), silo_column="Klinik")
    for found in (describe(table()), named, alone):
        assert not any("name it as" in remark for remark in found.remarks)
    assert describe(table().rename(columns={"patient_id": "MRN"})).data["person_column"] == "MRN"


def test_named_columns_are_taken_as_they_are_named():
    found = describe(table(), silo_column="ward", target_column="age", person_column="row")
    assert [found.data[key] for key in ("silo_column", "target_column", "person_column")] == [
        "ward",
        "age",
        "row",
    ]
    assert found.guesses == {}
    last = describe(table()[["age", "grade"]])
    assert last.data["target_column"] == "grade"
    assert last.guesses["target_column"] == "guessed, because it is last: is it what to predict?"
    assert "silo_column" not in last.data


@pytest.mark.parametrize(
    ("cells", "written"),
    [
        (["2020-01-31", None], "ISO8601"),
        (["31.01.2020", "1.2.2020"], "%d.%m.%Y"),
        (["2020/01/31"], "%Y/%m/%d"),
        (["31/01/2020"], "%d/%m/%Y"),
        (["01/31/2020"], "%m/%d/%Y"),
        ([pd.Timestamp("2020-01-31")], "ISO8601"),
        (["2020-13-31"], None),
        ([20200131], None),
        (["x"], None),
        ([None], None),
    ],
)
def test_how_dates_are_written(cells, written):
    assert format_of(pd.Series(cells)) == written


def test_dates_that_may_be_read_in_two_ways_are_told():
    found = describe(table(seen=["01/02/2020", "03/04/2021"] * 60))
    assert found.data["dates"] == {"seen": {"since": "2000-01-01", "format": "%d/%m/%Y"}}
    assert any("'seen' may begin with the day or with the month" in remark for remark in found.remarks)


def test_words_that_count_as_missing_are_told(tmp_path):
    table(grade=["x", "None"] * 60).to_csv(tmp_path / "t.csv", index=False)
    assert any(
        "'grade' has cells with 'None', which count as missing" in r
        for r in describe(tmp_path / "t.csv").remarks
    )


def test_words_of_few_people_or_of_one_silo_are_not_suggested():
    sites = np.array(["a", "b", "c"] * 40)
    own = table(grade=np.where(sites == "a", "only here", "everywhere"))
    assert describe(own).data["categories"]["grade"] == ["everywhere"]
    assert describe(own.drop(columns=["patient_id", "site"])).data["categories"]["grade"] == [
        "everywhere",
        "only here",
    ]
    few = table(
        patient_id=np.arange(N) % 30, grade=np.where(np.arange(N) % 30 < 9, "nine people", "many people")
    )
    assert describe(few).data["categories"]["grade"] == ["many people"]


def test_true_and_false_are_numbers_however_they_are_written(tmp_path):
    flags = {"smokes": ["true", "false"] * 60, "drinks": ["TRUE", "FALSE", ""] * 40}
    table(**flags).to_csv(tmp_path / "t.csv", index=False)
    found = describe(tmp_path / "t.csv")
    uses = {column.name: (column.kind, column.use) for column in found.columns}
    assert uses["smokes"] == ("yes or no", "0 or 1")
    assert uses["drinks"] == ("yes or no", "0 or 1, and whether it is missing")
    made = ct.load(**found.data)
    x = dict(
        zip(
            made.preparation.encoded,
            made.preparation.prepare(tmp_path / "t.csv", "a").T.tolist(),
            strict=True,
        )
    )
    assert x["smokes"][:2] == [1, 0]
    assert x["drinks"][:3] == [1, 0, 0]
    assert x["drinks (missing)"][:3] == [0, 0, 1]


def test_words_are_suggested_as_they_are_written(tmp_path):
    table(grade=["01", "x"] * 60).to_csv(tmp_path / "t.csv", index=False)
    found = describe(tmp_path / "t.csv")
    assert found.data["categories"]["grade"] == ["01", "x"]
    made = ct.load(**found.data).preparation
    x = dict(zip(made.encoded, made.prepare(tmp_path / "t.csv", "a").T.tolist(), strict=True))
    assert not any(x["grade (other)"])


def test_a_target_that_is_missing_and_columns_of_no_use_are_told():
    found = describe(
        table(
            died=[None, *["no", "yes", "no"] * 39, "no", "no"],
            note=[f"n{k // 2} of it" for k in range(0, 2 * N, 2)],
        )
    )
    assert any("'died' (the target) is missing in 1 row(s)" in remark for remark in found.remarks)
    assert "note" in found.data["drop"]


@pytest.mark.parametrize(
    ("source", "named", "words"),
    [
        ("t.npz", {}, "only CSV and Parquet files have columns to describe"),
        ("nowhere.csv", {}, "cannot read 'nowhere.csv'"),
        (3, {}, "source: expected a file or a DataFrame, got a int"),
        (pd.DataFrame({"a": []}), {}, "'in memory' has no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "two columns named 'a'"),
        (pd.DataFrame({"a": [1]}), {"silo_column": "b"}, "data.silo_column: 'in memory' has no column 'b'"),
    ],
)
def test_what_cannot_be_described(source, named, words):
    with refused(words):
        describe(source, **named)


def test_the_command_prints_a_table_and_a_ready_configuration(tmp_path, monkeypatch, capsys):
    path = tmp_path / "t.csv"
    table().to_csv(path, index=False)
    code, out, err = call(monkeypatch, capsys, "data", "show", path)
    assert code == 0
    assert tomllib.loads(out[out.index("[data]") :])["data"] == dict(describe(path).data)
    assert "# feature_range = { seen = [20, 22], age = [0, 100], dose = [-5, 5] }" in out
    assert "this was read from the file on this machine, and nothing was sent" in err
    code, out, _ = call(
        monkeypatch, capsys, "data", "show", path, "--json", "--target-column", "age", "--columns"
    )
    assert code == 0
    assert json.loads(out)["data"]["target_column"] == "age"
    assert json.loads(out)["toml"].startswith("[data]")
    shown = ("--target-column", "grade", "--silo-column", "site")
    clinics = ("examples/clinics.csv", "--target-column", "readmitted", "--silo-column", "clinic")
    code, out, _ = call(monkeypatch, capsys, "data", "show", *clinics)
    assert code == 0
    assert "4 silos" in out
    code, _, err = call(monkeypatch, capsys, "data", "show", path, *shown)
    assert code == 2
    assert "column 'dose' of 't.csv' has" in err


WORDS = st.one_of(st.none(), st.sampled_from(["x", "y", 'ü,"z"\n', "None", "1", "A b"]))
DAYS = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_is_suggested_loads(tmp_path_factory, data):
    """Whatever columns a table has: the suggested [data] table is valid, and the table loads with it."""

    def column(cells):
        return data.draw(st.lists(cells, min_size=24, max_size=24))

    frame = pd.DataFrame(
        {
            "clinic": ["a", "b"] * 12,
            "n": column(st.one_of(st.none(), st.floats(-1e5, 1e5), st.integers(0, 3).map(float))),
            "words": column(WORDS),
            "often": (["p", "q"] * 12),
            "day": column(st.one_of(st.none(), DAYS.map(str), DAYS.map(lambda day: day.strftime("%d.%m.%Y")))),
            "weight": np.linspace(40, 90, 24),
            "ill": ["yes", "yes", "no", "no"] * 6,
        }
    )  # fmt: skip
    path = tmp_path_factory.mktemp("t") / "t.csv"
    frame.to_csv(path, index=False)
    found = describe(path)
    table = tomllib.loads(data_table_of(found))["data"]
    assert table == dict(found.data)
    assert len(ct.load(**table)) == 2
