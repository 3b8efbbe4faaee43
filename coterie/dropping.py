"""Silos that drop out of rounds and come back, and silos that do less than others: from public coins.

A silo that drops out of a round sends nothing and is charged nothing. It did not know that it would: its
noise is that of somebody who takes part in every round, so that whoever drops out spends less than planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ._seeds import seed_for
from .errors import Problem
from .privacy.budget import PerSilo, spread


@dataclass(frozen=True)
class Dropping:
    """How silos drop out and differ in what they do.

    A silo that takes part drops out of the next round with the chance `drop` (one, or one for each silo).
    One that is out comes back with the chance `recover`; None: as if it had not been out, so that rounds
    are independent. `uneven` is tau: a silo takes from (1 - tau) of its steps to all of them in a round,
    each number as likely as any other, at least one.
    """

    drop: PerSilo = 0.0
    recover: float | None = None
    uneven: float = 0.0

    def __post_init__(self) -> None:
        for key, value in (("recover", self.recover), ("uneven", self.uneven)):
            if key == "recover" and value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                raise Problem(f"train.{key}: expected a number from 0 to 1, got {value!r}")

    def chances(self, names: Sequence[str]) -> list[float]:
        """Give the chance of each silo to drop out."""
        found = spread("train.drop", self.drop, names)
        for value in found:
            if not 0 <= value <= 1:
                raise Problem(f"train.drop: expected a number from 0 to 1, got {value:g}")
        return found


def live(how: Dropping, seed: int, names: Sequence[str], rounds: int) -> Tensor:
    """Draw who is there when, `[rounds, silos]`; another silo's name is another silo's coins."""
    found = np.ones((rounds, len(names)), dtype=bool)
    for k, (name, chance) in enumerate(zip(names, how.chances(names), strict=True)):
        coins = np.random.default_rng(seed_for(seed, f"dropping/{name}")).random(rounds)
        back = 1 - chance if how.recover is None else how.recover
        here = True
        for number, coin in enumerate(coins.tolist()):
            here = coin >= chance if here else coin >= 1 - back
            found[number, k] = here
    return torch.from_numpy(found)


def steps_taken(how: Dropping, seed: int, names: Sequence[str], steps: Sequence[int], rounds: int) -> Tensor:
    """Draw how many steps each silo takes when, `[rounds, silos]`."""
    found = np.empty((rounds, len(names)), dtype=np.int64)
    for k, (name, most) in enumerate(zip(names, steps, strict=True)):
        least = max(1, round((1 - how.uneven) * most))
        generator = np.random.default_rng(seed_for(seed, f"uneven/{name}"))
        found[:, k] = generator.integers(least, most, size=rounds, endpoint=True)
    return torch.from_numpy(found)
