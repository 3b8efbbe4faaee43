"""Planning: a dry run counts what a method asks for, and the counts give each silo's noise and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .cohort.sampling import Work
from .dry_run import Counts, Facts, dry_run, one_pass
from .leaving import until_spent
from .merging import Merge
from .method import Method
from .privacy.accountant import epsilon, epsilon_of
from .privacy.calibration import Calibrated, Target, calibrate
from .privacy.events import Event
from .privacy.published import pfa_noise
from .privacy.whole_silo import Merges
from .roster import Roster

UNITS = ("example", "silo")


@dataclass(frozen=True)
class SiloPlan:
    """What one silo will do and spend in one run.

    `steps` are all noisy sums of its trainings, `noise` their multiplier; `selections` are private
    choices, `choice_noise` the scale of their noise. It takes part in `rounds` rounds. Under the unit
    'silo' `steps` are the noisy merges seen of it, `noise` is theirs, and `merges` says how they are made.
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
    merges: Merges | None = None

    @property
    def rate(self) -> float:
        """The rate of what is released: of examples in a step, or of silos in a merge."""
        if self.merges is None:
            return self.work.rate
        events = self.merges.strongest()
        return events[0].rate if events else 1.0


@dataclass(frozen=True, eq=False)
class Plan:
    """What a training will do: `silos[run][k]` for every run and silo.

    `present` says who takes part when, `[rounds, runs, silos]`; None: everybody always. Under the unit
    'silo' `merge` says how uploads are merged.
    """

    counts: Counts
    silos: tuple[tuple[SiloPlan, ...], ...]
    present: Tensor | None = None
    merge: Merge | None = None

    def noise(self) -> Tensor:
        """Give the multipliers of the noise in silos' doors, `[runs, silos]`."""
        if self.merge is not None:
            return torch.zeros(len(self.silos), len(self.silos[0]))
        return torch.tensor([[silo.noise for silo in run] for run in self.silos])

    def choice_noise(self) -> Tensor:
        """Give the scales of the noise of private choices `[runs, silos]`."""
        return torch.tensor([[silo.choice_noise for silo in run] for run in self.silos])

    def present_at(self, number: int, runs: int, places: Sequence[int] | None) -> Tensor | None:
        """Say who takes part in a round `[runs, silos]`, of those whose `places` are given; None: all."""
        silos = len(self.silos[0])
        found = torch.ones(runs, silos, dtype=torch.bool)
        if self.present is not None:
            found = self.present[number]
        if places is not None and len(places) < silos:
            allowed = torch.zeros(silos, dtype=torch.bool)
            allowed[list(places)] = True
            found = found & allowed
        return None if bool(found.all()) else found


def make_plan(
    method: Method,
    roster: Roster,
    work: Sequence[Work],
    layers: tuple[int, ...],
    rounds: int,
    delta: Tensor,
    present: Tensor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    spending: str = "own",
    names: tuple[str, ...] = (),
) -> Plan:
    """Count what a method asks for, and find the noise that makes every silo end at its budget.

    `layers` are the lengths of the parameters in a vector, `names` their names; `delta` is `[runs, silos]`,
    as the roster's epsilon; `present` says who takes part when, `[rounds, runs, silos]`. With `spending`
    "uniform" all silos add the same noise and leave when their budgets are spent; with "closed-form" they
    add that of `published.pfa_noise`, if it is more than needed.
    """
    runs, facts = len(delta), Facts(roster, rounds, layers, names)
    counts = [dry_run(method, roster, layers, rounds, present=_mask(present, 0), names=names)]
    same: list[float] | None = None
    if spending == "uniform":
        asked = zip(roster.epsilon.tolist(), delta.tolist(), strict=True)
        found_runs = [
            until_spent(counts[0].calls, work, budgets, deltas, _mask(present, run), on_progress)
            for run, (budgets, deltas) in enumerate(asked)
        ]
        same, present = [noise for noise, _ in found_runs], torch.stack([w for _, w in found_runs], dim=1)
        counts = [one_pass(method, facts, present[:, 0], 0)]
    if present is not None or any(not torch.equal(row, roster.epsilon[0]) for row in roster.epsilon):
        counts = _every_run(method, facts, present, counts[0])
    plans = [
        _silo_plans(roster, work, counts[run % len(counts)], delta[run], run, _mask(present, run))
        for run in range(runs)
    ]
    if same is not None:
        silos = tuple(
            tuple(_at(plan, ask.target, same[run]) for plan, ask in row) for run, row in enumerate(plans)
        )
        return Plan(counts[0], silos, present)
    found = calibrate((ask.target for run in plans for _, ask in run if ask.target.steps), on_progress)
    if spending == "closed-form":
        found = {target: _more(target, least) for target, least in found.items()}
    silos = tuple(tuple(_spend(plan, ask, found) for plan, ask in run) for run in plans)
    return Plan(counts[0], silos, present)


def _at(plan: SiloPlan, target: Target, noise: float) -> SiloPlan:
    """Fill in a noise that was chosen, and what it spends."""
    if not target.steps:
        return plan
    return replace(plan, noise=noise, epsilon=epsilon(noise, target.rate, target.steps, target.delta))


def _more(target: Target, least: Calibrated) -> Calibrated:
    """Give the noise of the closed form where it is more than the least."""
    if math.isinf(target.epsilon) or target.beside:
        return least
    noise = pfa_noise(target.epsilon, target.rate, target.steps, target.delta)
    if noise <= least.noise:
        return least
    return Calibrated(noise, epsilon(noise, target.rate, target.steps, target.delta))


def _every_run(method: Method, facts: Facts, present: Tensor | None, first: Counts) -> list[Counts]:
    """Count each run: what is sent may depend on who takes part, and on budgets."""
    known: dict[tuple[float | bytes, ...], Counts] = {}
    found = []
    for run, budgets in enumerate(facts.roster.epsilon.tolist()):
        here = _mask(present, run)
        key = (*budgets, b"" if here is None else here.numpy().tobytes())
        if key not in known:
            known[key] = one_pass(method, facts, here, run) if run else first
        found.append(known[key])
    return found


def _mask(present: Tensor | None, run: int) -> Tensor | None:
    return None if present is None else present[:, run]


@dataclass(frozen=True)
class _Ask:
    target: Target
    beside: tuple[Event, ...]


def _silo_plans(
    roster: Roster, work: Sequence[Work], counts: Counts, delta: Tensor, run: int, present: Tensor | None
) -> list[tuple[SiloPlan, _Ask]]:
    """Give what each silo does in one run, before its noise is known."""
    made = []
    for k, own in enumerate(work):
        rounds = [n for n in range(len(counts.calls)) if present is None or bool(present[n, k])]
        doors = [door for number in rounds for door in counts.calls[number]]
        steps = own.steps * doors.count("descend")
        selects = [door for door in doors if door.startswith("select")]
        budget, own_delta = float(roster.epsilon[run, k]), float(delta[k])
        beside: tuple[Event, ...] = ()
        noise = 0.0
        if selects and math.isfinite(budget):
            noise = choice_noise(budget * share_of(selects[0]), own_delta, len(selects))
            beside = (Event("selection", noise, 1.0, len(selects)),)
        target = Target(budget, own_delta, own.rate, steps, beside)
        plan = SiloPlan(
            roster.names[k], own, budget, own_delta, steps, 0.0, 0.0, counts.bytes_up[k],
            counts.bytes_down[k], len(rounds), len(selects), noise,
        )  # fmt: skip
        made.append((plan, _Ask(target, beside)))
    return made


def _spend(plan: SiloPlan, ask: _Ask, found: dict[Target, Calibrated]) -> SiloPlan:
    """Fill in a silo's noise and what it spends."""
    if ask.target.steps:
        done = found[ask.target]
        return replace(plan, noise=done.noise, epsilon=done.epsilon)
    if not plan.selections:
        return plan
    alone = math.inf if math.isinf(plan.budget) else epsilon_of(ask.beside, plan.delta)
    return replace(plan, epsilon=alone)


def share_of(door: str) -> float:
    """Read the share of a budget that a choice may take from the name of its door."""
    return float(door.removeprefix("select "))


def choice_noise(epsilon: float, delta: float, count: int) -> float:
    """Choose the noise of `count` private choices that together take about `epsilon`.

    By zero-concentrated privacy, of which a choice has 1 / (8 noise^2). Only the split of a budget rests
    on it: what choices cost is certified with all that is released.
    """
    tail = math.log(1 / delta)
    rho = (math.sqrt(tail + epsilon) - math.sqrt(tail)) ** 2
    return math.sqrt(count / (8 * rho))
