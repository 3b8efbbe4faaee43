"""Who takes part in a round: drawn from public coins, before the training, whatever comes out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ._seeds import seed_for
from .errors import Problem

LEAST = 1e-9  # share


@dataclass(frozen=True)
class Participation:
    """A share of the silos in each round: exactly so many, or each with that chance ("poisson").

    The server knows who takes part, so this saves no privacy against it: a silo is charged for every
    round in which it does. Under the unit 'silo' independent chances hide a silo among those who may have
    come: then the coins must stay the server's secret.
    """

    share: float
    sampler: str = "fixed"

    def __post_init__(self) -> None:
        if not LEAST <= self.share <= 1:
            raise Problem(
                f"participation: expected a share in (0, 1], at least {LEAST:g}, got {self.share:g}"
            )
        if self.sampler not in ("fixed", "poisson"):
            raise Problem(f"participation: the sampler must be 'fixed' or 'poisson', got '{self.sampler}'")

    def count(self, silos: int) -> int:
        """Give how many silos a fixed share is."""
        return max(1, round(self.share * silos))


def schedule(how: Participation, seed: int, silos: int, rounds: int) -> Tensor:
    """Draw who takes part when, `[rounds, silos]`."""
    generator = np.random.default_rng(seed_for(seed, "participation"))
    drawn = generator.random((rounds, silos))
    if how.sampler == "poisson":
        return torch.from_numpy(drawn < how.share)
    places = torch.from_numpy(np.argsort(drawn, axis=1)[:, : how.count(silos)])
    return torch.zeros(rounds, silos, dtype=torch.bool).scatter_(1, places, True)
