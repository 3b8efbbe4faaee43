"""Means and deviations of columns, with noise and charged: scales for numbers that nobody has to guess.

Each silo releases one noisy mean of phi(x), in which every number column is moved to [-1, 1] by its public
bounds, and stands there once as it is and once squared. A column with missing values counts only where it has
a value, and the share of these is a further entry. No entry exceeds 1, so phi divided by the root of its
length is never longer than 1.

A linear model that starts at zero, has phi(x) as its features and 1 as every target has the gradient
-2 phi(x). One step on all examples with clip 2 and learning rate 1/2 therefore makes it the mean of phi(x),
plus noise. So what releases it is the door that trains models: sampled, clipped, noised, charged, signed and
stated by the same code. What is computed from the release costs nothing more.

The scales are for all silos, so everybody learns them: each silo uploads its release (MR-MTL without a pull),
and its budget is charged against every adversary, the server among them.

**Formal guarantee:** that of one full-batch step whose result is uploaded, for each silo's training examples.
If persons are protected, a person counts once, with the mean over their rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.federation import Federation
from ..data.preparation import Preparation
from ..data.sources.cells import listed
from ..errors import Problem
from ..methods import MRMTL
from ..privacy.budget import Privacy
from .from_arguments import make_study
from .listener import Listener
from .result import Result
from .run import Store, train_study

CLIP, RATE = 2.0, 0.5  # the gradient is -2 phi(x): one step of this rate makes the model the mean
CERTAIN = 3.0  # a variance that is not this many times its error is lost in the noise


@dataclass(frozen=True)
class ColumnMeasure:
    """The mean and the deviation of a column over all silos, and how far noise may have moved the mean.

    `error` is a standard deviation. The `deviation` is None if it is lost in the noise.
    """

    mean: float
    error: float
    deviation: float | None


@dataclass(frozen=True, eq=False)
class ColumnMeasures:
    """What was measured of each column, and the run that paid for it, with a statement for each silo."""

    columns: Mapping[str, ColumnMeasure]
    result: Result

    @property
    def standardize(self) -> dict[str, tuple[float, float]]:
        """The key `standardize` of a [data] table: without columns whose deviation is lost in the noise."""
        return {
            name: (float(f"{each.mean:.6g}"), float(f"{each.deviation:.6g}"))
            for name, each in self.columns.items()
            if each.deviation is not None
        }

    @property
    def lost(self) -> tuple[str, ...]:
        """The columns whose deviation is lost in the noise."""
        return tuple(name for name, each in self.columns.items() if each.deviation is None)


def entries(federation: Federation) -> tuple[Federation, dict[str, tuple[int, int, int | None]]]:
    """Return a federation with phi(x) for its features, and where it has each column.

    These are the places of its mean, of its square and, if it may be missing, of its share of values.
    """
    preparation = federation.preparation
    if preparation is None or not preparation.columns:
        raise Problem("data: only the columns of a table can be measured, and this federation has none")
    bounds = bounds_of(preparation)
    places = {name: preparation.encoded.index(name) for name in bounds}
    empty = {
        name: preparation.encoded.index(f"{name} (missing)")
        for name in bounds
        if f"{name} (missing)" in preparation.encoded
    }
    numbers, lacking = list(places.values()), list(empty.values())
    which = [list(bounds).index(name) for name in empty]
    length = 2 * len(numbers) + len(lacking)

    def phi(x: Tensor) -> Tensor:
        moved = (2 * x[:, numbers].double() - 1).clamp(-1, 1)
        there = torch.ones_like(moved)
        there[:, which] = 1 - x[:, lacking].double()
        whole = torch.cat([moved * there, moved.square() * there, there[:, which]], 1)
        return (whole / math.sqrt(length)).float()

    silos = tuple(
        replace(
            silo, x=phi(silo.x), y=torch.ones(len(silo.y)), test_x=phi(silo.test_x),
            test_y=torch.ones(len(silo.test_y)),
        )
        for silo in federation.silos
    )  # fmt: skip
    count = len(numbers)
    found = {
        name: (k, count + k, 2 * count + list(empty).index(name) if name in empty else None)
        for k, name in enumerate(bounds)
    }
    about = {"classes": (), "targets": (), "inputs": (), "notes": ()}
    plain: Any = {**about, "scale": 1.0, "ids": False, "preparation": None, "recipe": None}
    return replace(federation, silos=silos, **plain), found


def bounds_of(preparation: Preparation) -> dict[str, tuple[float, float]]:
    """Return the public bounds of every column of numbers; raise `Problem` unless all have some."""
    numbers = [column.name for column in preparation.columns if column.values is None]
    given = preparation.feature_range
    if not numbers:
        raise Problem("data: there is no column of numbers to measure")
    if (
        preparation.standardize
        or preparation.norm is not None
        or preparation.features not in ("auto", "none")
    ):
        raise Problem("data: columns are measured as they are: leave out standardize, norm and features")
    bounds = given if isinstance(given, Mapping) else {} if given is None else dict.fromkeys(numbers, given)
    if lacking := [name for name in numbers if name not in bounds]:
        raise Problem(
            "data.feature_range: measuring needs public bounds of every column of numbers, and there are none"
            f" of {listed(lacking)}: give some, or leave the columns out with data.drop"
        )
    return {name: (float(bounds[name][0]), float(bounds[name][1])) for name in numbers}


def column_means(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the model whose vector is the mean of its features after one step from zero."""
    model = nn.Linear(math.prod(input_shape), outputs, bias=False)
    nn.init.zeros_(model.weight)
    return model


def measure(
    federation: Federation,
    privacy: Privacy,
    places: tuple[Path | None, Path | None, Path | None] = (None, None, None),
    listener: Listener | None = None,
    store: Store | None = None,
) -> ColumnMeasures:
    """Measure the columns of a federation's training examples; `places` are those of `Study.with_ledger`."""
    if not isinstance(federation, Federation):
        raise Problem(f"federation: expected what load returns, got a {type(federation).__name__}")
    if not isinstance(privacy, Privacy):
        raise Problem(f"privacy must be Privacy(epsilon=..., delta=...), got a {type(privacy).__name__}")
    if privacy.unit == "silo":
        raise Problem("privacy.unit: columns are measured with unit = 'example' or 'person'")
    if isinstance(privacy.epsilon, list | tuple):
        raise Problem("privacy.epsilon: columns are measured once: give one number, or one for each silo")
    prepared, found = entries(federation)
    options: dict[str, Any] = {"rounds": 1, "steps": 1, "batch": max(federation.sizes), "lr": RATE}
    asked = replace(privacy, clip=CLIP)
    study = make_study(prepared, MRMTL(lam=0.0), asked, options, model=column_means).with_ledger(*places)
    result = train_study(study, None, listener, store)
    sizes = np.array(federation.protected_sizes(privacy.unit), dtype=np.float64)
    return ColumnMeasures(_combined(federation, sizes, result, found), result)


def _combined(
    federation: Federation,
    sizes: np.ndarray,
    result: Result,
    found: Mapping[str, tuple[int, int, int | None]],
) -> dict[str, ColumnMeasure]:
    """Return the measures over all silos, each weighted by its public size."""
    assert federation.preparation is not None
    vectors = np.stack([result.vector(name).double().numpy() for name in federation.names])
    if not vectors.any(1).all():
        silent = federation.names[int(vectors.any(1).argmin())]
        raise Problem(f"data: silo '{silent}' released nothing, so the columns cannot be measured")
    weights = sizes / sizes.sum()
    noise = np.array([result.runs[0].silos[name].noise or 0.0 for name in federation.names])
    root = math.sqrt(vectors.shape[1])
    overall = root * (weights @ vectors)
    error = root * float(np.sqrt(((weights * noise / sizes) ** 2).sum()))
    measures = {}
    for name, bounds in bounds_of(federation.preparation).items():
        first, second, share = found[name]
        there = 1.0 if share is None else float(np.clip(overall[share], 1e-3, 1.0))
        measures[name] = _measure(overall[first] / there, overall[second] / there, error / there, bounds)
    return measures


def _measure(mean: float, square: float, error: float, bounds: tuple[float, float]) -> ColumnMeasure:
    """Return a measure on the scale of the raw numbers, from noisy moments on [-1, 1]."""
    low, high = bounds
    half = (high - low) / 2
    mean = float(np.clip(mean, -1, 1))
    variance = square - mean**2
    spread = error * math.hypot(1, 2 * mean)
    known = variance > CERTAIN * spread and variance > 0
    deviation = half * math.sqrt(min(variance, 1.0)) if known else None
    return ColumnMeasure(low + half * (mean + 1), half * error, deviation)
