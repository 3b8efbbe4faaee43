"""Every format, read from files written here in the official layout, and what bad files are told."""

from __future__ import annotations

import gzip
import json
import re
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from coterie.errors import Problem
from coterie.federation import from_table, load
from coterie.sources import matlab
from coterie.sources.catalogue import data_folder, entries, find_table


def refused(match: str):
    """Expect one sentence that contains the words given."""
    return pytest.raises(Problem, match=r"\A[^\n]*" + re.escape(match) + r"[^\n]*\Z")


def read(path: Path, **columns):
    return find_table(str(path), **columns)


# numpy archives


def archive(folder: Path, **arrays) -> Path:
    given = {"x": np.arange(12.0).reshape(6, 2), "y": np.array([0, 1, 0, 1, 0, 1]), **arrays}
    path = folder / "made.npz"
    np.savez_compressed(path, **{k: v for k, v in given.items() if v is not None})
    return path


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
        ({"silo": np.array([-1, -1, 0, 0, 1, 1])}, "only -1 in all of them may be"),
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
        ({"y": np.zeros((6, 1))}, "needs one target for each of 6 rows, y has shape (6, 1)"),
        ({"y": np.zeros(6, int)}, "the target of 'made' has only one value, '0'"),
        ({"y": np.array([0.5, 1, np.nan, 1, 1, 1])}, "missing or infinite target value in row 3"),
    ],
)
def test_rows_that_cannot_be_learned_from_are_refused(tmp_path, arrays, words):
    with refused(words):
        load(str(archive(tmp_path, **arrays)), silos=2)


# CSV and Parquet

FRAME = {
    "clinic": ["a", "a", "b", "b", "a", "b"],
    "age": [30, 40, 50, 60, 70, 80],
    "sex": ["f", "m", "f", "m", "m", "f"],
    "dose": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0],
    "ill": ["yes", "no", "yes", "no", "no", "yes"],
}


def written(folder: Path, form: str = "csv", drop: tuple[str, ...] = (), **columns) -> Path:
    frame = pd.DataFrame({**FRAME, **columns}).drop(columns=list(drop))
    path = folder / f"clinics.{form}"
    if path.suffix.lower() == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


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
    assert table.not_covered == (
        "text columns became one column for each value found in the data: 'sex' (2)",
    )


def test_the_federation_says_that_text_columns_were_read(tmp_path):
    made = clinics(written(tmp_path))
    assert made.names == ("a", "b")
    assert made.classes == ("no", "yes")
    assert made.not_covered == ("text columns became one column for each value found in the data: 'sex' (2)",)
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
    with refused("the first is missing (NaN), in row 2 (silo 'a'), column 'age'"):
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
    ("value", "what"), [(np.nan, "missing (NaN)"), (-np.inf, "infinite"), (1e300, "infinite")]
)
def test_a_feature_that_is_not_finite_names_row_silo_and_column(tmp_path, form, value, what):
    path = written(tmp_path, form, dose=[1, 2, 3, value, 5, value])
    with refused(
        f"2 feature value(s) are not finite, the first is {what}, in row 4 (silo 'b'), column 'dose'"
    ):
        clinics(path)


def test_a_pixel_that_is_not_finite_names_row_and_place(tmp_path):
    x = np.zeros((6, 4, 4))
    x[4, 1, 2] = np.inf
    with refused("the first is infinite, in row 5, column '2, 3'"):
        load(str(archive(tmp_path, x=x)), silos=2)


def test_a_file_without_features_or_rows_is_refused(tmp_path):
    with refused("'clinics.csv' has no feature column beside the target and the silo"):
        clinics(written(tmp_path, drop=("age", "sex", "dose")))
    path = tmp_path / "empty.csv"
    path.write_text("clinic,age,ill\n")
    with refused("'empty' has no rows"):
        clinics(path)


def test_a_text_column_of_very_many_values_is_refused(tmp_path):
    path = tmp_path / "many.csv"
    pd.DataFrame({"ill": [0, 1] * 60, "name": [f"n{i}" for i in range(120)]}).to_csv(path, index=False)
    with refused("text column 'name' of 'many.csv' has 120 different values"):
        read(path, target_column="ill")


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", b""), ("a.csv", b"\xff\xfe\0"), ("a.parquet", b"no")]
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with refused("data: cannot read '"):
        read(tmp_path / name, target_column="y")


# IDX

IMAGES = np.arange(7 * 4 * 4, dtype=np.uint8).reshape(7, 4, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2, 1], dtype=np.uint8)


def idx_bytes(array: np.ndarray, code: int = 8) -> bytes:
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, code, array.ndim]) + shape + array.tobytes()


def write_idx(folder: Path, test: bool = True, zipped: bool = False, dotted: bool = False) -> Path:
    """Write the files of MNIST: five images to train, two to test."""
    folder = folder / "mnist"
    folder.mkdir()
    parts = [("train", slice(5))] + [("t10k", slice(5, 7))] * test
    for part, rows in parts:
        for what, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            name = f"{part}-{what.replace('-', '.') if dotted else what}-ubyte"
            content = idx_bytes(array[rows])
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("layout", [{}, {"zipped": True}, {"dotted": True}])
def test_idx_folders_are_read(tmp_path, layout):
    table = read(write_idx(tmp_path, **layout))
    assert table.name == "mnist"
    assert table.x.dtype == np.uint8
    assert np.array_equal(table.x, IMAGES)
    assert np.array_equal(table.y, LABELS)
    assert table.split.tolist() == [0] * 5 + [1] * 2
    assert table.silo is None


def test_idx_test_files_may_be_missing(tmp_path):
    table = read(write_idx(tmp_path, test=False))
    assert np.array_equal(table.x, IMAGES[:5])
    assert table.split.tolist() == [0] * 5


@pytest.mark.parametrize(("code", "kind"), [(11, ">i2"), (13, ">f4"), (14, ">f8")])
def test_idx_numbers_come_in_the_byte_order_of_the_format(tmp_path, code, kind):
    folder = write_idx(tmp_path, test=False)
    values = (IMAGES[:5] - 3.0).astype(kind)
    (folder / "train-images-idx3-ubyte").write_bytes(idx_bytes(values, code))
    assert np.array_equal(read(folder).x, values)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train-images-idx3-ubyte", idx_bytes(IMAGES[:5])[:-1], "is cut short: its header promises"),
        ("train-images-idx3-ubyte", idx_bytes(IMAGES[:5])[:9], "is cut short within its header"),
        ("train-images-idx3-ubyte", idx_bytes(IMAGES[:5]) + b"\0", "is too long: its header promises"),
        ("train-labels-idx1-ubyte", b"\x01" + idx_bytes(LABELS[:5])[1:], "is not an IDX file"),
        ("train-labels-idx1-ubyte", idx_bytes(LABELS[:5], code=7), "is not an IDX file"),
        ("train-labels-idx1-ubyte", b"", "is not an IDX file"),
        ("t10k-labels-idx1-ubyte", idx_bytes(LABELS), "has 2 images for 7 labels"),
        ("t10k-images-idx3-ubyte", idx_bytes(IMAGES[5:, :3]), "differ in shape: (3, 4), (4, 4)"),
    ],
)
def test_a_wrong_idx_file_is_refused(tmp_path, name, content, words):
    folder = write_idx(tmp_path)
    (folder / name).write_bytes(content)
    with refused(words):
        read(folder)


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-12], lambda c: c[:12] + bytes(12) + c[24:], lambda c: b"no"]
)
def test_a_damaged_gzip_file_is_refused(tmp_path, damage):
    folder = write_idx(tmp_path, zipped=True)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with refused(f"cannot read '{path}'"):
        read(folder)


def test_missing_idx_labels_are_named(tmp_path):
    folder = write_idx(tmp_path)
    (folder / "train-labels-idx1-ubyte").unlink()
    with refused("lacks the train images or labels"):
        read(folder)


# LEAF


def leaf_text(**users) -> str:
    """Make a LEAF file: each user has labels, and images of its own grey level."""
    data = {u: {"x": [[i / 10] * 784 for i in range(len(y))], "y": y} for u, y in users.items()}
    return json.dumps(
        {"users": list(users), "num_samples": [len(y) for y in users.values()], "user_data": data}
    )


def test_a_leaf_file_has_a_silo_a_user(tmp_path):
    path = tmp_path / "femnist.json"
    path.write_text(leaf_text(f0001_41=[3, 4, 3], f0002_12=[], f0003_07=[4, 5]))
    table = read(path)
    assert table.name == "femnist"
    assert table.x.shape == (5, 28, 28)
    assert np.allclose(table.x[:, 0, 0], [0, 0.1, 0.2, 0, 0.1])
    assert table.y.tolist() == [3, 4, 3, 4, 5]
    assert table.silo.tolist() == ["f0001_41"] * 3 + ["f0003_07"] * 2
    assert table.split is None


def test_a_leaf_folder_has_train_and_test(tmp_path):
    for part, users in (("train", {"a": [0, 1], "b": [1]}), ("test", {"a": [1], "b": [0]})):
        (tmp_path / "femnist" / part).mkdir(parents=True)
        for user, labels in users.items():
            (tmp_path / "femnist" / part / f"all_data_{user}.json").write_text(leaf_text(**{user: labels}))
    table = find_table("femnist", tmp_path)
    assert table.silo.tolist() == ["a", "a", "b", "a", "b"]
    assert table.split.tolist() == [0, 0, 0, 1, 1]
    made = load("femnist", data_dir=tmp_path, test="official")
    assert made.sizes == (2, 1)
    assert [silo.test_y.tolist() for silo in made.silos] == [[1], [0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a LEAF file"),
        ("[1, 2]", "is not a LEAF file"),
        ('{"users": ["a"]}', "is not a LEAF file"),
        ('{"users": ["a"], "user_data": {}}', "is not a LEAF file"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1]]}}}', "is not a LEAF file"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [1, 2]}}}', "user 'a' of"),
        ('{"users": ["a"], "user_data": {"a": {"x": ["to be"], "y": [1]}}}', "x of user 'a' of"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1], [1, 2]], "y": [1, 2]}}}', "rows of one length"),
        (
            '{"users": ["a", "b"], "user_data":'
            ' {"a": {"x": [[1]], "y": [1]}, "b": {"x": [[1, 2]], "y": [1]}}}',
            "differ in shape: (1,), (2,)",
        ),
        (leaf_text(), "holds no LEAF user"),
    ],
)
def test_a_wrong_leaf_file_is_refused(tmp_path, text, words):
    (tmp_path / "users.json").write_text(text)
    with refused(words):
        read(tmp_path / "users.json")


# UCI HAR


def write_har(folder: Path, test: bool = True, **changed: str) -> Path:
    """Write the folder of UCI, with three features instead of 561."""
    folder = folder / "UCI HAR Dataset"
    files = {
        "train/X_train.txt": "  2.8e-001 -2.0e-002 -1.3e-001\n" * 4,
        "train/y_train.txt": "5\n1\n5\n1\n",
        "train/subject_train.txt": "1\n1\n11\n11\n",
        "activity_labels.txt": "1 WALKING\n2 WALKING_UPSTAIRS\n5 STANDING\n",
    }
    if test:
        files |= {
            "test/X_test.txt": "  1.0e+000  0.0e+000 -1.0e+000\n" * 2,
            "test/y_test.txt": "2\n1\n",
            "test/subject_test.txt": "2\n2\n",
        }
    for name, text in (files | changed).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_har_folder_has_a_silo_a_person(tmp_path):
    table = read(write_har(tmp_path))
    assert table.x.shape == (6, 3)
    assert np.allclose(table.x[[0, 5]], [[0.28, -0.02, -0.13], [1, 0, -1]])
    assert table.y.tolist() == ["standing", "walking"] * 2 + ["walking_upstairs", "walking"]
    assert table.silo.tolist() == ["person-01"] * 2 + ["person-11"] * 2 + ["person-02"] * 2
    assert table.split.tolist() == [0] * 4 + [1] * 2


def test_the_har_folder_may_lack_names_and_test(tmp_path):
    folder = write_har(tmp_path, test=False)
    (folder / "activity_labels.txt").unlink()
    table = read(folder)
    assert table.y.tolist() == [5, 1, 5, 1]
    assert table.split.tolist() == [0] * 4


def test_the_official_split_of_har_has_no_silo_with_both_parts(tmp_path):
    with refused("silo 'person-01' has no test example in the official split: give data.test a share"):
        load(str(write_har(tmp_path)), test="official")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train/y_train.txt": "1\n5\n"}, "differ in length: [2, 4]"),
        ({"train/y_train.txt": "1\nfive\n5\n1\n"}, "cannot read the UCI HAR folder"),
        ({"test/X_test.txt": "1 2\n1 2\n"}, "differ in shape: (2,), (3,)"),
        ({"activity_labels.txt": "WALKING\n"}, "needs lines as '1 WALKING'"),
    ],
)
def test_a_wrong_har_folder_is_refused(tmp_path, changed, words):
    with refused(words):
        read(write_har(tmp_path, **changed))


def test_a_missing_har_file_is_named(tmp_path):
    folder = write_har(tmp_path)
    (folder / "test" / "subject_test.txt").unlink()
    with refused("subject_test.txt"):
        read(folder)


# MATLAB


def cell(parts, column: bool = False) -> np.ndarray:
    """Make a cell array, one row or one column of cells."""
    made = np.empty((len(parts), 1) if column else (1, len(parts)), dtype=object)
    for k, part in enumerate(parts):
        made.flat[k] = part
    return made


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
        ({"X": cell([np.eye(2)])}, "needs cell arrays X and Y, one cell a silo; it has: x"),
        ({"X": np.eye(2), "Y": np.eye(2)}, "needs cell arrays X and Y, one cell a silo; it has: none"),
        ({"X": cell([np.eye(2)] * 2), "Y": cell([np.ones((2, 1))])}, "has 2 cells in X and 1 in Y"),
        ({"X": cell([np.eye(2)]), "Y": cell([np.ones((3, 1))])}, "cell 1 of"),
        ({"X": cell(["text"]), "Y": cell([np.ones((1, 1))])}, "cell 1 of X of"),
        ({"X": cell([np.ones((2, 3)), np.eye(2)]), "Y": cell([np.ones((2, 1))] * 2)}, "differ in shape"),
        ({"X": cell([]), "Y": cell([])}, "has no cell in X and Y"),
    ],
)
def test_a_wrong_matlab_file_is_refused(tmp_path, content, words):
    savemat(tmp_path / "a.mat", content)
    with refused(words):
        read(tmp_path / "a.mat")


def test_what_is_no_matlab_file_is_refused(tmp_path):
    (tmp_path / "a.mat").write_bytes(b"no matlab file at all" * 20)
    with refused("is not a MATLAB file that can be read"):
        read(tmp_path / "a.mat")


# The catalogue


def test_digits_are_built_in():
    table = find_table("digits")
    assert table.x.shape == (1797, 8, 8)
    assert (table.x.min(), table.x.max()) == (0, 1)
    assert sorted(set(table.y.tolist())) == list(range(10))


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
    with refused("elsewhere' does not exist (--data-dir or COTERIE_DATA)"):
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
        ("scool", "is not built in (digits)"),
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
        with refused("is none of: .npz, .csv, .parquet, .mat, .json files, folders of IDX, LEAF or UCI HAR"):
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
