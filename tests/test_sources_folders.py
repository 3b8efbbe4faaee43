"""Folders and files of IDX, LEAF and UCI HAR: what is read from them, and what wrong ones are told."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data.federation import load
from coterie.data.sources.catalogue import find_table
from tests.helpers import refused
from tests.source_files import IMAGES, LABELS, idx_bytes, leaf_text, read, write_har, write_idx

# IDX


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
        (
            "train-images-idx3-ubyte",
            idx_bytes(IMAGES[:5])[:-1],
            "is too short for the shape (5, 4, 4) in its header",
        ),
        ("train-images-idx3-ubyte", idx_bytes(IMAGES[:5])[:9], "ends within its header"),
        (
            "train-images-idx3-ubyte",
            idx_bytes(IMAGES[:5]) + b"\0",
            "is too long for the shape (5, 4, 4) in its header",
        ),
        ("train-labels-idx1-ubyte", b"\x01" + idx_bytes(LABELS[:5])[1:], "is not an IDX file"),
        ("train-labels-idx1-ubyte", idx_bytes(LABELS[:5], code=7), "is not an IDX file"),
        ("train-labels-idx1-ubyte", b"", "is not an IDX file"),
        ("t10k-labels-idx1-ubyte", idx_bytes(LABELS), "has 2 images, but there are 7 labels"),
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
    with refused("has no IDX file with the train images or labels"):
        read(folder)


# LEAF


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
        (
            '{"users": ["a"], "user_data": {"a": {"x": [[1], [1, 2]], "y": [1, 2]}}}',
            "numbers in rows of equal length",
        ),
        (
            '{"users": ["a", "b"], "user_data":'
            ' {"a": {"x": [[1]], "y": [1]}, "b": {"x": [[1, 2]], "y": [1]}}}',
            "differ in shape: (1,), (2,)",
        ),
        (leaf_text(), "has no LEAF user with examples"),
    ],
)
def test_a_wrong_leaf_file_is_refused(tmp_path, text, words):
    (tmp_path / "users.json").write_text(text)
    with refused(words):
        read(tmp_path / "users.json")


# UCI HAR


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
        ({"activity_labels.txt": "WALKING\n"}, "needs lines such as '1 WALKING'"),
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
