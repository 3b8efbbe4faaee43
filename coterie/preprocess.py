"""From the rows of a table to numbers a model can take, and what that leaves uncovered."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .errors import Problem, nearest
from .sources.table import Table

FEATURES = ("auto", "none", "log", "standardize")
Transform = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def prepare(
    table: Table,
    kind: str,
    feature_range: tuple[float, float] | None,
    target_range: tuple[float, float] | None,
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Give features, targets and class names (none for a numeric target)."""
    x, y = table.x, table.y
    if len(x) == 0:
        raise Problem(f"data: '{table.name}' has no rows")
    if x.dtype != np.uint8:
        x = np.asarray(x, dtype=np.float32)
        _check_finite(x, table)
    if feature_range is not None:
        low, high = feature_range
        x = ((np.clip(x, low, high) - low) / (high - low)).astype(np.float32)
    if kind == "auto":
        kind = "regression" if y.dtype.kind == "f" and not _whole(y, table) else "classification"
        if y.dtype.kind == "f" and table.float_target_is_number:
            kind = "regression"
    if kind == "regression":
        try:
            y = y.astype(np.float32)
        except ValueError as error:
            raise Problem(f"data: the target must be a number for this loss: {error}") from error
        if not np.isfinite(y).all():
            raise Problem(f"data: '{table.name}' has a missing or infinite target value")
        if target_range is not None:
            low, high = target_range
            y = ((np.clip(y, low, high) - low) / (high - low)).astype(np.float32)
        return x, y, ()
    if target_range is not None:
        raise Problem("data.target_range: the target is a class, not a number")
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            raise Problem(f"data: '{table.name}' has a missing or infinite target value")
        y = y.astype(np.int64) if _whole(y, table) else y
    labels, codes = np.unique(y, return_inverse=True)
    if len(labels) < 2:
        raise Problem(f"data: the target of '{table.name}' has only one value, '{labels[0]}'")
    return x, codes.astype(np.int64), tuple(str(label) for label in labels)


def _whole(y: np.ndarray, table: Table) -> bool:
    """Whether a float target holds whole numbers only."""
    return not table.float_target_is_number and bool(np.isfinite(y).all() and (y == np.round(y)).all())


def _check_finite(x: np.ndarray, table: Table) -> None:
    flat = x.reshape(len(x), -1)
    bad = ~np.isfinite(flat)
    if not bad.any():
        return
    row, column = np.argwhere(bad)[0]
    what = "infinite" if np.isinf(flat[row, column]) else "missing (NaN)"
    where = table.columns[column] if table.columns else str(column)
    silo = f" of silo '{table.silo[row]}'" if table.silo is not None else ""
    raise Problem(
        f"data: {int(bad.sum())} feature value(s) are not finite, the first is {what}, in row {row}"
        f"{silo}, column '{where}': fill it in or drop the row"
    )


def features(x: np.ndarray, how: str, ranged: bool) -> tuple[Transform, float, tuple[str, ...]]:
    """Give a transform for each silo's (training, test) features, the late scale, and notes.

    "auto" divides bytes by 255 and leaves other numbers alone; "log" is log(1 + x);
    "standardize" uses the mean and deviation of each silo's own training examples, which
    is an access to examples that no budget pays for, and the statement says so.
    """
    if how not in FEATURES:
        raise Problem(f"data.features: unknown choice '{how}'; {nearest(how, FEATURES)}")
    if how == "standardize":
        note = "features standardized with each silo's own statistics, without noise"
        return _standardize, 1.0, (note,)
    if how == "log":
        if x.min() < 0:
            raise Problem("data.features: 'log' needs values >= 0")
        return lambda a, b: (_log(a), _log(b)), 1.0, ()
    scale = 1 / 255 if how == "auto" and x.dtype == np.uint8 and not ranged else 1.0
    return lambda a, b: (a, b), scale, ()


def _log(x: np.ndarray) -> np.ndarray:
    return np.log1p(x.astype(np.float32))


def _standardize(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and scale by the training rows; a constant column becomes zero."""
    mean = train.mean(0, dtype=np.float64)
    deviation = train.std(0, dtype=np.float64)
    deviation = np.where(deviation < 1e-6, 1.0, deviation)
    return tuple(((part - mean) / deviation).astype(np.float32) for part in (train, test))
