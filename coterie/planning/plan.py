"""Plans: a dry run counts what a method asks for; the counts determine each silo's noise and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..privacy.events import Event
from ..privacy.merges import MergeEvents
from ..protocol.doors import POISSON, Work
from ..protocol.merging import MergeRule
from ..protocol.units import Unit
from .dry_run import Counts


@dataclass(frozen=True)
class SiloPlan:
    """What one silo will do and spend in one run.

    `steps` counts the noisy sums of its trainings and `noise` is their multiplier; `selections` counts
    private choices and `choice_noise` is the scale of their noise. The silo takes part in `rounds` rounds.
    Under the unit 'silo', `steps` counts the noisy merges that reveal something about the silo, `noise` is
    their multiplier, and `merges` says how they are made. If `whole`, `steps` counts uploads that depend on
    all examples at once.
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
        """The budget, or None if the noise was given and the budget is just the epsilon that results."""
        given = math.isfinite(self.budget) and self.budget == self.epsilon
        return None if given else self.budget

    @property
    def rate(self) -> float:
        """The sampling rate of what is released: of examples in a step, or of silos in a merge."""
        if self.merges is None:
            return 1.0 if self.whole else self.work.rate
        events = self.merges.strongest()
        return events[0].rate if events else 1.0

    @property
    def sampler(self) -> str:
        """How that is drawn, as events name it."""
        if self.merges is None:
            return POISSON if self.whole else self.work.sampler
        return self.merges.sampler

    def sums(self, noise: float) -> Event:
        """Return what the noisy sums release under the unit 'example'; there must be some."""
        if self.whole:
            return Event("gaussian", noise, 1.0, self.steps)
        return self.work.releases(noise, self.steps)


@dataclass(frozen=True, eq=False)
class Plan:
    """What a training will do to protect a `unit`: `silos[run][k]` for every run and silo.

    `present` says which silos take part in which rounds, `[rounds, runs, silos]`; None means all of them,
    always. Under the unit 'silo', `merge` says how uploads are merged. `steps`, of the same shape as
    `present`, says how many steps each silo takes; None means all steps of its work. `notes` is what a user
    should know.
    """

    unit: Unit
    counts: Counts
    silos: tuple[tuple[SiloPlan, ...], ...]
    present: Tensor | None = None
    merge: MergeRule | None = None
    steps: Tensor | None = None
    notes: tuple[str, ...] = ()

    def noise(self) -> Tensor:
        """Return the noise multipliers of the silos' doors, `[runs, silos]`."""
        if not self.unit.noise_in_doors:
            return torch.zeros(len(self.silos), len(self.silos[0]))
        return torch.tensor([[silo.noise for silo in run] for run in self.silos])

    def choice_noise(self) -> Tensor:
        """Return the noise scales of private choices, `[runs, silos]`, in float64: nothing pays for less."""
        scales = [[silo.choice_noise for silo in run] for run in self.silos]
        return torch.tensor(scales, dtype=torch.float64)

    def steps_at(self, number: int) -> Tensor | None:
        """Return how many steps silos take in a round, `[runs, silos]`; None means all of their work."""
        return None if self.steps is None else self.steps[number]

    @property
    def drawn_in_secret(self) -> bool:
        """Whether silos are drawn by secret coins, on which epsilon relies."""
        return any(silo.merges is not None and silo.merges.hidden for silo in self.silos[0])

    def asked_at(self, number: int) -> list[int]:
        """Return the places of the silos that a deployed training asks in a round.

        All are asked if they are drawn in secret: each tosses its own coin.
        """
        present = None if self.drawn_in_secret else self.present_at(number, 1, None)
        return [k for k in range(len(self.silos[0])) if present is None or bool(present[0, k])]

    def present_at(
        self, number: int, runs: int, places: Sequence[int] | None, drawn: Tensor | None = None
    ) -> Tensor | None:
        """Return which silos take part in a round, `[runs, silos]`; None means all of them.

        Only silos whose indices are in `places` may take part (None allows all). `drawn`, if given, replaces
        the schedule.
        """
        silos = len(self.silos[0])
        taking_part = torch.ones(runs, silos, dtype=torch.bool)
        if self.present is not None or drawn is not None:
            taking_part = self.present[number] if drawn is None else drawn  # type: ignore[index]
        if places is not None and len(places) < silos:
            allowed = torch.zeros(silos, dtype=torch.bool)
            allowed[list(places)] = True
            taking_part = taking_part & allowed
        return None if bool(taking_part.all()) else taking_part


def absent_remarks(plan: Plan, title: str, leaving: bool) -> list[str]:
    """Return notes about silos that never take part and about rounds without silos, unless that is secret."""
    remarks = []
    absent = [silo.name for run in plan.silos for silo in run if silo.rounds == 0 and not silo.steps]
    if absent:
        remarks.append(
            f"{title}: {len(absent)} of {sum(map(len, plan.silos))} silos (over all runs), such as"
            f" '{absent[0]}', never take part, so nothing is released or charged"
            + ("; they are not drawn, or their budgets do not cover one round" if leaving else "")
        )
    if plan.present is not None and not plan.drawn_in_secret:
        empty = int((~plan.present.any(2)).sum())
        if empty:
            remarks.append(f"{title}: in {empty} rounds (over all runs) no silo takes part")
    return remarks
