"""Metered training under the unit 'silo': what a run asks of a silo, who comes, and what is stated.

Where the server adds the noise and silos are drawn one by one ('poisson'), epsilon rests on nobody but the
server knowing who came. So what is asked of a silo does not depend on the draw, and the coins come from the
system's entropy, round by round, and are kept nowhere. A round that is repeated after a crash is drawn anew:
two answers with the same coins would cost more than two that are sampled, which is what is charged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .entropy import EntropyStreams
from .plan import Plan, SiloPlan
from .privacy.runplan import RunPlan
from .privacy.whole_silo import Merges


def silo_run_plans(label: str, plan: Plan, k: int) -> list[RunPlan]:
    """Give what each run of a training asks of silo k: what the best informed see of whom it is protected."""
    return [_run_plan(label, plan, run, k, row[k]) for run, row in enumerate(plan.silos)]


def _run_plan(label: str, plan: Plan, run: int, k: int, silo: SiloPlan) -> RunPlan:
    seen = _merges(silo).releases()
    each = tuple(replace(event, count=1) for event in _merges(silo).strongest())
    flags = itertools.groupby(comes(plan, run, k))
    stages = tuple((len(list(same)), each if here else ()) for here, same in flags)
    bare = tuple(name for name, events in seen.items() if events is None)
    protected = tuple(name for name in seen if name not in bare) if each else ()
    return RunPlan(label, "silo", silo.delta, silo.epsilon, stages, protected, None, bare)


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


def merges_done(plan: Plan, run: int, k: int, spans: Sequence[tuple[int, int]]) -> Merges:
    """Give what was merged of silo k in the rounds that it reserved, those repeated twice."""
    rounds = [number for first, last in spans for number in range(first, last)]
    came = comes(plan, run, k)
    made = sum(plan.counts.merged[number] for number in rounds)
    own = sum(came[number] for number in rounds)
    return replace(_merges(plan.silos[run][k]), merges=made, came=own, metered=True)


def _merges(silo: SiloPlan) -> Merges:
    assert silo.merges is not None
    return silo.merges
