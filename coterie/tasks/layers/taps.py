"""Taps inside layers: where a tape of gradients adds probes, and reads what the layer worked on.

The gradient of a probe is the error at that place. Errors and what was noted are enough to compute the
gradient of the layer's parameters afterwards, all steps of a sequence at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class Tap:
    """What is added to values inside a layer, by key, and what a layer noted of its last run."""

    probes: dict[str, Tensor] = field(default_factory=dict)
    noted: dict[str, Tensor] = field(default_factory=dict)

    def through(self, key: str, value: Tensor) -> Tensor:
        """Return a value with its probe added, if there is one."""
        return value + self.probes[key]

    def note(self, key: str, value: Tensor) -> None:
        """Keep a value."""
        self.noted[key] = value


class Trial(Tap):
    """A tap without probes, which finds out which shapes they must have for one example."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[str, torch.Size] = {}

    def through(self, key: str, value: Tensor) -> Tensor:
        """Return a value, and write down its shape."""
        self.shapes[key] = value.shape[1:]
        return value


class Tapped:
    """A layer with a tap, which is None except while a tape records it."""

    tap: Tap | None = None
