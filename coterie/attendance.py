"""Who takes part in which round of one run, who was meant to, and how much each does: public facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .doors import Work
from .dropping import live, steps_taken
from .errors import Problem
from .participation import schedule
from .privacy.budget import Privacy
from .training import Training

Calls = list[tuple[str, int, int]]


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

    def released(self, kinds: Mapping[tuple[str, ...], np.ndarray], k: int, steps: int) -> Calls:
        """Give what silo k asks of each door: its name, the calls, and the steps of all of them."""
        present = None if self.present is None else self.present[:, k].numpy()
        each = None if self.steps is None else self.steps[:, k].numpy()
        found = []
        for doors, rounds in kinds.items():
            here = rounds if present is None else rounds[present[rounds]]
            made = steps * len(here) if each is None else int(each[here].sum())
            found += [(door, len(here), made) for door in doors if len(here)]
        return found

    def planned_for(self, kinds: Mapping[tuple[str, ...], np.ndarray], k: int, steps: int) -> Calls:
        """Give the same if nobody drops out and everybody takes all steps."""
        planned = self.present if self.planned is None else self.planned
        return Attendance(planned).released(kinds, k, steps)
