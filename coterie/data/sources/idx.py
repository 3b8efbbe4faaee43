"""IDX files, the original format of MNIST and Fashion-MNIST, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from ...errors import Problem, reason
from .limits import check_size, why
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
    """Read one IDX file; its header says how much there is to unpack."""
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as file:
            first = file.read(4)
            if len(first) < 4 or first[:2] != b"\0\0" or first[2] not in TYPES:
                raise Problem(f"data: '{path}' is not an IDX file")
            sizes = file.read(4 * first[3])
            if len(sizes) < 4 * first[3]:
                raise Problem(f"data: '{path}' ends within its header; download it again")
            shape, kind = struct.unpack(f">{first[3]}I", sizes), np.dtype(TYPES[first[2]])
            size = math.prod(shape) * kind.itemsize
            check_size(size, f"'{path}'")
            content = file.read(size + 1)
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        raise Problem(f"data: cannot read '{path}': {reason(error) or why(error)}") from error
    if len(content) != size:
        what = "too short" if len(content) < size else "too long"
        raise Problem(f"data: '{path}' is {what} for the shape {shape} in its header; download it again")
    return np.frombuffer(content, kind).reshape(shape).astype(kind.newbyteorder("="))
