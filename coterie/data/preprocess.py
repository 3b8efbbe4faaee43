"""From the rows of a table to numbers a model can take: single steps, each for any number of rows.

`preparation.py` puts the steps in order and remembers them, so that new rows go the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import Problem, nearest
from .several import check_labels_of_several
from .sources.table import Table, numbers

FEATURES = ("auto", "none", "invert", "log", "standardize", "unit", "ids")
MOST_IDS = 2**24  # float32 numbers, as tables of columns hold them, are exact up to here
KINDS = ("auto", "classification", "regression")
# One pair of public bounds for all number columns, or a pair for each column named.
Ranges = tuple[float, float] | Mapping[str, tuple[float, float]]
# A mean and a deviation for each column named, which are public or were paid for.
Scales = Mapping[str, tuple[float, float]]


def targets(
    table: Table, kind: str, target_range: tuple[float, float] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the targets and the names of their classes (none for a numeric target)."""
    y = table.y
    if kind not in KINDS:
        raise Problem(f"data.kind: unknown choice '{kind}'; {nearest(kind, KINDS)}")
    if kind == "auto":
        kind = "regression" if y.dtype.kind == "f" and not _whole(y, table) else "classification"
        if y.dtype.kind == "f" and table.float_target_is_number:
            kind = "regression"
    if kind == "regression":
        y = numbers(y, f"the targets of '{table.called}', which are not classes for this loss,")
        _check_target(y, table)
        return y if target_range is None else rescale(y, target_range, "target_range"), ()
    if target_range is not None:
        raise Problem("data.target_range: the target is a class, not a number")
    if y.dtype.kind == "f":
        _check_target(y, table)
        y = y.astype(np.int64) if _whole(y, table) else y
    labels, codes = np.unique(y, return_inverse=True)
    check_labels_of_several(y, labels, table)
    if len(labels) < 2:
        raise Problem(f"data: the target of '{table.called}' has only one value, '{labels[0]}'")
    return codes.astype(np.int64).reshape(y.shape), tuple(str(label) for label in labels)


def _whole(y: np.ndarray, table: Table) -> bool:
    """Whether a float target holds whole numbers only."""
    return not table.float_target_is_number and bool(np.isfinite(y).all() and (y == np.round(y)).all())


def check_rows(table: Table) -> None:
    """Raise `Problem` unless features are rows of finite numbers, with one target per row."""
    x, y = table.x, table.y
    if len(x) == 0:
        raise Problem(f"data: '{table.called}' has no rows")
    if x.ndim < 2 or x.size == 0:
        raise Problem(
            f"data: '{table.called}' has no features: x needs one row per example, but its shape is {x.shape}"
        )
    if y.shape[:1] != (len(x),) or y.ndim > 2 or (y.ndim == 2 and y.shape[1] < 2):
        hint = ": use y.ravel()" if y.shape == (len(x), 1) else ""
        raise Problem(
            f"data: '{table.called}' needs one target for each of {len(x)} rows, but y has shape"
            f" {y.shape}{hint}"
        )
    if y.dtype.kind == "c":
        raise Problem(f"data: the target of '{table.called}' is a complex number: give a real one")
    if x.dtype != np.uint8:
        _check_finite(numbers(x, f"the features of '{table.called}'"), table)


def _check_target(y: np.ndarray, table: Table) -> None:
    if not np.isfinite(y).all():
        row = int(np.argwhere(~np.isfinite(y))[0][0])
        raise Problem(
            f"data: '{table.called}' has a missing or infinite target value in row {row + 1}: drop the row"
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
        f"data: {int(bad.sum())} feature value(s) are not finite; the first is {what}, in row {row + 1}"
        f"{silo}, column '{where}': fill it in or drop the row"
    )


def check_ranges(ranges: Ranges, columns: Sequence[str], name: str, text: Sequence[str] = ()) -> None:
    """Raise `Problem` for impossible bounds, and for bounds of columns that a table does not have.

    `text` are columns of text, which need no bounds.
    """
    if not isinstance(ranges, Mapping):
        check_range(ranges, "feature_range")
        return
    for column, limits in ranges.items():
        if column in text:
            raise Problem(
                f"data.feature_range: '{column}' is a column of text, which becomes columns of 0 and 1: it"
                " needs no range"
            )
        if column not in columns:
            raise Problem(
                f"data.feature_range: '{name}' has no column '{column}'; {nearest(column, columns)}"
            )
        check_range(limits, f"feature_range.{column}")


def check_range(limits: tuple[float, float], key: str) -> None:
    """Raise `Problem` if bounds are not two finite numbers in order."""
    low, high = limits
    if not -math.inf < low < high < math.inf:
        raise Problem(f"data.{key}: expected [lowest, highest], got {list(limits)}")


def rescale_features(
    x: np.ndarray, ranges: Ranges, columns: Sequence[str], indicators: Sequence[int]
) -> np.ndarray:
    """Rescale all columns of numbers, or those named; columns that were text stay 0 or 1."""
    if not isinstance(ranges, Mapping):
        scaled = rescale(x, ranges, "feature_range")
        if indicators:
            scaled[:, list(indicators)] = x[:, list(indicators)]
        return scaled
    scaled = x.astype(np.float32)
    for name, limits in ranges.items():
        column = columns.index(name)
        scaled[:, column] = rescale(x[:, column], limits, f"feature_range.{name}")
    return scaled


def standardize_columns(
    scaled: np.ndarray,
    x: np.ndarray,
    scales: Scales,
    ranges: Ranges | None,
    columns: Sequence[str],
) -> np.ndarray:
    """Centre and scale some columns of raw numbers by means and deviations, after clipping to their bounds.

    The other columns are those of `scaled`, in which bounds were moved to 0 and 1.
    """
    done = np.array(scaled, dtype=np.float32)
    for name, (mean, deviation) in scales.items():
        place = columns.index(name)
        bounds = ranges.get(name) if isinstance(ranges, Mapping) else ranges
        raw = x[:, place].astype(np.float64)
        if bounds is not None:
            raw = np.clip(raw, *bounds)
        done[:, place] = (raw - mean) / deviation
    return done


def check_scales(scales: Scales, columns: Sequence[str], name: str, words: Sequence[str] = ()) -> None:
    """Raise `Problem` for impossible means and deviations, and for columns that hold no numbers.

    `words` are columns that do not.
    """
    for column, (mean, deviation) in scales.items():
        where = f"data.standardize.{column}"
        if column in words or column not in columns:
            why = "it holds words" if column in words else nearest(column, columns)
            raise Problem(f"{where}: '{name}' has no such column of numbers; {why}")
        if not (math.isfinite(mean) and 0 < deviation < math.inf):
            raise Problem(f"{where}: expected [mean, deviation > 0], got {[mean, deviation]}")


def out_of_range(
    x: np.ndarray, ranges: Ranges, columns: Sequence[str], indicators: Sequence[int]
) -> list[str]:
    """Return the names of the columns of which no value lies within its bounds."""
    if x.ndim != 2:
        return []
    names = list(columns) or [f"column {place + 1}" for place in range(x.shape[1])]
    each = ranges if isinstance(ranges, Mapping) else dict.fromkeys(names, ranges)
    lost = []
    for place, name in enumerate(names):
        if place in indicators or name not in each:
            continue
        low, high = each[name]
        if ((x[:, place] < low) | (x[:, place] > high)).all():
            lost.append(name)
    return lost


def rescale(values: np.ndarray, limits: tuple[float, float], key: str) -> np.ndarray:
    """Clip to the limits, then move these to 0 and 1."""
    check_range(limits, key)
    low, high = limits
    return ((np.clip(values.astype(np.float32), low, high) - low) / (high - low)).astype(np.float32)


def check_norm(bound: float) -> None:
    """Raise `Problem` if a bound on norms is not a positive number."""
    if not 0 < bound < math.inf:
        raise Problem(f"data.norm: expected a finite number > 0, got {bound:g}")


def unit(x: np.ndarray, bound: float | None = None) -> np.ndarray:
    """Divide each example by its norm; with a public bound by that, shortening longer ones to it.

    An example's result is the same to the bit whatever other examples there are, and however they
    lie in memory.
    """
    wide = np.ascontiguousarray(x.reshape(len(x), -1), dtype=np.float64)
    norm = np.linalg.norm(wide, axis=1, keepdims=True)
    least = np.where(norm > 0, norm, 1.0) if bound is None else np.maximum(norm, bound)
    return (wide / least).reshape(x.shape).astype(np.float32)


def ids(x: np.ndarray) -> np.ndarray:
    """Return ids as whole numbers from 0 on."""
    wrong = ~((x >= 0) & (x == np.floor(x)) & (x < MOST_IDS))
    if wrong.any():
        row, *rest = (int(i) for i in np.unravel_index(wrong.argmax(), wrong.shape))
        raise Problem(
            f"data.features: 'ids' needs whole numbers from 0 to {MOST_IDS - 1}, got {x[row, *rest]:g} in row"
            f" {row + 1}"
        )
    return x.astype(np.int64)


def log(x: np.ndarray) -> np.ndarray:
    """Return log(1 + x)."""
    if x.min() < 0:
        raise Problem("data.features: 'log' needs values >= 0")
    return np.log1p(x.astype(np.float32))


def statistics(train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the deviation of each feature; 1 in place of the deviation of a constant one."""
    deviation = train.std(0, dtype=np.float64)
    return train.mean(0, dtype=np.float64), np.where(deviation < 1e-6, 1.0, deviation)


def standardize(x: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Centre and scale each feature."""
    standardized: np.ndarray = ((x - mean) / deviation).astype(np.float32)
    return standardized


def against_rest(
    y: np.ndarray, classes: tuple[str, ...], positive: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Set one class against the rest: targets 0 and 1, and two classes."""
    if positive not in classes:
        known = "the target is a number" if not classes else nearest(positive, classes)
        raise Problem(f"data.positive: there is no class '{positive}'; {known}")
    return (y == classes.index(positive)).astype(np.int64), (f"not {positive}", positive)
