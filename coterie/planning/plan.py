"""Planning: a dry run counts what a method asks for, and the counts give each silo's noise and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..privacy.merges import MergeEvents
from ..protocol.doors import Work
from ..protocol.merging import MergeRule
from ..protocol.units import Unit
from .dry_run import Counts


@dataclass(frozen=True)
class SiloPlan:
    """What one silo will do and spend in one run.

    `steps` are all noisy sums of its trainings, `noise` their multiplier; `selections` are private
    choices, `choice_noise` the scale of their noise. It takes part in `rounds` rounds. Under the unit
    'silo' `steps` are the noisy merges seen of it, `noise` is theirs, and `merges` says how they are made.
    If `whole`, `steps` are uploads that depend on all its examples at once.
    """

    name: str
    work: Work
    budget: float
    delta: float
    steps: int
    noise: float
    epsilon: float
    bytes_up: int
    bytes_down: int
    rounds: int = 0
    selections: int = 0
    choice_noise: float = 0.0
    merges: MergeEvents | None = None
    whole: bool = False

    @property
    def limit(self) -> float | None:
        """The budget, if there was one: that of a noise that was given is what it came to."""
        given = math.isfinite(self.budget) and self.budget == self.epsilon
        return None if given else self.budget

    @property
    def rate(self) -> float:
        """The rate of what is released: of examples in a step, or of silos in a merge."""
        if self.merges is None:
            return 1.0 if self.whole else self.work.rate
        events = self.merges.strongest()
        return events[0].rate if events else 1.0


@dataclass(frozen=True, eq=False)
class Plan:
    """What a training will do to protect a `unit`: `silos[run][k]` for every run and silo.

    `present` says who takes part when, `[rounds, runs, silos]`; None: everybody always. Under the unit
    'silo' `merge` says how uploads are merged. `steps` says how many steps each silo takes, as `present`;
    None: those of its work. `notes` are what a person should know.
    """

    unit: Unit
    counts: Counts
    silos: tuple[tuple[SiloPlan, ...], ...]
    present: Tensor | None = None
    merge: MergeRule | None = None
    steps: Tensor | None = None
    notes: tuple[str, ...] = ()

    def noise(self) -> Tensor:
        """Give the multipliers of the noise in silos' doors, `[runs, silos]`."""
        if not self.unit.noise_in_doors:
            return torch.zeros(len(self.silos), len(self.silos[0]))
        return torch.tensor([[silo.noise for silo in run] for run in self.silos])

    def choice_noise(self) -> Tensor:
        """Give the scales of the noise of private choices `[runs, silos]`."""
        return torch.tensor([[silo.choice_noise for silo in run] for run in self.silos])

    def steps_at(self, number: int) -> Tensor | None:
        """Say how many steps silos take in a round `[runs, silos]`; None: those of their work."""
        return None if self.steps is None else self.steps[number]

    def present_at(
        self, number: int, runs: int, places: Sequence[int] | None, drawn: Tensor | None = None
    ) -> Tensor | None:
        """Say who takes part in a round `[runs, silos]`, of those whose `places` are given; None: all.

        Those `drawn` for it, in place of the schedule, if they are given.
        """
        silos = len(self.silos[0])
        found = torch.ones(runs, silos, dtype=torch.bool)
        if self.present is not None or drawn is not None:
            found = self.present[number] if drawn is None else drawn  # type: ignore[index]
        if places is not None and len(places) < silos:
            allowed = torch.zeros(silos, dtype=torch.bool)
            allowed[list(places)] = True
            found = found & allowed
        return None if bool(found.all()) else found


def absent_remarks(plan: Plan, title: str, leaving: bool) -> list[str]:
    """Name silos that never take part, and rounds without anybody; nothing of a draw that is secret."""
    found = []
    absent = [silo.name for run in plan.silos for silo in run if silo.rounds == 0 and not silo.steps]
    if absent:
        found.append(
            f"{title}: {len(absent)} of {sum(map(len, plan.silos))} silos (over all runs), as"
            f" '{absent[0]}', take part in no round: nothing is released or charged"
            + (": they are not drawn, or do not pay for one" if leaving else "")
        )
    hidden = any(silo.merges is not None and silo.merges.hidden for silo in plan.silos[0])
    if plan.present is not None and not hidden:
        empty = int((~plan.present.any(2)).sum())
        if empty:
            found.append(f"{title}: in {empty} rounds (over all runs) nobody takes part")
    return found
