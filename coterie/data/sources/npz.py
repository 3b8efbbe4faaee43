"""numpy archives with arrays `x`, `y` and optionally `silo` (-1: no silos) and `split`."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from ...errors import Problem
from .table import Table

UNREADABLE = (ValueError, OSError, zipfile.BadZipFile, zlib.error)


def read(path: Path) -> Table:
    """Read `name.npz`."""
    if not zipfile.is_zipfile(path):
        raise Problem(f"data: '{path}' is not a numpy archive such as numpy.savez writes")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files if key in ("x", "y", "silo", "split")}
    except UNREADABLE as error:
        raise Problem(f"data: cannot read the numpy archive '{path}': {error}") from error
    return from_arrays(arrays, path.stem, str(path))


def from_arrays(arrays: dict[str, np.ndarray], name: str, what: str) -> Table:
    """Make a table from arrays; messages call them `what`."""
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
    return Table(name, arrays["x"], arrays["y"], names, arrays.get("split"), what=what)


def describe(path: Path) -> tuple[int, int] | None:
    """Return the numbers of rows and silos without reading the features; None if it is not a data set."""
    if not zipfile.is_zipfile(path):
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not {"x", "y"} <= set(archive.files):
                return None
            silo = archive["silo"] if "silo" in archive.files else np.full(len(archive["y"]), -1)
    except UNREADABLE:
        return None
    return len(silo), 0 if (silo == -1).all() else len(np.unique(silo))
