"""The catalogue: data sets found by name or path, listed, and counted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import savemat

from coterie.data.federation import from_table, load
from coterie.data.sources.catalogue import data_folder, entries, find_table
from tests.helpers import refused
from tests.source_files import archive, cell, leaf_text, read, write_har, write_idx, written


def test_digits_are_built_in():
    table = find_table("digits")
    assert table.x.shape == (1797, 8, 8)
    assert (table.x.min(), table.x.max()) == (0, 1)
    assert sorted(set(table.y.tolist())) == list(range(10))
    assert entries(None)[0].rows == len(table.y)


@pytest.mark.parametrize("name", ["made", "made.npz"])
def test_names_are_found_in_the_data_folder(tmp_path, monkeypatch, name):
    archive(tmp_path)
    assert find_table(name, tmp_path).name == "made"
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert find_table(name).name == "made"
    assert load(name, silos=2).name == "made"


def test_the_folder_named_goes_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "elsewhere"))
    assert data_folder(tmp_path) == tmp_path
    with refused("elsewhere' does not exist (set by data_dir or COTERIE_DATA)"):
        data_folder(None)
    monkeypatch.delenv("COTERIE_DATA")
    assert data_folder(None) is None


def test_folders_are_found_by_name_and_by_path(tmp_path, monkeypatch):
    folder = write_idx(tmp_path)
    assert find_table("mnist", tmp_path).name == find_table(str(folder)).name == "mnist"
    monkeypatch.chdir(tmp_path)
    assert find_table("mnist").name == "mnist"


@pytest.mark.parametrize("damage", [False, True])
def test_an_unknown_name_names_the_nearest(tmp_path, damage):
    archive(tmp_path).rename(tmp_path / "school.npz")
    if damage:
        (tmp_path / "broken.npz").write_bytes(b"PK")
    with refused("; did you mean 'school'?"):
        find_table("scool", tmp_path)
    with refused("; known: digits, school"):
        find_table("xyz", tmp_path)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("scool", "is not built in (built in: digits)"),
        ("missing.csv", "'missing.csv' does not exist"),
        ("folder/missing", "'folder/missing' does not exist"),
    ],
)
def test_what_is_nowhere_is_refused(source, words):
    with refused(words):
        find_table(source)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path / "notes.txt", tmp_path):
        with refused(
            "has no known format; use a file (.npz, .csv, .parquet, .mat, .json) or a folder of IDX, LEAF or"
            " UCI HAR files"
        ):
            read(path)


def test_entries_list_what_a_folder_holds(tmp_path):
    archive(tmp_path).rename(tmp_path / "plain.npz")
    archive(tmp_path, silo=np.array([0, 0, 1, 1, 2, 2]))
    np.savez(tmp_path / "weights.npz", w=np.zeros(3))
    (tmp_path / "empty.npz").write_bytes(b"")
    written(tmp_path)
    write_idx(tmp_path)
    write_har(tmp_path)
    savemat(tmp_path / "school.mat", {"X": cell([np.eye(2)]), "Y": cell([np.ones((2, 1))])})
    (tmp_path / "users.json").write_text(leaf_text(a=[1]))
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / "nothing").mkdir()
    found = {entry.name: (entry.form, entry.rows, entry.silos) for entry in entries(tmp_path)}
    assert found == {
        "digits": ("built in", 1797, 0),
        "made": ("npz", 6, 3),
        "plain": ("npz", 6, 0),
        "clinics": ("CSV", None, None),
        "mnist": ("IDX", None, None),
        "UCI HAR Dataset": ("UCI HAR", None, None),
        "school": ("MATLAB", None, None),
        "users": ("LEAF", None, None),
    }
    assert [entry.name for entry in entries(None)] == ["digits"]


# The shared data sets

SHARED_SETS = {
    "school": (15362, 139),
    "vehicle_subset": (1860, 23),
    "har": (10299, 30),
    "femnist": (45911, 293),
    "mnist": (70000, 836),
    "fashion_mnist": (70000, 0),
    "cifar10_subset": (12000, 0),
    "imdb_bow": (25000, 0),
}


@pytest.mark.parametrize("name", SHARED_SETS)
def test_the_shared_sets_load_with_their_silos(shared_data, name):
    rows, silos = SHARED_SETS[name]
    made = from_table(find_table(name, shared_data))
    assert len(made) == (silos or 10)
    assert sum(made.sizes) + sum(len(silo.test_y) for silo in made.silos) == rows
    assert len(made.classes) == {
        "school": 0,
        "vehicle_subset": 2,
        "imdb_bow": 2,
        "har": 6,
        "femnist": 62,
    }.get(name, 10)


def test_entries_count_the_shared_sets(shared_data):
    found = {entry.name: (entry.rows, entry.silos) for entry in entries(shared_data)}
    assert found == SHARED_SETS | {"digits": (1797, 0)}
