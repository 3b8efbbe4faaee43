"""Planning: a dry run counts what a method asks for, and the counts give each silo's noise and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..errors import Problem, Refused
from ..privacy.accountant import epsilon, epsilon_of
from ..privacy.calibration import Calibrated, Target, calibrate
from ..privacy.events import Event
from ..privacy.merges import MergeEvents
from ..privacy.published.formulas import pfa_noise
from ..protocol.doors import CHOICE, WHOLE, Calls, Door, Noise, Work, released
from ..protocol.method import Method
from ..protocol.oracle import CERTIFIES_NOTHING
from ..protocol.roster import Merge, Roster
from .dry_run import Counts, Facts, dry_run, one_pass
from .schedule import Attendance
from .uniform_noise import until_spent

LEAST_ROOT = 1e-90  # of the rho of private choices: less would need more noise than events may have


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
    """What a training will do: `silos[run][k]` for every run and silo.

    `present` says who takes part when, `[rounds, runs, silos]`; None: everybody always. Under the unit
    'silo' `merge` says how uploads are merged. `steps` says how many steps each silo takes, as `present`;
    None: those of its work.
    """

    counts: Counts
    silos: tuple[tuple[SiloPlan, ...], ...]
    present: Tensor | None = None
    merge: Merge | None = None
    steps: Tensor | None = None

    def noise(self) -> Tensor:
        """Give the multipliers of the noise in silos' doors, `[runs, silos]`."""
        if self.merge is not None:
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
    planned: Tensor | None = None,
    steps: Tensor | None = None,
) -> Plan:
    """Count what a method asks for, and find the noise that makes every silo end at its budget.

    `layers` are the lengths of the parameters in a vector, `names` their names; `delta` is `[runs, silos]`,
    as the roster's epsilon; `present` says who takes part when, `[rounds, runs, silos]`. With `spending`
    "uniform" all silos add the same noise and leave when their budgets are spent; with "closed-form" they
    add that of `published.pfa_noise`, if it is more than needed. `planned` says who would take part if
    nobody dropped out, `steps` how many steps each takes, both as `present`: noise is found for all that is
    planned, and silos are charged for what they send.
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
    if any(not own.like(counts[0]) for own in counts):
        raise Refused(
            f"'{method.name}' calls other doors in another of these runs, and one call serves them all: train"
            " them apart"
        )
    if spending == "uniform":
        planned = present
    plans = [
        _silo_plans(
            roster, work, counts[run % len(counts)], delta[run], run,
            Attendance(_mask(present, run), _mask(planned, run), _mask(steps, run)),
        )
        for run in range(runs)
    ]  # fmt: skip
    if same is not None:
        silos = tuple(
            tuple(_at(plan, ask.target, same[run]) for plan, ask in row) for run, row in enumerate(plans)
        )
        return Plan(counts[0], silos, present, steps=steps)
    found = calibrate((ask.target for run in plans for _, ask in run if ask.target.steps), on_progress)
    if spending == "closed-form":
        found = {target: _more(target, least) for target, least in found.items()}
    silos = tuple(tuple(_spend(plan, ask, found) for plan, ask in run) for run in plans)
    return Plan(counts[0], silos, present, steps=steps)


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
    """What a silo's noise must pay for, and what it will release: less, where it drops out."""

    target: Target
    rate: float
    beside: tuple[Event, ...]
    dropped: bool


def _silo_plans(
    roster: Roster, work: Sequence[Work], counts: Counts, delta: Tensor, run: int, who: Attendance
) -> list[tuple[SiloPlan, _Ask]]:
    """Give what each silo does in one run, before its noise is known."""
    made = []
    kinds = _kinds(counts.calls)
    for k, own in enumerate(work):
        used, planned = who.released(kinds, k, own.steps), who.planned_for(kinds, k, own.steps)
        rate, most, asked = _counted(planned, own)
        _, steps, choices = _counted(used, own)
        budget, own_delta = float(roster.epsilon[run, k]), float(delta[k])
        if math.isfinite(budget) and any(not door.proven for door, _, _ in planned):
            raise Refused(CERTIFIES_NOTHING)
        beside: tuple[Event, ...] = ()
        noise = 0.0
        if asked and math.isfinite(budget):
            share = next(door.share for door, _, _ in planned if door.kind == CHOICE)
            noise = choice_noise(budget * share, own_delta, asked)
            beside = (Event("selection", noise, 1.0, asked),)
        target = Target(budget, own_delta, rate, most, beside)
        plan = SiloPlan(
            roster.names[k], own, budget, own_delta, steps, 0.0, 0.0, counts.bytes_up[k],
            counts.bytes_down[k], who.rounds(k, len(counts.calls)), choices, noise,
            whole=any(door.kind == WHOLE for door, _, _ in planned),
        )  # fmt: skip
        chosen = tuple(replace(event, count=choices) for event in beside if choices)
        made.append((plan, _Ask(target, rate, chosen, (most, asked) != (steps, choices))))
    return made


def _spend(plan: SiloPlan, ask: _Ask, found: dict[Target, Calibrated]) -> SiloPlan:
    """Fill in a silo's noise and what it spends; one that drops out spends less than its budget."""
    noise = found[ask.target].noise if ask.target.steps else 0.0
    if not plan.steps and not plan.selections:
        return replace(plan, noise=noise)
    if ask.target.steps and not ask.dropped:
        return replace(plan, noise=noise, epsilon=found[ask.target].epsilon)
    if math.isinf(plan.budget):
        return replace(plan, noise=noise, epsilon=math.inf)
    sums = (Event("gaussian", noise, ask.rate, plan.steps),) if plan.steps else ()
    return replace(plan, noise=noise, epsilon=epsilon_of((*sums, *ask.beside), plan.delta))


def _kinds(calls: Sequence[tuple[Door, ...]]) -> dict[tuple[Door, ...], np.ndarray]:
    """Give the rounds in which the same doors are opened, by these doors."""
    found: dict[tuple[Door, ...], list[int]] = {}
    for number, doors in enumerate(calls):
        found.setdefault(doors, []).append(number)
    return {doors: np.array(rounds) for doors, rounds in found.items()}


def _counted(used: Sequence[Calls], work: Work) -> tuple[float, int, int]:
    """Return the rate and number of noisy sums, and the number of private choices, that doors release."""
    rate, sums, choices = work.rate, 0, 0
    for event in released(used, work, Noise()):
        if event.mechanism == "selection":
            choices = event.count
        else:
            rate, sums = event.rate, event.count
    return rate, sums, choices


def choice_noise(epsilon: float, delta: float, count: int) -> float:
    """Choose the noise of `count` private choices that together take about `epsilon`.

    By zero-concentrated privacy, of which a choice has 1 / (8 noise^2). Only the split of a budget rests
    on it: what choices cost is certified with all that is released.
    """
    tail = math.log(1 / delta)
    root = epsilon / (math.sqrt(tail + epsilon) + math.sqrt(tail))  # of rho; a difference would cancel
    if not root > LEAST_ROOT:
        raise Problem(f"privacy.epsilon: {epsilon:g} for private choices is too small: no noise is enough")
    return math.sqrt(count / 8) / root
