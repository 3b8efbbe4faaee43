"""Which silos take part in which rounds, which drop out, and how much each does: public facts.

A silo that drops out of a round sends nothing and is charged nothing. It could not know in advance that it
would drop out, so it adds the noise of a silo that takes part in every round, and spends less than planned.
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
    """The schedules of all runs, each `[rounds, runs, silos]`.

    `present` says which silos take part (None: all of them), `planned` which would if none dropped out, and
    `steps` how many steps each takes (None: all of its work).
    """

    present: Tensor | None = None
    planned: Tensor | None = None
    steps: Tensor | None = None


def draw_schedule(
    training: Training, seeds: Sequence[int], names: Sequence[str], work: Sequence[Work]
) -> Schedule:
    """Return which silos take part in each run's rounds, and how much each does, drawn from public coins."""
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
    """Raise `Problem` for ways of dropping out that are not accounted for, or that change nothing."""
    how = training.dropping
    if how is None:
        return
    chances = how.chances(names)
    if how.recover is not None and max(chances) == 0:
        raise Problem("train.recover: no silo drops out, so none comes back; set train.drop too")
    if min(chances) == 1 and not how.recover:
        raise Problem(
            "train.drop: every silo drops out of every round; use less than 1, or set train.recover"
        )
    if privacy.unit == "silo" and privacy.noise_by == "silos" and max(chances) > 0:
        raise Problem(
            "train.drop: the noise of silos that drop out would be missing from the sum; let the server add"
            " it (privacy.noise_by = 'server')"
        )
    share = training.participation
    drawn = share is not None and share.sampler == "poisson" and share.share < 1
    if privacy.unit == "silo" and privacy.noise_by == "secure" and drawn:
        raise Problem(
            "train.drop, train.uneven: not allowed with a secure sum if whole silos are drawn in secret: say"
            " how many may drop out with privacy.dropouts"
        )
    if budgets == "uniform":
        raise Problem(
            "train.drop, train.uneven: not allowed with budgets = 'uniform', which decides when silos leave"
        )
    if how.uneven and max(own.steps for own in work) == 1:
        raise Problem(
            "train.uneven: every silo takes one step per round, so none can take fewer; raise train.steps"
        )


@dataclass(frozen=True, eq=False)
class Attendance:
    """One run's schedule, each part `[rounds, silos]`; None means all silos, and all steps of their work."""

    present: Tensor | None = None
    planned: Tensor | None = None
    steps: Tensor | None = None

    def rounds(self, k: int, total: int) -> int:
        """Return the number of rounds in which silo k takes part."""
        return total if self.present is None else int(self.present[:, k].sum())

    def released(self, kinds: Mapping[tuple[Door, ...], np.ndarray], k: int, steps: int) -> list[Calls]:
        """Return how silo k uses each door."""
        present = None if self.present is None else self.present[:, k].numpy()
        each = None if self.steps is None else self.steps[:, k].numpy()
        calls = []
        for doors, rounds in kinds.items():
            attended = rounds if present is None else rounds[present[rounds]]
            total = steps * len(attended) if each is None else int(each[attended].sum())
            calls += [Calls(door, len(attended), total) for door in doors if len(attended)]
        return calls

    def planned_for(self, kinds: Mapping[tuple[Door, ...], np.ndarray], k: int, steps: int) -> list[Calls]:
        """Return how silo k would use each door if no silo dropped out and all took all steps."""
        planned = self.present if self.planned is None else self.planned
        return Attendance(planned).released(kinds, k, steps)


LEAST = 1e-9  # share


@dataclass(frozen=True)
class Participation:
    """The share of silos in each round: exactly that share, or each with that probability ("poisson").

    The server knows which silos take part, so sampling saves no privacy against it: a silo is charged for
    every round in which it takes part. Under the unit 'silo', independent draws hide whether a silo took
    part. If the server adds the noise, the coins must then remain its secret and the silos' own; with a
    secure sum, each silo's coin remains its own.
    """

    share: float
    sampler: str = "fixed"

    def __post_init__(self) -> None:
        if not LEAST <= self.share <= 1:
            raise Problem(
                f"participation: expected a share in (0, 1], at least {LEAST:g}, got {self.share:g}"
            )
        if self.sampler not in ("fixed", "poisson"):
            raise Problem(f"participation: expected the sampler 'fixed' or 'poisson', got '{self.sampler}'")

    def count(self, silos: int) -> int:
        """Return the number of silos per round under the fixed sampler."""
        return max(1, round(self.share * silos))


def schedule(how: Participation, seed: int, silos: int, rounds: int) -> Tensor:
    """Return which silos take part in which rounds, `[rounds, silos]`, drawn at random."""
    generator = np.random.default_rng(seed_for(seed, "participation"))
    drawn = generator.random((rounds, silos))
    if how.sampler == "poisson":
        return torch.from_numpy(drawn < how.share)
    places = torch.from_numpy(np.argsort(drawn, axis=1)[:, : how.count(silos)])
    return torch.zeros(rounds, silos, dtype=torch.bool).scatter_(1, places, True)


@dataclass(frozen=True)
class Dropping:
    """How silos drop out, and how unevenly they work.

    A silo that takes part drops out of the next round with probability `drop` (one number, or one per silo).
    A silo that is out comes back with probability `recover`; with None it comes back as if it had not been
    out, so rounds are independent. `uneven` is tau: in each round a silo takes between (1 - tau) of its steps
    and all of them, at least one, each number with equal probability.
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
        """Return the probability that each silo drops out."""
        chances = per_silo("train.drop", self.drop, names)
        for value in chances:
            if not 0 <= value <= 1:
                raise Problem(f"train.drop: expected a number from 0 to 1, got {value:g}")
        return chances


def live(how: Dropping, seed: int, names: Sequence[str], rounds: int) -> Tensor:
    """Return which silos have not dropped out, `[rounds, silos]`; each silo's coins follow from its name."""
    alive = np.ones((rounds, len(names)), dtype=bool)
    for k, (name, chance) in enumerate(zip(names, how.chances(names), strict=True)):
        coins = np.random.default_rng(seed_for(seed, f"dropping/{name}")).random(rounds)
        back = 1 - chance if how.recover is None else how.recover
        is_in = True
        for number, coin in enumerate(coins.tolist()):
            is_in = coin >= chance if is_in else coin >= 1 - back
            alive[number, k] = is_in
    return torch.from_numpy(alive)


def steps_taken(how: Dropping, seed: int, names: Sequence[str], steps: Sequence[int], rounds: int) -> Tensor:
    """Return how many steps each silo takes in each round, `[rounds, silos]`, drawn at random."""
    taken = np.empty((rounds, len(names)), dtype=np.int64)
    for k, (name, most) in enumerate(zip(names, steps, strict=True)):
        least = max(1, round((1 - how.uneven) * most))
        generator = np.random.default_rng(seed_for(seed, f"uneven/{name}"))
        taken[:, k] = generator.integers(least, most, size=rounds, endpoint=True)
    return torch.from_numpy(taken)
