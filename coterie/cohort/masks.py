"""The keys by which examples drop numbers (`tasks.layers.dropout`): one for each call, step and example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..protocol.streams import Dice
from ..tasks.layers.dropout import keys
from ..tasks.task import Task

BITS = 53  # of a random number


@dataclass(frozen=True, eq=False)
class MaskKeys:
    """The keys of one call: a random number for each pair of run and silo."""

    bases: Tensor

    def at(self, step: int, pair: Tensor, row: Tensor) -> Tensor:
        """Return the keys of rows `[pairs, width]` of the pairs' silos, in one step."""
        return keys(self.bases[pair].unsqueeze(-1), step, row)


def mask_keys(task: Task, dice: Sequence[Dice], device: torch.device | str) -> MaskKeys | None:
    """Draw the keys of a call before anything else is drawn; None for a module that drops nothing."""
    if not task.draws:
        return None
    return MaskKeys(torch.tensor([base_of(each) for each in dice], device=device))


def base_of(dice: Dice) -> int:
    """Draw a whole number."""
    return int(float(dice.random(1)[0]) * 2**BITS)
