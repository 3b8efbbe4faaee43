"""How long and how fast silos train."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..errors import PlainlyMade, Problem
from ..privacy.budget import Swept
from ..protocol.doors import Work, epochs_of_work
from .schedule import Dropping, Participation

MOST = 1_000_000


@dataclass(frozen=True)
class Training(metaclass=PlainlyMade):
    """How long and how fast silos train.

    A round is `epochs` expected passes over a silo's examples, or `steps` batches. `lr` is one number, one
    per silo, or a list for one run per value. `participation` says which silos take part in a round (None:
    all of them), and `dropping` which of these drop out or do less. `memory` bounds the working memory of a
    step, in bytes.
    """

    rounds: int = 50
    epochs: float = 1.0
    steps: int | None = None
    batch: int = 32
    lr: Swept = 0.1
    seeds: tuple[int, ...] = (0,)
    participation: Participation | None = None
    memory: int = 2**30
    device: str = "cpu"
    dropping: Dropping | None = None

    def __post_init__(self) -> None:
        for key in ("rounds", "batch", "steps"):
            value = getattr(self, key)
            whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST
            if not whole and not (key == "steps" and value is None):
                raise Problem(f"train.{key}: expected a whole number from 1 to {MOST}, got {value!r}")
        if not (math.isfinite(self.epochs) and 0 < self.epochs <= MOST):
            raise Problem(f"train.epochs: expected a number > 0, got {self.epochs!r}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise Problem(f"train.seeds: expected one or more different seeds, got {list(self.seeds)}")

    def work(self, size: int) -> Work:
        """Return the local work of a silo with this many examples."""
        if self.steps is not None:
            return Work(size, min(self.batch, size), self.steps)
        return epochs_of_work(size, self.batch, self.epochs)


def check_device(device: str) -> None:
    """Raise `Problem` if a device cannot be used."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        found = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        why = (
            "torch finds no GPU" if str(device).startswith("cuda") and len(found) == 1 else "it is not known"
        )
        raise Problem(
            f"train.device: '{device}' cannot be used here, because {why}; use {' or '.join(found)}"
        ) from error
