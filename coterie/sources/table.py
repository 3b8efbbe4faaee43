"""Rows as they come from a source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Table:
    """Features, targets and, where the source has them, silos and a split (1 = test).

    `float_target_is_number` is false where whole floats may well be labels (a CSV column).
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    silo: np.ndarray | None = None
    split: np.ndarray | None = None
    columns: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    float_target_is_number: bool = True
