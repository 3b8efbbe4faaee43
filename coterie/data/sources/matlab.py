"""MATLAB files with one cell per silo (School, Vehicle): cells of features and of targets."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from ...errors import Problem
from .limits import check_size, data_limit, why
from .table import Table, join, numbers

COMPRESSED, PIECE = 15, 2**20


def unpacked_size(path: Path) -> int:
    """Return how many bytes the variables of a file have when unpacked; stop counting above the limit.

    Each variable begins with its kind and its number of bytes. Compressed ones are unpacked piece by piece,
    and only counted. Files of other versions than 5 count as they are.
    """
    total, most = 0, data_limit()
    with path.open("rb") as file:
        head = file.read(128)
        order = {b"IM": "<", b"MI": ">"}.get(head[126:128])
        if len(head) < 128 or order is None:
            return path.stat().st_size
        while len(tag := file.read(8)) == 8 and total <= most:
            kind, size = struct.unpack(f"{order}II", tag)
            if kind != COMPRESSED:
                total += size
                file.seek(size, 1)
                continue
            unpack = zlib.decompressobj()
            while size > 0 and (piece := file.read(min(size, PIECE))):
                size -= len(piece)
                while piece and total <= most:
                    total += len(unpack.decompress(piece, PIECE))
                    piece = unpack.unconsumed_tail
    return total


def read(path: Path) -> Table:
    """Read two cell arrays of the same length, named X and Y (upper or lower case).

    Examples are the rows of the cells of X, or the columns if that is what fits all cells.
    """
    from scipy.io import loadmat

    try:
        check_size(8 * unpacked_size(path), f"the MATLAB file '{path}'")  # a byte may stand for a double
        content = loadmat(str(path), mat_dtype=True)  # otherwise whole doubles arrive as bytes
    except Problem:
        raise
    except Exception as error:  # loadmat raises many kinds
        raise Problem(f"data: cannot read '{path}' as a MATLAB file: {why(error)}") from error
    cells = {
        k.lower(): v.ravel() for k, v in content.items() if getattr(v, "dtype", None) == np.dtype(object)
    }
    if "x" not in cells or "y" not in cells:
        names = ", ".join(cells) or "none"
        raise Problem(f"data: '{path}' needs cell arrays X and Y with one cell per silo; it has: {names}")
    features, targets = cells["x"], cells["y"]
    if len(features) != len(targets):
        raise Problem(f"data: '{path}' has {len(features)} cells in X and {len(targets)} in Y")
    if len(features) == 0:
        raise Problem(f"data: the cell arrays X and Y of '{path}' are empty; they need one cell per silo")
    x = [numbers(rows, f"cell {k + 1} of X of '{path}'") for k, rows in enumerate(features)]
    y = [np.asarray(target).ravel() for target in targets]
    if all(rows.shape[-1] == len(target) for rows, target in zip(x, y, strict=True)):
        fits = [len(rows) == len(target) for rows, target in zip(x, y, strict=True)]
        x = x if all(fits) else [rows.T for rows in x]
    silo: list[str] = []
    width = len(str(len(features) - 1))
    for k, (rows, target) in enumerate(zip(x, y, strict=True)):
        if len(rows) != len(target):
            raise Problem(
                f"data: cell {k + 1} of '{path}' has {len(rows)} rows in X but {len(target)} targets in Y"
            )
        silo += [f"silo-{k:0{width}d}"] * len(target)
    target = np.concatenate(y)
    whole = target.dtype.kind == "f" and (target == np.round(target)).all()
    if whole and len(np.unique(target)) <= 10:
        target = target.astype(np.int64)
    return Table(
        path.stem,
        join(x, path),
        target.astype(np.float32) if target.dtype.kind == "f" else target,
        np.array(silo),
    )
