"""Planning under the unit 'silo': one noise on the merge, and a clip per silo that matches its budget.

All silos share the same noise, so a silo with a smaller budget gets a smaller clip: its ratio of noise to
clip is what its budget requires. The silo with the largest budget gets the whole clip.
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
from ..privacy.distributed import assumption_problems, least_threshold
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
    """The terms of one run: the silos' budgets or a given noise, and the clip that all silos share."""

    epsilon: tuple[float, ...]
    delta: tuple[float, ...]
    clip: float
    noise: float | None = None

    @property
    def first_clip(self) -> float:
        """The clip of the first round; infinite without privacy."""
        return math.inf if math.isinf(self.epsilon[0]) else self.clip


def terms_of(epsilon: Tensor, delta: Tensor, clip: Tensor, noise: Tensor | None) -> list[Terms]:
    """Return the terms of each run; all tensors are `[runs, silos]`."""
    terms = []
    asked = {"clip": clip} | ({} if noise is None else {"noise": noise})
    for run in range(len(epsilon)):
        distinct = {key: {float(value) for value in values[run]} for key, values in asked.items()}
        for key, values in distinct.items():
            if len(values) > 1:
                raise Problem(
                    f"privacy.{key}: the merge of all silos has one noise, so give one number (budgets may"
                    " differ; then the silos' clips differ)"
                )
        budgets, deltas = tuple(epsilon[run].tolist()), tuple(delta[run].tolist())
        if len({math.isinf(each) for each in budgets}) > 1:
            raise Problem(
                "privacy.epsilon: under the unit 'silo' either all silos have a budget or none has; the"
                " uploads of silos without one would drown those that are clipped"
            )
        terms.append(Terms(budgets, deltas, **{key: values.pop() for key, values in distinct.items()}))
    return terms


def plan_silos(request: Request) -> Plan:
    """Return a plan with the noise of a method's merges, calibrated unless it is given.

    Budgets hold against the best-informed adversary among those a silo is protected against: all other silos
    together if the server adds the noise, the server if the silos add it, and the server with some of the
    silos if they add it for a secure sum. The noise covers what was
    scheduled; a silo is charged for the merges in which it takes part.
    """
    if request.spending in ("uniform", "closed-form"):
        raise Problem(f"budgets: '{request.spending}' is allowed only with unit = 'example'")
    method, roster, rounds, merging = request.method, request.roster, request.rounds, request.merging
    where, quantile, work = merging.noise_by, merging.quantile, request.work
    present, planned, steps = request.schedule
    terms = terms_of(roster.epsilon, request.delta, request.clip, merging.noise)
    try:
        counts = dry_run(method, roster, request.layers, rounds, SILO, present, request.names).runs()
    except Refused as problem:
        raise Refused(
            f"'{method.name}' does not protect whole silos: {problem} (`coterie methods` shows which do)"
        ) from None
    if where != "server" and counts[0].mixed:
        raise Refused(SUMS_AT_HOME)
    rate, sampler = draw_of(request.participation, len(roster))
    missing = (merging.dropouts, merging.colluding) if where == "secure" else (0, 0)
    members = len(roster) if sampler == "poisson" and rate < 1 and where == "secure" else None
    if where == "secure":
        due = round(rate * len(roster)) if members is None else members
        if problems := assumption_problems(due, *missing):
            raise Problem("\n".join(f"privacy.noise_by: {each}" for each in problems))

    def merges(came: Tensor | None) -> list[list[MergeEvents]]:
        rows = []
        for run, (_, _, clip, _) in enumerate(terms):
            seen = counts[run % len(counts)]
            events = MergeEvents(
                1.0, clip, len(roster), rate, sampler, sum(seen.merged), 0, where, seen.raw_personal,
                quantile, seen.mixed, dropouts=missing[0], colluding=missing[1],
            )  # fmt: skip
            often = [events.merges] * len(roster) if events.hidden else _came(seen, came, run, len(roster))
            rows.append([replace(events, came=times) for times in often])
        return rows

    asked, meant = merges(present), merges(present if planned is None else planned)
    unit = (
        1.0 if merging.sensitivity == "certified" else heads_sensitivity(1.0, asked[0][0].cohort, len(roster))
    )
    for row, term in zip(asked, terms, strict=True):
        _check_chance(row[0], term)
    targets = [_targets(row, term) for row, term in zip(meant, terms, strict=True)]
    sought = (
        t for row, term in zip(targets, terms, strict=True) for t in row if t.steps and term.noise is None
    )
    calibrated = calibrate(sought, request.on_progress)
    noise = [
        [
            0.0 if not t.steps else calibrated[t].noise if term.noise is None else term.noise * unit
            for t in row
        ]
        for row, term in zip(targets, terms, strict=True)
    ]
    least = [min(row) for row in noise]
    share = [[low / own if own else 1.0 for own in row] for low, row in zip(least, noise, strict=True)]
    unequal = [min(row) < 1 for row in share]
    differ = any(unequal)
    if differ and quantile is not None:
        raise Problem(
            "privacy.quantile: all silos share a clip that follows the uploads, so budgets may not differ"
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
        *missing,
        members,
    )
    return Plan(SILO, counts[0], silos, present, merge, steps)


def _check_chance(merges: MergeEvents, terms: Terms) -> None:
    """Raise `Problem` for a delta above the chance of ever taking part, or a noise without a clip."""
    if terms.noise is not None and math.isinf(terms.epsilon[0]):
        raise Problem("budgets: 'none' is not allowed with privacy.noise")
    used = -math.expm1(merges.merges * math.log1p(-merges.rate)) if merges.rate < 1 else 1.0
    if merges.hidden and merges.merges and used <= max(terms.delta):
        raise Problem(
            f"privacy.delta: {max(terms.delta):g} is not below {used:.3g}, the chance that a silo takes part"
            " at all, so it permits publishing every upload without noise; choose a smaller delta"
        )


def clip_remarks(plan: Plan, title: str) -> list[str]:
    """Return a note that silos with smaller budgets weigh less, if they do."""
    if plan.merge is None or plan.merge.share is None:
        return []
    clips = [silo.merges.clip for row in plan.silos for silo in row if silo.merges is not None]
    return [
        f"{title}: budgets differ but all silos share one noise, so uploads are clipped to lengths from"
        f" {min(clips):.3g} (smallest budget) to {max(clips):.3g}; small budgets move the mean less"
    ]


def secure_remarks(plan: Plan, title: str) -> list[str]:
    """Return what is assumed of a secure sum, and a note about rounds in which too many silos drop out."""
    rule = plan.merge
    if rule is None or rule.where != "secure":
        return []
    due, colluding = rule.due, rule.colluding
    remarks = [
        f"{title}: epsilon holds if at most {colluding} of the {due} silos of a round side with the server;"
        f" at most {rule.dropouts} may drop out, and {least_threshold(due, colluding)} must confirm who"
        " uploaded"
    ]
    lost = (
        0
        if plan.present is None or rule.members is not None
        else int((plan.present.sum(2) < rule.least).sum())
    )
    if lost:
        remarks.append(
            f"{title}: in {lost} rounds (over all runs) fewer than {rule.least} silos are left, so their sum"
            " is not unmasked and changes nothing, but they are charged"
        )
    return remarks


def draw_of(how: Participation | None, silos: int) -> tuple[float, str]:
    """Return the probability that a silo takes part in a round, and how silos are drawn."""
    if how is None:
        return 1.0, "poisson"
    return (how.share, "poisson") if how.sampler == "poisson" else (how.count(silos) / silos, "fixed")


def _came(counts: Counts, present: Tensor | None, run: int, silos: int) -> list[int]:
    """Return the number of merges in which each silo takes part."""
    merged = torch.tensor(counts.merged)
    if present is None:
        return [int(merged.sum())] * silos
    return [int(n) for n in (present[:, run] & merged.unsqueeze(1)).sum(0)]


def _rounds(present: Tensor | None, run: int, k: int, rounds: int) -> int:
    return rounds if present is None else int(present[:, run, k].sum())


def _targets(asked: Sequence[MergeEvents], terms: Terms) -> list[Target]:
    """Return what each silo's noise must cover: what is seen of the silo scheduled most often."""
    events = max(asked, key=lambda merges: merges.came).strongest()
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
    wide = 1 if merges.noise_by == "server" else 2  # silos that add noise send eight bytes per number
    return SiloPlan(
        name, work, terms.epsilon[k] if terms.noise is None else spent, delta,
        steps=sum(event.count for event in events),
        noise=merges.noise,
        epsilon=spent,
        bytes_up=wide * counts.bytes_up[k],
        bytes_down=counts.bytes_down[k],
        rounds=rounds,
        merges=merges,
    )  # fmt: skip
