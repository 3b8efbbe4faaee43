"""Planning where doors add noise: each silo's doors get the noise that spends exactly its own budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..errors import Problem, Refused
from ..privacy.accountant import epsilon_of
from ..privacy.calibration import Calibrated, Target, calibrate
from ..privacy.events import Event
from ..privacy.published.formulas import pfa_noise
from ..protocol.doors import CHOICE, WHOLE, Calls, Door, Noise, Work, released
from ..protocol.method import Method
from ..protocol.oracle import CERTIFIES_NOTHING
from ..protocol.roster import Roster
from ..protocol.units import EXAMPLE, Unit
from .dry_run import Counts, Facts, dry_run, one_pass
from .plan import Plan, SiloPlan
from .request import Request
from .schedule import Attendance
from .uniform_noise import until_spent

LEAST_ROOT = 1e-90  # of the rho of private choices; a smaller one would need more noise than events may have


def plan_examples(request: Request, unit: Unit = EXAMPLE) -> Plan:
    """Return a plan with the noise at which every silo spends its budget.

    With `spending` "uniform", all silos add the same noise and leave when their budgets are spent; with
    "closed-form", they add the noise of `pfa_noise` if it is more than needed. The noise covers everything
    that was scheduled. Silos are charged for what they send, which is less if they drop out.
    """
    method, roster, work = request.method, request.roster, request.work
    present, planned, steps = request.schedule
    facts = Facts(roster, request.rounds, request.layers, request.names)
    counts = [dry_run(method, roster, request.layers, request.rounds, unit, _mask(present, 0), request.names)]
    same_noise: list[float] | None = None
    if request.spending == "uniform":
        same_noise, present = _until_spent(request, counts[0])
        planned, counts = present, [one_pass(method, facts, present[:, 0], 0, unit)]
    if present is not None or any(not torch.equal(row, roster.epsilon[0]) for row in roster.epsilon):
        counts = _every_run(method, facts, present, counts[0], unit)
    if any(not each.like(counts[0]) for each in counts):
        raise Refused(
            f"'{method.name}' calls different doors in different runs, but one call serves all runs: train"
            " them separately"
        )
    plans = [
        _silo_plans(
            roster, work, counts[run % len(counts)], request.delta[run], run,
            Attendance(_mask(present, run), _mask(planned, run), _mask(steps, run)),
        )
        for run in range(len(request.delta))
    ]  # fmt: skip
    if same_noise is not None:
        silos = tuple(
            tuple(_at(plan, ask.target, same_noise[run]) for plan, ask in row)
            for run, row in enumerate(plans)
        )
        return Plan(unit, counts[0], silos, present, steps=steps)
    targets = (ask.target for run in plans for _, ask in run if ask.target.steps)
    calibrated = calibrate(targets, request.on_progress)
    if request.spending == "closed-form":
        calibrated = {target: _more(target, least) for target, least in calibrated.items()}
    silos = tuple(tuple(_spend(plan, ask, calibrated) for plan, ask in run) for run in plans)
    return Plan(unit, counts[0], silos, present, steps=steps)


def _until_spent(request: Request, counts: Counts) -> tuple[list[float], Tensor]:
    """Return the noise of each run, and which silos take part until their budgets are spent."""
    budgets = zip(request.roster.epsilon.tolist(), request.delta.tolist(), strict=True)
    runs = [
        until_spent(
            counts.calls,
            request.work,
            epsilon,
            delta,
            _mask(request.schedule.present, run),
            request.on_progress,
        )
        for run, (epsilon, delta) in enumerate(budgets)
    ]
    return [noise for noise, _ in runs], torch.stack([present for _, present in runs], dim=1)


def _at(plan: SiloPlan, target: Target, noise: float) -> SiloPlan:
    """Return a plan with a chosen noise and the epsilon that it spends."""
    if not target.steps:
        return plan
    return replace(plan, noise=noise, epsilon=epsilon_of((target.event(noise),), target.delta))


def _more(target: Target, least: Calibrated) -> Calibrated:
    """Return the noise of the closed form if it is more than the least that suffices."""
    if math.isinf(target.epsilon) or target.beside:
        return least
    noise = pfa_noise(target.epsilon, target.rate, target.event(1.0).releases, target.delta)
    if noise <= least.noise:
        return least
    return Calibrated(noise, epsilon_of((target.event(noise),), target.delta))


def _every_run(
    method: Method, facts: Facts, present: Tensor | None, first: Counts, unit: Unit
) -> list[Counts]:
    """Return the counts of each run: its messages may depend on who takes part, and on budgets."""
    known: dict[tuple[float | bytes, ...], Counts] = {}
    counts = []
    for run, budgets in enumerate(facts.roster.epsilon.tolist()):
        mask = _mask(present, run)
        key = (*budgets, b"" if mask is None else mask.numpy().tobytes())
        if key not in known:
            known[key] = one_pass(method, facts, mask, run, unit) if run else first
        counts.append(known[key])
    return counts


def _mask(present: Tensor | None, run: int) -> Tensor | None:
    return None if present is None else present[:, run]


@dataclass(frozen=True)
class _Ask:
    """What a silo's noise must cover, and what it will release, which is less if it drops out.

    `sums` are its noisy sums, with the noise 1; `beside` are its private choices.
    """

    target: Target
    sums: Event | None
    beside: tuple[Event, ...]
    dropped: bool


def _silo_plans(
    roster: Roster, work: Sequence[Work], counts: Counts, delta: Tensor, run: int, who: Attendance
) -> list[tuple[SiloPlan, _Ask]]:
    """Return what each silo does in one run, before its noise is known."""
    plans = []
    kinds = _kinds(counts.calls)
    for k, own in enumerate(work):
        used, planned = who.released(kinds, k, own.steps), who.planned_for(kinds, k, own.steps)
        most, asked = _counted(planned, own)
        sums, choices = _counted(used, own)
        budget, own_delta = float(roster.epsilon[run, k]), float(delta[k])
        if math.isfinite(budget) and any(not door.proven for door, _, _ in planned):
            raise Refused(CERTIFIES_NOTHING)
        beside: tuple[Event, ...] = ()
        noise = 0.0
        if asked and math.isfinite(budget):
            share = next(door.share for door, _, _ in planned if door.kind == CHOICE)
            noise = choice_noise(budget * share, own_delta, asked)
            beside = (Event("selection", noise, 1.0, asked),)
        target = Target(budget, own_delta, own.rate, 0, beside)
        if most is not None:
            target = replace(target, rate=most.rate, steps=most.count, sampler=most.sampler)
        steps = 0 if sums is None else sums.releases
        plan = SiloPlan(
            roster.names[k], own, budget, own_delta, steps, 0.0, 0.0, counts.bytes_up[k],
            counts.bytes_down[k], who.rounds(k, len(counts.calls)), choices, noise,
            whole=any(door.kind == WHOLE for door, _, _ in planned),
        )  # fmt: skip
        chosen = tuple(replace(event, count=choices) for event in beside if choices)
        plans.append((plan, _Ask(target, sums, chosen, (most, asked) != (sums, choices))))
    return plans


def _spend(plan: SiloPlan, ask: _Ask, calibrated: dict[Target, Calibrated]) -> SiloPlan:
    """Return a plan with its noise and epsilon; a silo that drops out spends less than its budget."""
    noise = calibrated[ask.target].noise if ask.target.steps else 0.0
    if not plan.steps and not plan.selections:
        return replace(plan, noise=noise)
    if ask.target.steps and not ask.dropped:
        return replace(plan, noise=noise, epsilon=calibrated[ask.target].epsilon)
    if math.isinf(plan.budget):
        return replace(plan, noise=noise, epsilon=math.inf)
    sums = () if ask.sums is None else (replace(ask.sums, noise=noise),)
    return replace(plan, noise=noise, epsilon=epsilon_of((*sums, *ask.beside), plan.delta))


def _kinds(calls: Sequence[tuple[Door, ...]]) -> dict[tuple[Door, ...], np.ndarray]:
    """Return the rounds that open the same doors, by these doors."""
    kinds: dict[tuple[Door, ...], list[int]] = {}
    for number, doors in enumerate(calls):
        kinds.setdefault(doors, []).append(number)
    return {doors: np.array(rounds) for doors, rounds in kinds.items()}


def _counted(used: Sequence[Calls], work: Work) -> tuple[Event | None, int]:
    """Return the noisy sums, with the noise 1, and the number of private choices that doors release."""
    sums, choices = None, 0
    for event in released(used, work, Noise()):
        if event.mechanism == "selection":
            choices = event.count
        else:
            sums = event
    return sums, choices


def choice_noise(epsilon: float, delta: float, count: int) -> float:
    """Return the noise at which `count` private choices together spend about `epsilon`.

    It follows from zero-concentrated privacy, where one choice has rho = 1 / (8 noise^2). Only the split of a
    budget relies on it: the cost of the choices is certified together with everything else released.
    """
    tail = math.log(1 / delta)
    root = epsilon / (
        math.sqrt(tail + epsilon) + math.sqrt(tail)
    )  # of rho; the form with a difference would cancel
    if not root > LEAST_ROOT:
        raise Problem(
            f"privacy.epsilon: {epsilon:g} is too small for private choices; no noise would be enough"
        )
    return math.sqrt(count / 8) / root
