"""Data files written in the official layout of each format, for tests."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pandas as pd

from coterie.data.sources.catalogue import find_table


def read(path: Path, **columns):
    return find_table(str(path), **columns)


def archive(folder: Path, **arrays) -> Path:
    given = {"x": np.arange(12.0).reshape(6, 2), "y": np.array([0, 1, 0, 1, 0, 1]), **arrays}
    path = folder / "made.npz"
    np.savez_compressed(path, **{k: v for k, v in given.items() if v is not None})
    return path


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


def leaf_text(**users) -> str:
    """Make a LEAF file: each user has labels, and images of its own grey level."""
    data = {u: {"x": [[i / 10] * 784 for i in range(len(y))], "y": y} for u, y in users.items()}
    return json.dumps(
        {"users": list(users), "num_samples": [len(y) for y in users.values()], "user_data": data}
    )


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


def cell(parts, column: bool = False) -> np.ndarray:
    """Make a cell array, one row or one column of cells."""
    made = np.empty((len(parts), 1) if column else (1, len(parts)), dtype=object)
    for k, part in enumerate(parts):
        made.flat[k] = part
    return made
