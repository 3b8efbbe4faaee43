"""IDX files, the original format of MNIST and Fashion-MNIST, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from ...errors import Problem, reason
from .table import Table, join

TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
PARTS = ("train", "t10k")


def find(folder: Path, part: str, what: str) -> Path | None:
    """Return the path of one of the four files, under any of its usual names."""
    for name in (
        f"{part}-{what}-ubyte",
        f"{part}-{what}-ubyte.gz",
        f"{part}-{what.replace('-', '.')}-ubyte",
    ):
        if (folder / name).is_file():
            return folder / name
    return None


def recognise(folder: Path) -> bool:
    """Return whether a folder contains IDX training images."""
    return find(folder, "train", "images-idx3") is not None


def read(folder: Path) -> Table:
    """Read images and labels; the test files, if there are any, become the official split."""
    images, labels, split = [], [], []
    for number, part in enumerate(PARTS):
        image_file, label_file = (
            find(folder, part, "images-idx3"),
            find(folder, part, "labels-idx1"),
        )
        if image_file is None and part == "t10k":
            continue
        if image_file is None or label_file is None:
            raise Problem(f"data: '{folder}' has no IDX file with the {part} images or labels")
        x, y = read_array(image_file), read_array(label_file)
        if len(x) != len(y):
            raise Problem(f"data: '{image_file}' has {len(x)} images, but there are {len(y)} labels")
        images.append(x)
        labels.append(y)
        split.append(np.full(len(y), number))
    return Table(folder.name, join(images, folder), join(labels, folder), None, np.concatenate(split))


def read_array(path: Path) -> np.ndarray:
    """Read one IDX file."""
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise Problem(f"data: cannot read '{path}': {reason(error)}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES:
        raise Problem(f"data: '{path}' is not an IDX file")
    axes = content[3]
    start = 4 + 4 * axes
    if len(content) < start:
        raise Problem(f"data: '{path}' ends within its header; download it again")
    shape = struct.unpack(f">{axes}I", content[4:start])
    kind = np.dtype(TYPES[content[2]])
    surplus = len(content) - start - math.prod(shape) * kind.itemsize
    if surplus:
        what = "too short" if surplus < 0 else "too long"
        raise Problem(f"data: '{path}' is {what} for the shape {shape} in its header; download it again")
    array = np.frombuffer(content, kind, offset=start).reshape(shape)
    return array.astype(kind.newbyteorder("="))
