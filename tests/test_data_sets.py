"""One data set has one budget, however it is loaded; other rows have another one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.data.partition import Partition
from coterie.guard.ledgers import find_ledgers, open_ledgers
from coterie.privacy.ledger.data_sets import data_sets
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.ledger import Identity, open_ledger, read_ledger
from coterie.privacy.ledger.names import data_name, silo_key, tidy, tidy_silo
from coterie.privacy.ledger.place import read_ledgers
from coterie.privacy.ledger.verify import check_ledger
from tests.helpers import call, refused

ROWS = 60
COLUMNS = {"silo_column": "hospital", "target_column": "y"}
BUDGET = ct.Privacy(epsilon=2, delta=1e-5)


def frame(rows=ROWS) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 2))
    y = generator.choice(["u", "v"], rows)
    return pd.DataFrame({"hospital": np.arange(rows) % 3 + 1, "a": x[:, 0], "b": x[:, 1], "y": y})


def train(federation, **how):
    return ct.run(federation, "local", BUDGET, rounds=1, epochs=1, **how)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A working folder with the same rows in several files."""
    monkeypatch.chdir(tmp_path)
    frame().to_csv("clinics.csv", index=False)
    Path("alias.csv").symlink_to("clinics.csv")
    Path("d").mkdir()
    Path("d/alias.csv").symlink_to("../clinics.csv")
    return tmp_path


@pytest.mark.parametrize(
    "load",
    [
        lambda: ct.load("alias.csv", **COLUMNS),
        lambda: ct.load("d/../alias.csv", **COLUMNS),
        lambda: ct.load("alias", data_dir="d", **COLUMNS),
        lambda: ct.load(frame(), name=" clinics ", **COLUMNS),
        lambda: ct.load(frame().astype({"hospital": float}), name="clinics", **COLUMNS),
        lambda: ct.load("clinics.csv", rows=ROWS, seed=4, **COLUMNS),
        lambda: ct.load("clinics.csv", alpha=3.0, shards=7, mask=0.4, rotations=1, test=0.5, **COLUMNS),
    ],
)
def test_what_changes_no_row_opens_no_budget(place, load):
    assert set(load().identities) == set(ct.load("clinics.csv", **COLUMNS).identities)


@pytest.mark.parametrize(
    "options",
    [
        {"silos": 10},
        {"partition": "iid"},
        {"rows": 1797},
        {"alpha": 3.0, "shards": 9, "mask": 0.9, "rotations": 2},
        {"partition": "rotated", "rotations": 1},
        {"partition": "rotated-masked", "mask": 0.5},
    ],
)
def test_a_cut_is_known_by_the_rows_of_its_silos(options):
    plain, other = ct.load("digits"), ct.load("digits", **options)
    assert [torch.equal(a.y, b.y) for a, b in zip(plain.silos, other.silos, strict=True)] == [True] * 10
    assert other.identities == plain.identities


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"seed": 1}),
        ({}, {"silos": 4}),
        ({"rows": 50}, {"rows": 50, "seed": 1}),
        ({"partition": "shards"}, {"partition": "shards", "positive": "u"}),
        ({"partition": "shards"}, {"partition": "shards", "target_column": "b"}),
        ({"partition": "dirichlet"}, {"partition": "dirichlet", "alpha": 5.0}),
    ],
)
def test_other_rows_have_other_ledgers(place, one, other):
    plain = {"target_column": "y", "silos": 3, "drop": ["hospital"]}
    loaded = [ct.load("clinics.csv", **{**plain, **options}) for options in (one, other)]
    rows = [
        [{tuple(row) for row in torch.cat([silo.x, silo.test_x])[:, :1].tolist()} for silo in each.silos]
        for each in loaded
    ]
    assert rows[0] != rows[1]
    assert not set(loaded[0].identities) & set(loaded[1].identities)


def test_another_number_of_rows_is_another_cut(place):
    short, long = (
        ct.load(frame(rows), name="clinics", target_column="y", silos=5, drop=["hospital"])
        for rows in (51, 52)
    )
    assert short.silos[4].x.shape == long.silos[4].x.shape
    assert short.identities[4] != long.identities[4]


def test_a_leaf_folder_with_one_file_is_that_file(place):
    values = np.random.default_rng(0).normal(size=(10, 3)).tolist()
    users = {"users": ["a", "b"], "user_data": {user: {"x": values, "y": [0, 1] * 5} for user in "ab"}}
    for file in ("F/all.json", "G/train/one.json", "G/test/two.json"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(json.dumps(users))
    Path("F/train").mkdir()
    Path("link").symlink_to("F")
    same = [ct.load(source).identities for source in ("F", "F/all.json", "F/train/..", "link", "link/")]
    assert len(set(same)) == 1
    whole, part = ct.load("G"), ct.load("G/train/one.json")
    assert whole.source == "G"
    assert data_name(part.source) == "g"
    assert part.identities != whole.identities


def test_a_run_makes_ledgers_only_where_there_are_none(place):
    train(ct.load("clinics.csv", **COLUMNS), ledger="kept")
    files = sorted(Path("kept").iterdir())
    for again in ("alias.csv", "clinics.csv"):
        with pytest.raises(Spent, match="does not fit"):
            train(ct.load(again, rows=ROWS, **COLUMNS), ledger="kept")
    fewer = frame().iloc[3:]
    for other in (
        ct.load(fewer, name="clinics", **COLUMNS),
        ct.load("clinics.csv", partition="iid", silos=3, target_column="y"),
        ct.load(frame(), name="elsewhere", **COLUMNS),
    ):
        with refused("has none; it has one of '1' of clinics (20 examples)"):
            train(other, ledger="kept")
    assert sorted(Path("kept").iterdir()) == files


def test_a_further_budget_for_the_same_data_must_be_asked_for(place):
    whole, fewer = ct.load("clinics.csv", **COLUMNS), ct.load(frame().iloc[3:], name="Clinics", **COLUMNS)
    ct.open_ledgers("kept", whole, 2.0, 1e-4)
    with refused("there are ledgers already, such as that of '1'"):
        ct.open_ledgers("kept", whole, 2.0, 1e-4, another=True)
    for other in (fewer, ct.load("clinics.csv", partition="iid", silos=3, target_column="y")):
        with refused("is a further budget; if it is for other examples, say so with --another"):
            ct.open_ledgers("kept", other, 2.0, 1e-4)
    assert len(data_sets(Path("kept"))) == 3
    made = ct.open_ledgers("kept", fewer, 2.0, 1e-4, another=True)
    opened = {read_ledger(report.path).entries()[0].body.get("another") for report in made}
    first = {read_ledger(path).entries()[0].body.get("another") for path in Path("kept").glob("*.sqlite")}
    assert opened == {True}
    assert first == {True, None}
    assert len(ct.open_ledgers("kept", ct.load("digits", silos=2), 2.0, 1e-4)) == 2


def test_the_command_asks_for_the_same_word(place, monkeypatch, capsys):
    arrays = {"x": frame()[["a", "b"]], "y": np.arange(ROWS) % 2, "silo": frame()["hospital"]}
    np.savez("arrays.npz", **arrays)
    table = 'source = "arrays.npz"\n'
    Path("c.toml").write_text(f"[data]\n{table}[privacy]\nepsilon = 1.0\n[[method]]\nname = 'local'\n")
    budget = ("--ledger", "kept", "--epsilon", 2, "--delta", 1e-4)
    assert call(monkeypatch, capsys, "ledger", "open", "c.toml", *budget)[0] == 0
    cut = ("--set", "data.partition=iid", "--set", "data.silos=2")
    code, _, err = call(monkeypatch, capsys, "ledger", "open", "c.toml", *budget, *cut)
    assert (code, "--another" in err) == (2, True)
    assert call(monkeypatch, capsys, "ledger", "open", "c.toml", *budget, *cut, "--another")[0] == 0
    assert len(read_ledgers("kept")) == 5


def test_missing_ledgers_of_some_silos_are_made_on_request(place):
    whole = ct.load("clinics.csv", **COLUMNS)
    ct.open_ledgers("kept", whole.pick(["2"]), 2.0, 1e-4)
    with refused("'1' of clinics (20 examples) is a further budget"):
        ct.open_ledgers("kept", whole, 2.0, 1e-4)
    reports = ct.open_ledgers("kept", whole, 3.0, 1e-4, another=True)
    assert [report.budgets["example"][0] for report in reports] == [3.0, 2.0, 3.0]


def old_ledger(folder, source, silo, size):
    open_ledger(Path(folder), Identity(source, silo, size), (2.0, 1e-4)).close()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("digits cut by [null, null, 3, 2, 0.5, 4, 0.1, 0]", {"silos": 3}),
        ('digits cut by ["rotated", null, 3, 2, 0.5, 2, 0.1, 0]', {"silos": 3, "partition": "rotated"}),
        ('digits cut by ["iid", 1797, 3, 2, 0.7, 4, 0.1, 0]', {"silos": 3}),
        ('digits cut by ["dirichlet", 900, 3, 2, 5.0, 4, 0.1, 2]',
         {"silos": 3, "rows": 900, "seed": 2, "partition": Partition("dirichlet", alpha=5, mask=0.3)}),
    ],
)  # fmt: skip
def test_a_ledger_of_an_older_version_is_still_the_ledger(tmp_path, words, options):
    federation = ct.load("digits", **options)
    for silo, who in zip(federation.silos, federation.identities, strict=True):
        old_ledger(tmp_path, words, silo.name, who.size)
    assert [who.source for who in find_ledgers(tmp_path, federation)] == [words] * 3
    with refused("there are ledgers already"):
        ct.open_ledgers(tmp_path, federation, 2.0, 1e-4, another=True)
    train(federation, ledger=tmp_path)
    files = sorted(tmp_path.glob("*.sqlite"))
    assert [check_ledger(path).runs for path in files] == [1, 1, 1]
    assert {path.stem for path in tmp_path.glob("*.secret")} == {path.stem for path in files}
    with pytest.raises(Spent, match="does not fit"):
        train(federation, ledger=tmp_path)


def test_an_older_ledger_is_found_by_the_name_of_a_link(place):
    for silo in "123":
        old_ledger("kept", "alias", silo, 20)
    assert None not in find_ledgers(Path("kept"), ct.load("alias.csv", **COLUMNS))
    assert find_ledgers(Path("kept"), ct.load("clinics.csv", **COLUMNS)) == [None] * 3


def test_an_older_ledger_that_forgot_the_seed_belongs_to_the_first_seed(place):
    plain = {"target_column": "y", "silos": 3, "drop": ["hospital"]}
    for k in range(3):
        old_ledger("kept", "clinics", f"silo-{k}", 20)
    assert None not in find_ledgers(Path("kept"), ct.load("clinics.csv", **plain))
    with refused("a run makes ledgers only in a folder that has none"):
        train(ct.load("clinics.csv", seed=1, **plain), ledger="kept")


def test_two_ledgers_of_one_silo_are_refused(tmp_path):
    federation = ct.load("digits", silos=3)
    for alpha in (0.6, 0.7):
        for silo, who in zip(federation.silos, federation.identities, strict=True):
            old_ledger(tmp_path, f"digits cut by [null, null, 3, 2, {alpha}, 4, 0.1, 0]", silo.name, who.size)
    with refused("has 2 ledgers of 'silo-0' of digits"):
        train(federation, ledger=tmp_path)


def test_numbered_silos_keep_their_ledgers_when_there_are_more_of_them(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(70, 2)), np.arange(70) % 2
    few = ct.load({"x": x[:60], "y": y[:60], "silo": np.repeat([1, 2], 30)}, name="z")
    more = ct.load({"x": x, "y": y, "silo": np.repeat([1, 2, 10], [30, 30, 10])}, name="z")
    assert (few.names[0], more.names[0]) == ("silo-1", "silo-01")
    for ledger in open_ledgers(tmp_path, few, [(2.0, 1e-4)] * 2):
        ledger.close()
    assert find_ledgers(tmp_path, more) == [*few.identities, None]


def test_a_refused_run_leaves_no_ledger_behind(place):
    federation = ct.load("clinics.csv", **COLUMNS)
    mixed = ct.Privacy(epsilon={"1": float("inf"), "default": 1.0}, delta=1e-5)
    with refused("a ledger's epsilon must be a finite number"):
        ct.run(federation, "local", mixed, rounds=1, ledger="kept")
    assert not Path("kept").exists()


def test_a_ledger_in_another_folder_is_noticed_before_any_is_made(tmp_path):
    """The witness knows it, under the words of an older version too."""
    federation = ct.load("digits", silos=2)
    words = "digits cut by [null, null, 2, 2, 0.5, 4, 0.1, 0]"
    old_ledger(tmp_path / "one", words, "silo-1", federation.identities[1].size)
    with refused("has seen one with 1 changes"):
        train(federation, ledger=tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_a_folder_of_secrets_without_ledgers_is_refused(place):
    train(ct.load("clinics.csv", **COLUMNS), ledger="kept")
    for path in Path("kept").glob("*.sqlite*"):
        path.unlink()
    with refused("there is no ledger of '1'"):
        train(ct.load("clinics.csv", **COLUMNS), ledger="kept")
    with refused("files of ledgers that are missing or have another name"):
        train(ct.load("digits", silos=2), ledger="kept")


def test_silos_that_ledgers_cannot_tell_apart_are_refused(place):
    twice = frame().astype({"hospital": str}).replace({"hospital": {"2": "1.0"}})
    with refused("ledgers cannot tell silo '1' from another one"):
        train(ct.load(twice, name="clinics", **COLUMNS), ledger="kept")


def test_names_are_compared_as_people_mean_them(tmp_path):
    assert tidy(" cafe\u0301 ") == "caf\u00e9"
    assert [tidy_silo(name) for name in ("1", "1.0", " 1.", "1.5", "v1.0")] == ["1", "1", "1", "1.5", "v1.0"]
    assert silo_key("silo-007") == silo_key("7") != silo_key("70")
    assert data_name('Digits cut by {"seed": 0}') == "digits"
    (tmp_path / "note.sqlite").write_text("not a ledger")
    assert data_sets(tmp_path) == []
    assert os.listdir(tmp_path) == ["note.sqlite"]  # noqa: PTH208
