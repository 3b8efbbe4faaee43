"""numpy archives with arrays `x`, `y` and optionally `silo` (-1: no silos), `split` and `person`."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._inputs import Input, describe_inputs, flatten_inputs
from ...errors import Problem
from .limits import check_size, why
from .table import Table

PART = "x."  # of the names of several inputs, such as x.image and x.age
NAMES = ("x", "y", "silo", "split", "person")


class Header(NamedTuple):
    """What an archive says about one of its arrays, and where its numbers end."""

    shape: tuple[int, ...]
    dtype: np.dtype
    end: int

    @property
    def size(self) -> int:
        """How many bytes the array has."""
        return math.prod(self.shape) * self.dtype.itemsize


def read(path: Path) -> Table:
    """Read `name.npz`."""
    if not zipfile.is_zipfile(path):
        raise Problem(f"data: '{path}' is not a numpy archive such as numpy.savez writes")
    try:
        found = headers(path)
        check_size(sum(header.size for header in found.values()), f"the archive '{path}'")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in found}
    except Problem:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise many kinds
        raise Problem(f"data: cannot read the numpy archive '{path}': {why(error)}") from error
    return from_arrays(arrays, path.stem, str(path))


def headers(path: Path) -> dict[str, Header]:
    """Return what an archive says about its arrays, after checking that it holds what it says.

    No array is read: a header is some hundred bytes.
    """
    found: dict[str, Header] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if not (name in NAMES or name.startswith(PART)) or name == member.filename:
                continue
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read_header = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }.get(version)
                if read_header is None:
                    raise ValueError(f"'{name}' has the unknown version {version[0]}.{version[1]}")
                shape, _, dtype = read_header(file)
                header = Header(tuple(shape), dtype, file.tell())
            if dtype.hasobject:
                raise ValueError(f"'{name}' holds Python objects: save it as numbers or text")
            if min(shape, default=0) < 0 or header.end + header.size != member.file_size:
                raise ValueError(
                    f"'{name}' says that it has the shape {_short(shape)}, which does not fit its"
                    f" {member.file_size - header.end} bytes"
                )
            found[name] = header
    return found


def _short(shape: tuple[int, ...]) -> str:
    return str(shape) if len(str(shape)) <= 80 else f"{str(shape)[:80]}...)"


def from_arrays(arrays: dict[str, np.ndarray], name: str, what: str) -> Table:
    """Make a table from arrays; messages call them `what`."""
    arrays, inputs = _packed(arrays, what)
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing:
        raise Problem(f"data: '{what}' has no array '{missing[0]}'; it needs x and y, and usually silo")
    lengths = {key: len(np.atleast_1d(value)) for key, value in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise Problem(f"data: the arrays of '{what}' differ in length: {lengths}")
    silo = arrays.get("silo")
    names = None
    if silo is not None and not (silo.dtype.kind in "iu" and (silo == -1).all()):
        if silo.dtype.kind == "i" and silo.min() < 0:
            raise Problem(
                f"data: 'silo' of '{what}' must be >= 0 in all rows, or -1 in all rows if there are no silos"
            )
        width = len(str(silo.max())) if silo.dtype.kind in "iu" else 0
        names = np.array([f"silo-{int(s):0{width}d}" if width else str(s) for s in silo])
    person = arrays.get("person")
    if person is not None and person.ndim != 1:
        raise Problem(f"data: 'person' of '{what}' must hold one number or text per row")
    if person is not None and person.dtype.kind == "f" and not np.isfinite(person).all():
        missing_row = int(np.flatnonzero(~np.isfinite(person))[0]) + 1
        raise Problem(f"data: 'person' is missing in row {missing_row}: fill it in or drop the row")
    return Table(name, arrays["x"], arrays["y"], names, arrays.get("split"), person, what=what, inputs=inputs)


def _packed(arrays: dict[str, np.ndarray], what: str) -> tuple[dict[str, np.ndarray], tuple[Input, ...]]:
    """Lay several inputs `x.NAME` end to end, as one array `x`."""
    parts = {key.removeprefix(PART): value for key, value in arrays.items() if key.startswith(PART)}
    if not parts:
        return arrays, ()
    if "x" in arrays:
        raise Problem(f"data: '{what}' has both x and '{PART}{next(iter(parts))}': keep one of the two")
    inputs = describe_inputs(parts, what)
    rest = {key: value for key, value in arrays.items() if not key.startswith(PART)}
    return rest | {"x": flatten_inputs(parts, inputs, "data")}, inputs


def describe(path: Path) -> tuple[int, int] | None:
    """Return the numbers of rows and silos without reading the features; None if it is not a data set."""
    if not zipfile.is_zipfile(path):
        return None
    try:
        found = headers(path)
        has_x = "x" in found or any(name.startswith(PART) for name in found)
        if not has_x or "y" not in found or not found["y"].shape:
            return None
        rows = found["y"].shape[0]
        if "silo" not in found:
            return rows, 0
        check_size(found["silo"].size, f"'silo' of '{path}'")
        with np.load(path, allow_pickle=False) as archive:
            silo = archive["silo"]
    except Exception:  # zipfile, zlib and numpy raise many kinds
        return None
    return len(silo), 0 if (silo == -1).all() else len(np.unique(silo))
