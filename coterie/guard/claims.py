"""Metered training under the unit 'silo': what a run asks of a silo, who comes, and what is stated.

Where the server adds the noise and silos are drawn one by one ('poisson'), epsilon rests on nobody but the
server knowing who came. So what is asked of a silo does not depend on the draw, and the coins come from the
system's entropy, round by round, and are kept nowhere. A round that is repeated after a crash is drawn anew:
two answers with the same coins would cost more than two that are sampled, which is what is charged.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .._threads import in_threads
from ..planning.plan import Plan, SiloPlan
from ..privacy.adversaries import seen_by
from ..privacy.events import Event
from ..privacy.ledger.claim import Claim
from ..privacy.merges import MergeEvents
from ..protocol.doors import Calls, Door, Noise, released
from .secret_streams import EntropyStreams


def silo_run_plans(label: str, plan: Plan, k: int) -> list[Claim]:
    """Give what each run of a training asks of silo k: what the best informed see of whom it is protected."""
    return [_run_plan(label, plan, run, k, row[k]) for run, row in enumerate(plan.silos)]


def _run_plan(label: str, plan: Plan, run: int, k: int, silo: SiloPlan) -> Claim:
    seen = _merges(silo).releases()
    each = tuple(replace(event, count=1) for event in _merges(silo).strongest())
    flags = itertools.groupby(comes(plan, run, k))
    stages = tuple((len(list(same)), each if here else ()) for here, same in flags)
    bare = tuple(name for name, events in seen.items() if events is None)
    protected = tuple(name for name in seen if name not in bare) if each else ()
    return Claim(label, "silo", silo.delta, silo.epsilon, stages, protected, None, bare)


def comes(plan: Plan, run: int, k: int) -> list[bool]:
    """Say for each round whether an upload of silo k is merged; where nobody knows, whether it may be."""
    merged = list(plan.counts.merged)
    if plan.present is None or _merges(plan.silos[run][k]).hidden:
        return merged
    here = plan.present[:, run, k].tolist()
    return [flag and came for flag, came in zip(merged, here, strict=True)]


def secret_draw(plan: Plan, streams: EntropyStreams) -> Callable[[int], Tensor] | None:
    """Give who comes in a round, `[runs, silos]`, by secret coins; None where the draw is public."""
    if plan.merge is None or not _merges(plan.silos[0][0]).hidden:
        return None
    rate, runs, silos = _merges(plan.silos[0][0]).rate, len(plan.silos), len(plan.silos[0])

    def draw(number: int) -> Tensor:
        return torch.stack(
            [torch.from_numpy(streams.coins(run, number, silos) < rate) for run in range(runs)]
        )

    return draw


def merges_done(plan: Plan, run: int, k: int, spans: Sequence[tuple[int, int]]) -> MergeEvents:
    """Give what was merged of silo k in the rounds that it reserved, those repeated twice."""
    rounds = [number for first, last in spans for number in range(first, last)]
    came = comes(plan, run, k)
    made = sum(plan.counts.merged[number] for number in rounds)
    own = sum(came[number] for number in rounds)
    return replace(_merges(plan.silos[run][k]), merges=made, came=own, metered=True)


def _merges(silo: SiloPlan) -> MergeEvents:
    assert silo.merges is not None
    return silo.merges


def run_plans(label: str, plan: Plan, k: int) -> list[Claim]:
    """Give what each run of a training asks of silo k's data set."""
    if plan.merge is not None:
        return silo_run_plans(label, plan, k)
    found = []
    for r, run in enumerate(plan.silos):
        silo = run[k]
        here = None if plan.present is None else tuple(plan.present[:, r, k].tolist())
        steps = None if plan.steps is None else tuple(plan.steps[:, r, k].tolist())
        stages = tuple(
            (rounds, _events(silo, doors, made))
            for rounds, doors, made in _doors(plan.counts.calls, here, steps)
        )
        seen = seen_by(silo.bytes_up > 0) if any(events for _, events in stages) else ()
        found.append(Claim(label, "example", silo.delta, silo.epsilon, stages, seen))
    return found


def _events(silo: SiloPlan, doors: tuple[Door, ...], steps: int | None) -> tuple[Event, ...]:
    """Return what a silo releases in a round in which it opens these doors, each for `steps` steps."""
    each = silo.work.steps if steps is None else steps
    used = [Calls(door, 1, each) for door in doors]
    return released(used, silo.work, Noise(silo.noise, silo.choice_noise))


@functools.lru_cache(maxsize=4096)
def _doors(
    calls: tuple[tuple[Door, ...], ...], here: tuple[bool, ...] | None, steps: tuple[int, ...] | None
) -> tuple[tuple[int, tuple[Door, ...], int | None], ...]:
    """Give (rounds, doors of each, steps of a door) of a plan in order; no door where a silo is away."""
    doors = calls if here is None else tuple(d if flag else () for d, flag in zip(calls, here, strict=True))
    each = (
        [None] * len(doors)
        if steps is None
        else [n if d else None for d, n in zip(doors, steps, strict=True)]
    )
    stages = itertools.groupby(zip(doors, each, strict=True))
    return tuple((len(list(same)), made, count) for (made, count), same in stages)


def certify(plans: Iterable[Claim]) -> None:
    """Find the epsilons of all different plans, before several ledgers ask for the same at a time."""

    def one(plan: Claim) -> None:
        for unit in plan.units:
            plan.certified(0, plan.rounds, unit=unit)

    in_threads(one, {(plan.stages, plan.delta): plan for plan in plans}.values())
