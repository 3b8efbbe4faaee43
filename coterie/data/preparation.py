"""How the raw rows of a source become a silo's tensors: a record, made with the federation.

The record is plain data. A saved model carries it, so that new rows go exactly the way that the training
examples went.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._inputs import Input, flatten_inputs, inputs_from_json, inputs_to_json
from ..errors import Problem, nearest
from . import preprocess
from .new_rows import Rows, read_rows
from .partition import View
from .sources.table import Column, Table, column_from_json, column_to_json, numbers

OWN_STATISTICS = "features standardized with each silo's own statistics, without noise"


@dataclass(frozen=True, eq=False)
class SiloSteps:
    """What was done to the rows of one silo only.

    `mean` and `deviation` are those of its own training examples, where features are standardized.
    No budget covers them.
    """

    view: View = field(default_factory=View)
    mean: np.ndarray | None = None
    deviation: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Preparation:
    """What was done to raw rows of a `shape`, in this order.

    Columns of text became one number per value, missing cells and dates numbers (`columns`; a source of
    arrays has none). Numbers became float32; bytes (`uint8`) stayed bytes. Then came the public bounds
    `feature_range`, public means and deviations (`standardize`), the public bound `norm`, the silo's own
    view, and `features`. A model gets the result multiplied by `scale`.

    `encoded` are the names of the columns after the first step, and `indicators` the places of those that
    were text. `other_columns` are no features. `classes`, `targets` (the names of several)
    and `target_range` say what predictions mean.
    """

    shape: tuple[int, ...]
    uint8: bool = False
    columns: tuple[Column, ...] = ()
    other_columns: tuple[str, ...] = ()
    encoded: tuple[str, ...] = ()
    indicators: tuple[int, ...] = ()
    feature_range: preprocess.Ranges | None = None
    norm: float | None = None
    features: str = "auto"
    scale: float = 1.0
    classes: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None
    not_covered: tuple[str, ...] = ()
    silos: Mapping[str, SiloSteps] = field(default_factory=dict)
    standardize: preprocess.Scales = field(default_factory=dict)
    parts: tuple[Input, ...] = ()
    targets: tuple[str, ...] = ()

    def shared(self, x: np.ndarray) -> np.ndarray:
        """Take the steps that are the same for all silos."""
        if self.features == "ids":
            return preprocess.ids(x)
        if not self.uint8:
            x = numbers(x, "the features")
        raw = x
        if self.feature_range is not None:
            x = preprocess.rescale_features(x, self.feature_range, self.encoded, self.indicators)
        if self.standardize:
            where = (self.standardize, self.feature_range, self.encoded)
            x = preprocess.standardize_columns(x, raw, *where)
        return x if self.norm is None else preprocess.unit(x, self.norm)

    def silo_only(self, x: np.ndarray, steps: SiloSteps) -> np.ndarray:
        """Take the last step, after the silo's view: `features`."""
        if self.features == "standardize":
            if steps.mean is None or steps.deviation is None:
                raise ValueError("there are no statistics of the silo's features")
            return preprocess.standardize(x, steps.mean, steps.deviation)
        if self.features == "unit":
            return preprocess.unit(x)
        if self.features == "log":
            return preprocess.log(x)
        return 255 - x if self.features == "invert" else x

    def steps_of(self, silo: str) -> SiloSteps:
        """Return the steps of one silo."""
        if str(silo) not in self.silos:
            raise Problem(f"there is no silo '{silo}'; {nearest(silo, self.silos)}")
        return self.silos[str(silo)]

    def prepare(self, rows: Rows, silo: str) -> Tensor:
        """Return raw rows as the federation holds a silo's examples (bytes stay bytes).

        `rows` is a pandas DataFrame or the path of a CSV or Parquet file, with the columns of the source
        in any order; or an array `[rows, ...]` of the source's shape, or with each row flat. Several inputs
        are a dict of arrays.
        """
        if self.parts and isinstance(rows, Mapping):
            rows = flatten_inputs(rows, self.parts, "rows")
        raw = read_rows(rows, self.shape, self.columns, self.other_columns, self.uint8)
        return torch.from_numpy(np.array(self.apply(raw, silo), order="C"))  # a copy: rows are the caller's

    def apply(self, raw: np.ndarray, silo: str) -> np.ndarray:
        """Take all steps on rows `[rows, *shape]` in which text has become numbers."""
        steps = self.steps_of(silo)
        return self.silo_only(steps.view.apply(self.shared(raw)), steps)

    def inputs(self, rows: Rows, silo: str) -> Tensor:
        """Return raw rows as a model gets them: prepared, as float32 numbers, scaled, or as ids."""
        x = self.prepare(rows, silo)
        if self.features == "ids":
            return x
        x = x.float()
        return x if self.scale == 1.0 else x * self.scale

    def pick(self, silos: Sequence[str]) -> Preparation:
        """Return the preparation of some silos, without what was done to the others."""
        return replace(self, silos={silo: self.steps_of(silo) for silo in silos})

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back."""
        limits = self.feature_range
        return {
            "shape": list(self.shape),
            "uint8": self.uint8,
            "columns": [column_to_json(column) for column in self.columns],
            "other_columns": list(self.other_columns),
            "encoded": list(self.encoded),
            "indicators": list(self.indicators),
            "feature_range": dict(limits) if isinstance(limits, Mapping) else limits,
            "norm": self.norm,
            "features": self.features,
            "scale": self.scale,
            "classes": list(self.classes),
            "target_range": self.target_range,
            "not_covered": list(self.not_covered),
            "silos": {name: _steps_to_json(steps) for name, steps in self.silos.items()},
            **({"inputs": inputs_to_json(self.parts)} if self.parts else {}),
            **({"targets": list(self.targets)} if self.targets else {}),
            **({"standardize": _plain_scales(self.standardize)} if self.standardize else {}),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Preparation:
        """Read what `to_json` returns; raise ValueError, TypeError or KeyError if it is something else."""
        limits, target = content["feature_range"], content["target_range"]
        if isinstance(limits, dict):
            limits = {str(name): _pair(pair) for name, pair in limits.items()}
        elif limits is not None:
            limits = _pair(limits)
        encoded = tuple(map(str, content["encoded"]))
        scales = {str(k): (float(m), float(d)) for k, (m, d) in content.get("standardize", {}).items()}
        preprocess.check_scales(scales, encoded, "the model")
        if limits is not None:
            preprocess.check_ranges(limits, encoded, "the model")
        if content["features"] not in preprocess.FEATURES:
            raise ValueError(f"features: unknown choice {content['features']!r}")
        norm, scale = content["norm"], float(content["scale"])
        for key, number in (("norm", 1.0 if norm is None else float(norm)), ("scale", scale)):
            if not 0 < number < math.inf:
                raise ValueError(f"{key}: expected a finite number > 0, got {number:g}")
        return cls(
            shape=tuple(map(int, content["shape"])),
            uint8=bool(content["uint8"]),
            columns=tuple(column_from_json(column) for column in content["columns"]),
            other_columns=tuple(map(str, content["other_columns"])),
            encoded=encoded,
            indicators=tuple(map(int, content["indicators"])),
            feature_range=limits,
            norm=None if norm is None else float(norm),
            features=content["features"],
            scale=scale,
            classes=tuple(map(str, content["classes"])),
            target_range=None if target is None else _pair(target),
            not_covered=tuple(map(str, content["not_covered"])),
            silos={str(name): _steps_from_json(steps) for name, steps in content["silos"].items()},
            standardize=scales,
            parts=inputs_from_json(content.get("inputs", [])),
            targets=tuple(map(str, content.get("targets", ()))),
        )


def plan_preparation(
    table: Table,
    features: str,
    feature_range: preprocess.Ranges | None,
    norm: float | None,
    scales: preprocess.Scales | None = None,
) -> Preparation:
    """Return the preparation of a table's rows, still without classes and silos.

    Raise `Problem` for impossible options.
    """
    if features not in preprocess.FEATURES:
        raise Problem(f"data.features: unknown choice '{features}'; {nearest(features, preprocess.FEATURES)}")
    if feature_range is not None:
        text = [column.name for column in table.raw_columns if column.values is not None]
        preprocess.check_ranges(feature_range, table.columns, table.called, text)
    if scales:
        encoded_words = [table.columns[place] for place in table.indicators]
        words = [*(column.name for column in table.raw_columns if column.values is not None), *encoded_words]
        preprocess.check_scales(scales, table.columns, table.called, words)
        if features in ("standardize", "ids"):
            raise Problem(f"data.standardize: it does not go with data.features = '{features}'")
    if norm is not None:
        preprocess.check_norm(norm)
        if features not in ("auto", "none", "ids"):
            raise Problem(f"data.norm: a public bound is for features as they are, not for '{features}'")
    if features == "ids" and (feature_range is not None or norm is not None):
        raise Problem("data.features: 'ids' stay as they are: leave out data.feature_range and data.norm")
    asked = feature_range is not None or norm is not None or scales
    if table.inputs and (features not in ("auto", "none") or asked):
        raise Problem("data: several inputs stay as they are: leave out features, bounds and scales")
    uint8 = table.x.dtype == np.uint8
    stays_uint8 = uint8 and feature_range is None and norm is None
    if features == "invert" and not stays_uint8:
        raise Problem("data.features: 'invert' is for images in bytes")
    scaled = stays_uint8 and features in ("auto", "invert")
    return Preparation(
        shape=tuple(table.x.shape[1:]),
        uint8=uint8,
        columns=table.raw_columns,
        other_columns=table.other_columns,
        encoded=table.columns,
        indicators=table.indicators,
        parts=table.inputs,
        feature_range=_plain(feature_range),
        norm=None if norm is None else float(norm),
        features=features,
        scale=1 / 255 if scaled else 1.0,
        standardize=_plain_scales(scales or {}),
        not_covered=table.not_covered + ((OWN_STATISTICS,) if features == "standardize" else ()),
    )


def _plain(ranges: preprocess.Ranges | None) -> preprocess.Ranges | None:
    """Return bounds as Python's own numbers, which JSON can hold."""
    if isinstance(ranges, Mapping):
        return {name: (float(low), float(high)) for name, (low, high) in ranges.items()}
    return None if ranges is None else (float(ranges[0]), float(ranges[1]))


def _plain_scales(scales: preprocess.Scales) -> dict[str, tuple[float, float]]:
    return {name: (float(mean), float(deviation)) for name, (mean, deviation) in scales.items()}


def _pair(values: Any) -> tuple[float, float]:
    low, high = values
    if isinstance(low, str) or isinstance(high, str) or not float(low) < float(high):
        raise ValueError(f"expected [lowest, highest], got {values}")
    return low, high


def _steps_to_json(steps: SiloSteps) -> dict[str, Any]:
    arrays = {"mask": steps.view.mask, "mean": steps.mean, "deviation": steps.deviation}
    if arrays["mask"] is not None:
        arrays["mask"] = arrays["mask"].astype(int)
    return {"turns": steps.view.turns} | {k: None if a is None else a.tolist() for k, a in arrays.items()}


def _steps_from_json(content: Mapping[str, Any]) -> SiloSteps:
    mask = None if content["mask"] is None else np.array(content["mask"], dtype=bool)
    mean, deviation = (
        None if content[key] is None else np.array(content[key], dtype=np.float64)
        for key in ("mean", "deviation")
    )
    return SiloSteps(View(int(content["turns"]), mask), mean, deviation)
