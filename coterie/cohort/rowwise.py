"""Functions of one row of examples with its own model, for many rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap


def over_rows(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function (parameters `[rows, ...]`, examples `[rows, width, ...]`, ...) of all rows.

    Torch does not map every layer over a single row: it refuses to normalise groups of channels in images
    whose channels come last. Such a row is computed twice.
    """
    mapped: Any = vmap(function)

    def run(parameters: Mapping[str, Tensor], *given: Tensor) -> Tensor:
        try:
            found: Tensor = mapped(parameters, *given)
        except RuntimeError:
            if len(given[0]) != 1:
                raise
            twice = {name: torch.cat([value, value]) for name, value in parameters.items()}
            found = mapped(twice, *(torch.cat([each, each]) for each in given))[:1]
        return found

    return run
