"""Who takes part in which round, who drops out, and how much each silo does: public facts.

A silo that drops out of a round sends nothing and is charged nothing. It could not know that it would drop
out, so its noise is that of a silo that takes part in every round: it spends less than planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._seeds import seed_for
from ..errors import Problem
from ..privacy.budget import PerSilo, Privacy, per_silo
from ..protocol.doors import Calls, Door, Work

if TYPE_CHECKING:
    from .training import Training


class Schedule(NamedTuple):
    """Schedules of all runs, `[rounds, runs, silos]`: who takes part (None: everybody), who would if nobody
    dropped out, and how many steps each takes (None: all of its work).
    """

    present: Tensor | None = None
    planned: Tensor | None = None
    steps: Tensor | None = None


def draw_schedule(
    training: Training, seeds: Sequence[int], names: Sequence[str], work: Sequence[Work]
) -> Schedule:
    """Draw who takes part when in each run, and how much each does, from public coins."""
    share, how, rounds = training.participation, training.dropping, training.rounds
    if share is None and how is None:
        return Schedule()
    planned = torch.ones(rounds, len(seeds), len(names), dtype=torch.bool)
    if share is not None:
        planned = torch.stack([schedule(share, seed, len(names), rounds) for seed in seeds], dim=1)
    if how is None:
        return Schedule(planned, planned)
    present = planned & torch.stack([live(how, seed, names, rounds) for seed in seeds], dim=1)
    if not how.uneven:
        return Schedule(present, planned)
    most = [own.steps for own in work]
    steps = torch.stack([steps_taken(how, seed, names, most, rounds) for seed in seeds], dim=1)
    return Schedule(present, planned, steps)


def check_dropping(
    training: Training, names: Sequence[str], work: Sequence[Work], privacy: Privacy, budgets: str
) -> None:
    """Refuse ways of dropping out that are not accounted for, or change nothing."""
    how = training.dropping
    if how is None:
        return
    chances = how.chances(names)
    if how.recover is not None and max(chances) == 0:
        raise Problem("train.recover: nobody drops out, so nobody comes back: give train.drop too")
    if min(chances) == 1 and not how.recover:
        raise Problem("train.drop: every silo is out of every round: take less than 1, or give train.recover")
    if privacy.unit == "silo" and privacy.noise_by == "silos" and max(chances) > 0:
        raise Problem(
            "train.drop: the noises of silos that drop out would be missing from the sum: let the server add"
            " it (privacy.noise_by = 'server')"
        )
    if budgets == "uniform":
        raise Problem("train.drop, train.uneven: not with budgets = 'uniform', which says who leaves when")
    if how.uneven and max(own.steps for own in work) == 1:
        raise Problem(
            "train.uneven: every silo takes one step a round, so none can take less: raise train.steps"
        )


@dataclass(frozen=True, eq=False)
class Attendance:
    """One run's schedule, all `[rounds, silos]`; None: everybody, and all the steps of their work."""

    present: Tensor | None = None
    planned: Tensor | None = None
    steps: Tensor | None = None

    def rounds(self, k: int, total: int) -> int:
        """Count the rounds in which silo k takes part."""
        return total if self.present is None else int(self.present[:, k].sum())

    def released(self, kinds: Mapping[tuple[Door, ...], np.ndarray], k: int, steps: int) -> list[Calls]:
        """Return how silo k uses each door."""
        present = None if self.present is None else self.present[:, k].numpy()
        each = None if self.steps is None else self.steps[:, k].numpy()
        found = []
        for doors, rounds in kinds.items():
            here = rounds if present is None else rounds[present[rounds]]
            made = steps * len(here) if each is None else int(each[here].sum())
            found += [Calls(door, len(here), made) for door in doors if len(here)]
        return found

    def planned_for(self, kinds: Mapping[tuple[Door, ...], np.ndarray], k: int, steps: int) -> list[Calls]:
        """Give the same if nobody drops out and everybody takes all steps."""
        planned = self.present if self.planned is None else self.planned
        return Attendance(planned).released(kinds, k, steps)


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
        found = per_silo("train.drop", self.drop, names)
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
