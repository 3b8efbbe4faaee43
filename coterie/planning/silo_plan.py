"""Planning under the unit 'silo': one noise on the merge, and a clip for each silo that ends at its budget.

Noise is the same for all silos, so one with a smaller budget has a smaller clip: noise over clip is what its
budget needs. The one with the largest budget has all of the clip that is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import Problem, Refused
from ..privacy.accountant import epsilon_of
from ..privacy.calibration import Target, calibrate
from ..privacy.merges import MergeEvents
from ..privacy.published.formulas import heads_sensitivity
from ..protocol.doors import Work
from ..protocol.merging import SUMS_AT_HOME, MergeRule
from ..protocol.units import SILO
from .dry_run import Counts, dry_run
from .plan import Plan, SiloPlan
from .request import Request
from .schedule import Participation


class Terms(NamedTuple):
    """The terms of one run: silos' budgets, or a noise that was given, and the clip, one for all."""

    epsilon: tuple[float, ...]
    delta: tuple[float, ...]
    clip: float
    noise: float | None = None

    @property
    def first_clip(self) -> float:
        """The clip of the first round; infinite without privacy."""
        return math.inf if math.isinf(self.epsilon[0]) else self.clip


def terms_of(epsilon: Tensor, delta: Tensor, clip: Tensor, noise: Tensor | None) -> list[Terms]:
    """Give the terms of each run; all are `[runs, silos]`."""
    found = []
    asked = {"clip": clip} | ({} if noise is None else {"noise": noise})
    for run in range(len(epsilon)):
        one = {key: {float(value) for value in values[run]} for key, values in asked.items()}
        for key, values in one.items():
            if len(values) > 1:
                raise Problem(
                    f"privacy.{key}: one noise is on the merge of all silos: give one number (budgets may"
                    " differ: silos' clips then do)"
                )
        budgets, deltas = tuple(epsilon[run].tolist()), tuple(delta[run].tolist())
        if len({math.isinf(each) for each in budgets}) > 1:
            raise Problem(
                "privacy.epsilon: under the unit 'silo' all silos have a budget, or none has: one without"
                " would drown those whose uploads are clipped"
            )
        found.append(Terms(budgets, deltas, **{key: values.pop() for key, values in one.items()}))
    return found


def plan_silos(request: Request) -> Plan:
    """Count what a method asks for, and find the noise of its merges, unless it is given.

    Budgets hold against the best-informed adversary that is kept out at all: all other silos together where
    the server adds the noise, the server where silos add it. Noise is found for the silos that were
    scheduled; a silo is charged for the merges to which it comes.
    """
    if request.spending in ("uniform", "closed-form"):
        raise Problem(f"budgets: '{request.spending}' is for the unit 'example'")
    method, roster, rounds, merging = request.method, request.roster, request.rounds, request.merging
    where, quantile, work = merging.noise_by, merging.quantile, request.work
    present, planned, steps = request.schedule
    terms = terms_of(roster.epsilon, request.delta, request.clip, merging.noise)
    try:
        counts = dry_run(method, roster, request.layers, rounds, SILO, present, request.names).runs()
    except Refused as problem:
        raise Refused(
            f"'{method.name}' does not protect whole silos: {problem} (`coterie methods` tells which do)"
        ) from None
    if where == "silos" and counts[0].mixed:
        raise Refused(SUMS_AT_HOME)
    rate, sampler = draw_of(request.participation, len(roster))

    def merges(came: Tensor | None) -> list[list[MergeEvents]]:
        found = []
        for run, (_, _, clip, _) in enumerate(terms):
            own = counts[run % len(counts)]
            one = MergeEvents(
                1.0, clip, len(roster), rate, sampler, sum(own.merged), 0, where, own.raw_personal, quantile,
                own.mixed,
            )  # fmt: skip
            often = [one.merges] * len(roster) if one.hidden else _came(own, came, run, len(roster))
            found.append([replace(one, came=times) for times in often])
        return found

    asked, meant = merges(present), merges(present if planned is None else planned)
    unit = (
        1.0 if merging.sensitivity == "certified" else heads_sensitivity(1.0, asked[0][0].cohort, len(roster))
    )
    for row, one in zip(asked, terms, strict=True):
        _check_chance(row[0], one)
    targets = [_targets(own, one) for own, one in zip(meant, terms, strict=True)]
    sought = (
        t for row, one in zip(targets, terms, strict=True) for t in row if t.steps and one.noise is None
    )
    found = calibrate(sought, request.on_progress)
    noise = [
        [0.0 if not t.steps else found[t].noise if one.noise is None else one.noise * unit for t in row]
        for row, one in zip(targets, terms, strict=True)
    ]
    least = [min(row) for row in noise]
    share = [[low / own if own else 1.0 for own in row] for low, row in zip(least, noise, strict=True)]
    unequal = [min(row) < 1 for row in share]
    differ = any(unequal)
    if differ and quantile is not None:
        raise Problem(
            "privacy.quantile: a clip that follows the uploads is one for all: budgets may not differ"
        )
    silos = tuple(
        tuple(
            _silo(roster.names[k], work[k], counts[run % len(counts)], k,
                  replace(own, noise=noise[run][k], clip=own.clip * share[run][k], unequal=unequal[run]),
                  terms[run], _rounds(present, run, k, rounds))
            for k, own in enumerate(row)
        )
        for run, row in enumerate(asked)
    )  # fmt: skip
    merge = MergeRule(
        torch.tensor(least, dtype=torch.float64),
        torch.tensor([t.first_clip for t in terms], dtype=torch.float64),
        asked[0][0].cohort,
        where,
        quantile,
        torch.tensor(share, dtype=torch.float64) if differ else None,
    )
    return Plan(SILO, counts[0], silos, present, merge, steps)


def _check_chance(merges: MergeEvents, terms: Terms) -> None:
    """Refuse a delta that silos' coming at all does not reach, and a noise without a clip."""
    if terms.noise is not None and math.isinf(terms.epsilon[0]):
        raise Problem("budgets: 'none' does not go with a noise that is given")
    used = -math.expm1(merges.merges * math.log1p(-merges.rate)) if merges.rate < 1 else 1.0
    if merges.hidden and merges.merges and used <= max(terms.delta):
        raise Problem(
            f"privacy.delta: {max(terms.delta):g} is not below {used:.3g}, the chance that a silo comes at"
            " all: it would allow to publish every upload without noise; take a smaller delta"
        )


def clip_remarks(plan: Plan, title: str) -> list[str]:
    """Say that silos with smaller budgets weigh less."""
    if plan.merge is None or plan.merge.share is None:
        return []
    clips = [silo.merges.clip for row in plan.silos for silo in row if silo.merges is not None]
    return [
        f"{title}: budgets differ and the noise is one for all, so uploads are clipped to lengths from"
        f" {min(clips):.3g} (smallest budget) to {max(clips):.3g}: small budgets move the mean less"
    ]


def draw_of(how: Participation | None, silos: int) -> tuple[float, str]:
    """Give the chance of a silo to be in a round, and how silos are drawn."""
    if how is None:
        return 1.0, "poisson"
    return (how.share, "poisson") if how.sampler == "poisson" else (how.count(silos) / silos, "fixed")


def _came(counts: Counts, present: Tensor | None, run: int, silos: int) -> list[int]:
    """Give to how many merges each silo comes."""
    merged = torch.tensor(counts.merged)
    if present is None:
        return [int(merged.sum())] * silos
    return [int(n) for n in (present[:, run] & merged.unsqueeze(1)).sum(0)]


def _rounds(present: Tensor | None, run: int, k: int, rounds: int) -> int:
    return rounds if present is None else int(present[:, run, k].sum())


def _targets(asked: Sequence[MergeEvents], terms: Terms) -> list[Target]:
    """Give what each silo's noise must pay for: what is seen of the silo that was to come most often."""
    events = max(asked, key=lambda own: own.came).strongest()
    rate, count = (events[0].rate, events[0].count) if events else (1.0, 0)
    return [Target(*budget, rate, count) for budget in zip(terms.epsilon, terms.delta, strict=True)]


def _silo(
    name: str,
    work: Work,
    counts: Counts,
    k: int,
    merges: MergeEvents,
    terms: Terms,
    rounds: int,
) -> SiloPlan:
    events, delta = merges.strongest(), terms.delta[k]
    spent = epsilon_of(events, delta)
    return SiloPlan(
        name, work, terms.epsilon[k] if terms.noise is None else spent, delta,
        steps=sum(event.count for event in events),
        noise=merges.noise,
        epsilon=spent,
        bytes_up=counts.bytes_up[k],
        bytes_down=counts.bytes_down[k],
        rounds=rounds,
        merges=merges,
    )  # fmt: skip
