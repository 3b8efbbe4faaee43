"""MATLAB files with one cell a silo (School, Vehicle): cells of features and of targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import Problem
from .table import Table


def read(path: Path) -> Table:
    """Read two cell arrays of the same length, named X and Y (in either case)."""
    from scipy.io import loadmat

    try:
        content = loadmat(str(path))
    except Exception as error:  # loadmat raises many kinds
        raise Problem(f"data: '{path}' is not a MATLAB file that can be read: {error}") from error
    cells = {
        k.lower(): v.ravel() for k, v in content.items() if getattr(v, "dtype", None) == np.dtype(object)
    }
    if "x" not in cells or "y" not in cells:
        names = ", ".join(cells) or "none"
        raise Problem(f"data: '{path}' needs cell arrays X and Y, one cell a silo; it has: {names}")
    features, targets = cells["x"], cells["y"]
    if len(features) != len(targets):
        raise Problem(f"data: '{path}' has {len(features)} cells in X and {len(targets)} in Y")
    x, y, silo = [], [], []
    width = len(str(len(features) - 1))
    for k, (rows, target) in enumerate(zip(features, targets, strict=True)):
        target = np.asarray(target).ravel()
        rows = np.asarray(rows, dtype=np.float32)
        if rows.shape[0] != len(target) and rows.shape[-1] == len(target):
            rows = rows.T
        if rows.shape[0] != len(target):
            raise Problem(f"data: cell {k} of '{path}' has {len(rows)} rows for {len(target)} targets")
        x.append(rows)
        y.append(target)
        silo += [f"silo-{k:0{width}d}"] * len(target)
    target = np.concatenate(y)
    whole = target.dtype.kind == "f" and (target == np.round(target)).all()
    if whole and len(np.unique(target)) <= 10:
        target = target.astype(np.int64)
    return Table(
        path.stem,
        np.concatenate(x),
        target.astype(np.float32) if target.dtype.kind == "f" else target,
        np.array(silo),
    )
