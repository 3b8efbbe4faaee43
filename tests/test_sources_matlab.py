"""MATLAB files: a silo a cell, numeric targets or classes, and what wrong ones are told."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from scipy.io import savemat

from coterie.data.federation import load
from coterie.data.sources import matlab
from tests.helpers import refused
from tests.source_files import cell, read


def schools(sizes=(4, 30, 12), features: int = 5) -> tuple[list[np.ndarray], list[np.ndarray]]:
    generator = np.random.default_rng(0)
    x = [generator.normal(size=(n, features)) for n in sizes]
    return x, [generator.integers(1, 71, size=(n, 1)).astype(float) for n in sizes]


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("names", [("X", "Y"), ("x", "y")])
def test_school_has_a_silo_a_cell_and_a_numeric_target(tmp_path, column, names):
    x, y = schools()
    savemat(tmp_path / "school.mat", {names[0]: cell(x, column), names[1]: cell(y, column)})
    table = read(tmp_path / "school.mat")
    assert np.allclose(table.x, np.concatenate(x))
    assert np.array_equal(table.y, np.concatenate(y).ravel())
    assert table.silo.tolist() == ["silo-0"] * 4 + ["silo-1"] * 30 + ["silo-2"] * 12
    made = load("school", data_dir=tmp_path)
    assert made.classes == ()
    assert made.names == ("silo-0", "silo-1", "silo-2")


def test_whole_doubles_that_matlab_stores_as_bytes_stay_numbers(tmp_path):
    """MATLAB writes a double matrix of whole numbers as bytes, marked double; scipy does not."""
    x, y = schools()
    path = tmp_path / "school.mat"
    savemat(path, {"X": cell(x), "Y": cell([part.astype(np.uint8) for part in y])})
    flags = struct.pack("<4I", 6, 8, 9, 0)
    content = path.read_bytes()
    assert content.count(flags) == 3
    path.write_bytes(content.replace(flags, struct.pack("<4I", 6, 8, 6, 0)))
    table = read(path)
    assert table.y.dtype == np.float32
    assert np.array_equal(table.y, np.concatenate(y).ravel())


@pytest.mark.parametrize("kind", [float, np.int8])
def test_vehicle_has_two_classes(tmp_path, kind):
    x, _ = schools()
    y = [np.where(np.arange(len(part)) % 2, 1, -1)[:, None].astype(kind) for part in x]
    savemat(tmp_path / "vehicle.mat", {"X": cell(x), "Y": cell(y)})
    made = load(str(tmp_path / "vehicle.mat"))
    assert made.classes == ("-1", "1")
    assert made.sizes == (3, 24, 10)


def test_cells_may_have_a_column_an_example(tmp_path):
    """Also the cell that is as wide as high, which alone could not tell."""
    x, y = schools(sizes=(4, 5, 12), features=5)
    savemat(tmp_path / "a.mat", {"X": cell([rows.T for rows in x]), "Y": cell([t.T for t in y])})
    assert np.allclose(matlab.read(tmp_path / "a.mat").x, np.concatenate(x))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"X": cell([np.eye(2)])}, "needs cell arrays X and Y with one cell per silo; it has: x"),
        ({"X": np.eye(2), "Y": np.eye(2)}, "needs cell arrays X and Y with one cell per silo; it has: none"),
        ({"X": cell([np.eye(2)] * 2), "Y": cell([np.ones((2, 1))])}, "has 2 cells in X and 1 in Y"),
        ({"X": cell([np.eye(2)]), "Y": cell([np.ones((3, 1))])}, "cell 1 of"),
        ({"X": cell(["text"]), "Y": cell([np.ones((1, 1))])}, "cell 1 of X of"),
        ({"X": cell([np.ones((2, 3)), np.eye(2)]), "Y": cell([np.ones((2, 1))] * 2)}, "differ in shape"),
        ({"X": cell([]), "Y": cell([])}, "are empty; they need one cell per silo"),
    ],
)
def test_a_wrong_matlab_file_is_refused(tmp_path, content, words):
    savemat(tmp_path / "a.mat", content)
    with refused(words):
        read(tmp_path / "a.mat")


def test_what_is_no_matlab_file_is_refused(tmp_path):
    (tmp_path / "a.mat").write_bytes(b"no matlab file at all" * 20)
    with refused("as a MATLAB file"):
        read(tmp_path / "a.mat")
