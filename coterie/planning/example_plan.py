"""Planning under the unit 'example': noise in each silo's doors, so that it ends at its own budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..errors import Problem, Refused
from ..privacy.accountant import epsilon, epsilon_of
from ..privacy.calibration import Calibrated, Target, calibrate
from ..privacy.events import Event
from ..privacy.published.formulas import pfa_noise
from ..protocol.doors import CHOICE, WHOLE, Calls, Door, Noise, Work, released
from ..protocol.method import Method
from ..protocol.oracle import CERTIFIES_NOTHING
from ..protocol.roster import Roster
from ..protocol.units import EXAMPLE
from .dry_run import Counts, Facts, dry_run, one_pass
from .plan import Plan, SiloPlan
from .request import Request
from .schedule import Attendance
from .uniform_noise import until_spent

LEAST_ROOT = 1e-90  # of the rho of private choices: less would need more noise than events may have


def plan_examples(request: Request) -> Plan:
    """Count what a method asks for, and find the noise that makes every silo end at its budget.

    With `spending` "uniform" all silos add the same noise and leave when their budgets are spent; with
    "closed-form" they add the noise of `pfa_noise` if it is more than needed. Noise is found for everything
    that was scheduled; silos are charged for what they send, which is less where they drop out.
    """
    method, roster, work = request.method, request.roster, request.work
    present, planned, steps = request.schedule
    facts = Facts(roster, request.rounds, request.layers, request.names)
    counts = [
        dry_run(
            method, roster, request.layers, request.rounds, present=_mask(present, 0), names=request.names
        )
    ]
    same_noise: list[float] | None = None
    if request.spending == "uniform":
        same_noise, present = _until_spent(request, counts[0])
        planned, counts = present, [one_pass(method, facts, present[:, 0], 0)]
    if present is not None or any(not torch.equal(row, roster.epsilon[0]) for row in roster.epsilon):
        counts = _every_run(method, facts, present, counts[0])
    if any(not each.like(counts[0]) for each in counts):
        raise Refused(
            f"'{method.name}' calls other doors in another of these runs, and one call serves them all: train"
            " them apart"
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
        return Plan(EXAMPLE, counts[0], silos, present, steps=steps)
    targets = (ask.target for run in plans for _, ask in run if ask.target.steps)
    found = calibrate(targets, request.on_progress)
    if request.spending == "closed-form":
        found = {target: _more(target, least) for target, least in found.items()}
    silos = tuple(tuple(_spend(plan, ask, found) for plan, ask in run) for run in plans)
    return Plan(EXAMPLE, counts[0], silos, present, steps=steps)


def _until_spent(request: Request, counts: Counts) -> tuple[list[float], Tensor]:
    """Return the noise of each run, and who takes part until their budgets are spent."""
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
