"""What a module computes for made-up examples, by which loading recognises another module.

A file holds parameters and buffers, but not what a module does with them. So it also holds the module's
outputs for a few small and large examples, each with a tolerance. Machines round in other ways, and a module
may make a large difference of a small one: the tolerance grows with what a tiny change of the examples does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..tasks.trials import REFUSALS, Kind, trial_examples

# Tolerances; the second is relative to the largest output, or to 1.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
CHANGE, TIMES = 2.0**-20, 8.0  # a relative change of the examples, and how often its effect is tolerated
Run = Callable[[Tensor], Tensor]


def probe(run: Run, shape: tuple[int, ...], kind: Kind | None = None) -> list[dict[str, Any] | None]:
    """Return outputs for made-up examples, each with a tolerance; None for examples that a module refuses.

    They are of a `kind`: numbers, ids or several inputs.
    """
    return [_probe(run, x) for x in trial_examples(shape, kind=kind)]


def _probe(run: Run, x: Tensor) -> dict[str, Any] | None:
    try:
        with torch.no_grad():
            outputs, near = (run(each).double().cpu().numpy() for each in (x, _near(x)))
    except REFUSALS:
        return None
    rows = [[value if abs(value) < np.inf else None for value in row] for row in outputs.tolist()]
    return {"outputs": rows, "tolerance": ABSOLUTE * _size(outputs) + TIMES * _largest(near - outputs)}


def _near(x: Tensor) -> Tensor:
    """Return examples a tiny bit larger; ids have no neighbours."""
    return x * (1 + CHANGE) if x.is_floating_point() else x


def _largest(values: np.ndarray) -> float:
    return float(np.nan_to_num(np.abs(values), posinf=0.0).max(initial=0.0))


def _size(outputs: np.ndarray) -> float:
    return max(1.0, _largest(outputs))


def read_probes(record: Mapping[str, Any]) -> list[tuple[np.ndarray, float] | None]:
    """Read what `probe` returned from a file's record; raise an error if it is something else.

    Files of older versions have only the outputs for the first examples.
    """
    if "probes" not in record:
        outputs = _outputs(record["made_up"])
        return [(outputs, ABSOLUTE * _size(outputs))]
    return [
        None if each is None else (_outputs(each["outputs"]), float(each["tolerance"]))
        for each in record["probes"]
    ]


def _outputs(rows: Sequence[Sequence[float | None]]) -> np.ndarray:
    return np.array([[np.nan if x is None else float(x) for x in row] for row in rows])


def differs(
    run: Run,
    shape: tuple[int, ...],
    expected: Sequence[tuple[np.ndarray, float] | None],
    kind: Kind | None = None,
) -> bool:
    """Return whether a module computes something other than the one that was probed.

    Raise the module's own error if it does not take examples that the other took.
    """
    for x, known in zip(
        trial_examples(shape, kind=kind), expected, strict=False
    ):  # older files have the first only
        try:
            with torch.no_grad():
                outputs = run(x).double().cpu().numpy()
        except REFUSALS:
            if known is None:
                continue
            raise
        if known is None:
            return True
        outputs = np.where(np.isfinite(outputs), outputs, np.nan)
        if outputs.shape != known[0].shape:
            return True
        if not np.allclose(outputs, known[0], rtol=RELATIVE, atol=known[1], equal_nan=True):
            return True
    return False
