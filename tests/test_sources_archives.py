"""Numpy archives: what is read from them, and what wrong ones are told."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data.federation import load
from tests.helpers import refused
from tests.source_files import archive, read


def test_an_archive_keeps_rows_silos_and_split(tmp_path):
    table = read(
        archive(tmp_path, silo=np.array([0, 0, 10, 10, 2, 2]), split=np.arange(6) % 2, other=np.zeros(3))
    )
    assert table.name == "made"
    assert table.silo.tolist() == ["silo-00", "silo-00", "silo-10", "silo-10", "silo-02", "silo-02"]
    assert table.split.tolist() == [0, 1, 0, 1, 0, 1]
    assert table.x.tolist() == np.arange(12.0).reshape(6, 2).tolist()
    assert table.y.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("silo", [None, np.full(6, -1)])
def test_an_archive_may_have_no_silos(tmp_path, silo):
    table = read(archive(tmp_path, silo=silo))
    assert table.silo is None
    assert table.split is None


def test_silos_of_an_archive_may_have_names(tmp_path):
    table = read(archive(tmp_path, silo=np.repeat(["north", "south"], 3)))
    assert table.silo.tolist() == ["north"] * 3 + ["south"] * 3


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": None}, "has no array 'x'"),
        ({"y": None}, "has no array 'y'"),
        ({"silo": np.zeros(5, int)}, "differ in length: {'x': 6, 'y': 6, 'silo': 5}"),
        ({"split": np.array(0)}, "differ in length"),
        ({"silo": np.array([-1, -1, 0, 0, 1, 1])}, "or -1 in all rows if there are no silos"),
        ({"y": np.array([1, "a", None] * 2, dtype=object)}, "cannot read the numpy archive"),
    ],
)
def test_a_wrong_archive_is_refused(tmp_path, arrays, words):
    with refused(words):
        read(archive(tmp_path, **arrays))


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_what_is_no_archive_is_refused(tmp_path, content):
    path = archive(tmp_path)
    path.write_bytes(path.read_bytes()[:90] if content is None else content)
    with refused("is not a numpy archive"):
        read(path)


def test_a_damaged_archive_is_refused(tmp_path):
    path = archive(tmp_path, x=np.random.default_rng(0).random((6, 200)))
    content = bytearray(path.read_bytes())
    content[300:400] = bytes(100)
    path.write_bytes(content)
    with refused("cannot read the numpy archive"):
        read(path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "'made' has no rows"),
        ({"x": np.zeros(6)}, "'made' has no features"),
        ({"x": np.zeros((6, 0))}, "'made' has no features"),
        ({"x": np.array([["a", "b"]] * 6)}, "the features of 'made' must be numbers"),
        ({"y": np.zeros((6, 1))}, "needs one target for each of 6 rows, but y has shape (6, 1)"),
        ({"y": np.zeros(6, int)}, "the target of 'made' has only one value, '0'"),
        ({"y": np.array([0.5, 1, np.nan, 1, 1, 1])}, "missing or infinite target value in row 3"),
    ],
)
def test_rows_that_cannot_be_learned_from_are_refused(tmp_path, arrays, words):
    with refused(words):
        load(str(archive(tmp_path, **arrays)), silos=2)


def test_a_pixel_that_is_not_finite_names_row_and_place(tmp_path):
    x = np.zeros((6, 4, 4))
    x[4, 1, 2] = np.inf
    with refused("the first is infinite, in row 5, column '2, 3'"):
        load(str(archive(tmp_path, x=x)), silos=2)
