"""Several targets per example: labels with two values each, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..errors import Problem

if TYPE_CHECKING:
    from .partition import Partition
    from .sources.table import Table


def target_names(table: Table) -> tuple[str, ...]:
    """Return the names of several targets; none if each row has one."""
    if table.y.ndim == 1:
        return ()
    return table.targets or numbered(table.y.shape[1])


def names_for(targets: Sequence[Tensor], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of several targets of silos; raise `Problem` if silos differ in how many they have."""
    shapes = {tuple(each.shape[1:]) for each in targets}
    if len(shapes) > 1:
        raise Problem(f"data: silos differ in their targets per example: {sorted(map(str, shapes))}")
    (shape,) = shapes
    if not shape:
        return ()
    return names if len(names) == shape[0] else numbered(shape[0])


def numbered(count: int) -> tuple[str, ...]:
    """Return names for targets that have none."""
    return tuple(f"target-{place + 1}" for place in range(count))


def check_labels_of_several(y: np.ndarray, labels: np.ndarray, table: Table) -> None:
    """Raise `Problem` unless the labels of several targets have two values in all."""
    if y.ndim > 1 and len(labels) != 2:
        found = ", ".join(str(label) for label in labels[:4]) + (", ..." if len(labels) > 4 else "")
        raise Problem(
            f"data: each of several targets must be one of the same two labels, such as 0 and 1, but those of"
            f" '{table.called}' have {len(labels)} values ({found}); for numbers, use data.kind ="
            " 'regression'"
        )


def check_several(y: np.ndarray, positive: str | None, partition: Partition) -> None:
    """Raise `Problem` for settings that need one target, if there are several."""
    if y.ndim == 1:
        return
    if positive is not None:
        raise Problem("data.positive: there are several targets, whose labels are two already; leave it out")
    if partition.name in ("shards", "dirichlet"):
        raise Problem(
            f"data.partition: '{partition.name}' distributes rows by one label, but there are several"
            " targets; use 'iid', or a column that names the silos"
        )
