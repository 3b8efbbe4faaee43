"""From the rows of a table to numbers a model can take, and what that leaves uncovered."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ..errors import Problem, nearest
from .sources.table import Table, numbers

FEATURES = ("auto", "none", "invert", "log", "standardize", "unit")
KINDS = ("auto", "classification", "regression")
# One pair of public bounds for all number columns, or a pair for each column named.
Ranges = tuple[float, float] | Mapping[str, tuple[float, float]]
Transform = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def prepare(
    table: Table,
    kind: str,
    feature_range: Ranges | None,
    target_range: tuple[float, float] | None,
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Give features, targets and class names (none for a numeric target)."""
    x, y = table.x, table.y
    if kind not in KINDS:
        raise Problem(f"data.kind: unknown choice '{kind}'; {nearest(kind, KINDS)}")
    _check_shape(table)
    if x.dtype != np.uint8:
        x = numbers(x, f"the features of '{table.name}'")
        _check_finite(x, table)
    if feature_range is not None:
        x = _rescale_features(x, feature_range, table)
    if kind == "auto":
        kind = "regression" if y.dtype.kind == "f" and not _whole(y, table) else "classification"
        if y.dtype.kind == "f" and table.float_target_is_number:
            kind = "regression"
    if kind == "regression":
        y = numbers(y, f"the targets of '{table.name}', which are not classes for this loss,")
        _check_target(y, table)
        return x, y if target_range is None else _rescale(y, target_range, "target_range"), ()
    if target_range is not None:
        raise Problem("data.target_range: the target is a class, not a number")
    if y.dtype.kind == "f":
        _check_target(y, table)
        y = y.astype(np.int64) if _whole(y, table) else y
    labels, codes = np.unique(y, return_inverse=True)
    if len(labels) < 2:
        raise Problem(f"data: the target of '{table.name}' has only one value, '{labels[0]}'")
    return x, codes.astype(np.int64), tuple(str(label) for label in labels)


def _whole(y: np.ndarray, table: Table) -> bool:
    """Whether a float target holds whole numbers only."""
    return not table.float_target_is_number and bool(np.isfinite(y).all() and (y == np.round(y)).all())


def _rescale_features(x: np.ndarray, ranges: Ranges, table: Table) -> np.ndarray:
    """Rescale all columns of numbers, or those named; columns that were text stay 0 or 1."""
    if not isinstance(ranges, Mapping):
        scaled = _rescale(x, ranges, "feature_range")
        if table.indicators:
            scaled[:, list(table.indicators)] = x[:, list(table.indicators)]
        return scaled
    scaled = x.astype(np.float32)
    for name, limits in ranges.items():
        if name not in table.columns:
            raise Problem(
                f"data.feature_range: '{table.name}' has no column '{name}'; {nearest(name, table.columns)}"
            )
        column = table.columns.index(name)
        scaled[:, column] = _rescale(x[:, column], limits, f"feature_range.{name}")
    return scaled


def _rescale(values: np.ndarray, limits: tuple[float, float], key: str) -> np.ndarray:
    """Clip to the limits, then move these to 0 and 1."""
    low, high = limits
    if not low < high:
        raise Problem(f"data.{key}: expected [lowest, highest], got {list(limits)}")
    return ((np.clip(values.astype(np.float32), low, high) - low) / (high - low)).astype(np.float32)


def _check_shape(table: Table) -> None:
    x, y = table.x, table.y
    if len(x) == 0:
        raise Problem(f"data: '{table.name}' has no rows")
    if x.ndim < 2 or x.size == 0:
        raise Problem(
            f"data: '{table.name}' has no features: x needs a row an example, its shape is {x.shape}"
        )
    if y.shape != (len(x),):
        raise Problem(
            f"data: '{table.name}' needs one target for each of {len(x)} rows, y has shape {y.shape}"
        )


def _check_target(y: np.ndarray, table: Table) -> None:
    if not np.isfinite(y).all():
        row = int(np.flatnonzero(~np.isfinite(y))[0])
        raise Problem(
            f"data: '{table.name}' has a missing or infinite target value in row {row + 1}: drop the row"
        )


def _check_finite(x: np.ndarray, table: Table) -> None:
    bad = ~np.isfinite(x)
    if not bad.any():
        return
    row, *rest = (int(i) for i in np.unravel_index(bad.argmax(), bad.shape))
    what = "infinite" if np.isinf(x[row, *rest]) else "missing (NaN)"
    where = table.columns[rest[0]] if table.columns else ", ".join(str(i + 1) for i in rest)
    silo = f" (silo '{table.silo[row]}')" if table.silo is not None else ""
    raise Problem(
        f"data: {int(bad.sum())} feature value(s) are not finite, the first is {what}, in row {row + 1}"
        f"{silo}, column '{where}': fill it in or drop the row"
    )


def features(x: np.ndarray, how: str) -> tuple[Transform, float, tuple[str, ...]]:
    """Give a transform for each silo's (training, test) features, the late scale, and notes.

    "auto" divides bytes by 255 and leaves other numbers alone; "invert" does so after taking them from
    255, which makes dark writing on white large numbers on zero; "log" is log(1 + x); "unit" divides each
    example by its own norm, so that no other example is looked at;
    "standardize" uses the mean and deviation of each silo's own training examples, which
    is an access to examples that no budget pays for, and the statement says so.
    """
    if how not in FEATURES:
        raise Problem(f"data.features: unknown choice '{how}'; {nearest(how, FEATURES)}")
    if how == "standardize":
        note = "features standardized with each silo's own statistics, without noise"
        return _standardize, 1.0, (note,)
    if how == "unit":
        return lambda a, b: (unit(a), unit(b)), 1.0, ()
    if how == "log":
        if x.min() < 0:
            raise Problem("data.features: 'log' needs values >= 0")
        return lambda a, b: (_log(a), _log(b)), 1.0, ()
    if how == "invert":
        if x.dtype != np.uint8:
            raise Problem("data.features: 'invert' is for images in bytes")
        return lambda a, b: (255 - a, 255 - b), 1 / 255, ()
    scale = 1 / 255 if how == "auto" and x.dtype == np.uint8 else 1.0
    return lambda a, b: (a, b), scale, ()


def unit(x: np.ndarray, bound: float | None = None) -> np.ndarray:
    """Divide each example by its norm; with a public bound by that, shortening longer ones to it."""
    if bound is not None and not 0 < bound < math.inf:
        raise Problem(f"data.norm: expected a finite number > 0, got {bound:g}")
    wide = x.reshape(len(x), -1).astype(np.float64)
    norm = np.linalg.norm(wide, axis=1, keepdims=True)
    least = np.where(norm > 0, norm, 1.0) if bound is None else np.maximum(norm, bound)
    return (wide / least).reshape(x.shape).astype(np.float32)


def against_rest(
    y: np.ndarray, classes: tuple[str, ...], positive: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Set one class against the rest: targets 0 and 1, and two classes."""
    if positive not in classes:
        known = "the target is a number" if not classes else nearest(positive, classes)
        raise Problem(f"data.positive: there is no class '{positive}'; {known}")
    return (y == classes.index(positive)).astype(np.int64), (f"not {positive}", positive)


def _log(x: np.ndarray) -> np.ndarray:
    return np.log1p(x.astype(np.float32))


def _standardize(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and scale by the training rows; a constant column becomes zero."""
    mean = train.mean(0, dtype=np.float64)
    deviation = train.std(0, dtype=np.float64)
    deviation = np.where(deviation < 1e-6, 1.0, deviation)
    return tuple(((part - mean) / deviation).astype(np.float32) for part in (train, test))
