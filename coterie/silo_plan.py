"""Planning under the unit 'silo': one noise on the merge makes every silo end at the same budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .cohort.sampling import Work
from .dry_run import Counts, dry_run
from .errors import Problem, Refused
from .merging import SUMS_AT_HOME, Merge
from .method import Method
from .participation import Participation
from .plan import Plan, SiloPlan
from .privacy.accountant import epsilon_of
from .privacy.calibration import Target, calibrate
from .privacy.published import heads_sensitivity
from .privacy.whole_silo import Merges
from .roster import Roster


class Terms(NamedTuple):
    """The terms of one run, the same for all its silos: a budget, or a noise that was given."""

    epsilon: float
    delta: float
    clip: float
    noise: float | None = None

    @property
    def first_clip(self) -> float:
        """The clip of the first round; infinite without privacy."""
        return math.inf if math.isinf(self.epsilon) else self.clip


def terms_of(epsilon: Tensor, delta: Tensor, clip: Tensor, noise: Tensor | None) -> list[Terms]:
    """Give the terms of each run; all are `[runs, silos]`."""
    found = []
    asked = {"epsilon": epsilon, "delta": delta, "clip": clip} | ({} if noise is None else {"noise": noise})
    for run in range(len(epsilon)):
        one = {key: {float(value) for value in values[run]} for key, values in asked.items()}
        for key, values in one.items():
            if len(values) > 1:
                raise Problem(
                    f"privacy.{key}: one noise on the merge protects all silos alike: give one number"
                    + (", or budgets = 'minimum'" if key == "epsilon" else "")
                )
        found.append(Terms(**{key: values.pop() for key, values in one.items()}))
    return found


def make_silo_plan(
    method: Method,
    roster: Roster,
    work: Sequence[Work],
    layers: tuple[int, ...],
    rounds: int,
    terms: Sequence[Terms],
    how: Participation | None,
    present: Tensor | None,
    where: str = "server",
    on_progress: Callable[[int, int], None] | None = None,
    names: tuple[str, ...] = (),
    sensitivity: str = "certified",
    quantile: float | None = None,
    planned: Tensor | None = None,
    steps: Tensor | None = None,
) -> Plan:
    """Count what a method asks for, and find the noise of its merges, unless it is given.

    A given noise is a multiplier of the clip; under the `sensitivity` "paper" of what Wu, Chen, Wang 2020
    take for the sensitivity of an upload (see `published.heads_sensitivity`).

    The budget holds against the best informed against whom there is any protection: all other silos
    together where the server adds the noise, the server where silos do. Noise is found for who was `planned`
    to come, silos are charged for the merges to which they do; `steps` is how many steps each takes.
    """
    try:
        counts = dry_run(method, roster, layers, rounds, "silo", present, names).runs()
    except Refused as problem:
        raise Refused(
            f"'{method.name}' does not protect whole silos: {problem} (`coterie methods` tells which do)"
        ) from None
    if where == "silos" and counts[0].mixed:
        raise Refused(SUMS_AT_HOME)
    rate, sampler = draw_of(how, len(roster))

    def merges(came: Tensor | None) -> list[list[Merges]]:
        found = []
        for run, (_, _, clip, _) in enumerate(terms):
            own = counts[run % len(counts)]
            one = Merges(
                1.0, clip, len(roster), rate, sampler, sum(own.merged), 0, where, own.raw_personal, quantile,
                own.mixed,
            )  # fmt: skip
            often = [one.merges] * len(roster) if one.hidden else _came(own, came, run, len(roster))
            found.append([replace(one, came=times) for times in often])
        return found

    asked, meant = merges(present), merges(present if planned is None else planned)
    unit = 1.0 if sensitivity == "certified" else heads_sensitivity(1.0, asked[0][0].cohort, len(roster))
    for row, one in zip(asked, terms, strict=True):
        _check_chance(row[0], one)
    targets = [_target(own, one.epsilon, one.delta) for own, one in zip(meant, terms, strict=True)]
    sought = (t for t, one in zip(targets, terms, strict=True) if t.steps and one.noise is None)
    found = calibrate(sought, on_progress)
    noise = [
        0.0 if not target.steps else found[target].noise if one.noise is None else one.noise * unit
        for target, one in zip(targets, terms, strict=True)
    ]
    silos = tuple(
        tuple(
            _silo(roster.names[k], work[k], counts[run % len(counts)], k, replace(own, noise=noise[run]),
                  terms[run], _rounds(present, run, k, rounds))
            for k, own in enumerate(row)
        )
        for run, row in enumerate(asked)
    )  # fmt: skip
    clips = torch.tensor([t.first_clip for t in terms], dtype=torch.float64)
    merge = Merge(torch.tensor(noise, dtype=torch.float64), clips, asked[0][0].cohort, where, quantile)
    return Plan(counts[0], silos, present, merge, steps)


def _check_chance(merges: Merges, terms: Terms) -> None:
    """Refuse a delta that silos' coming at all does not reach, and a noise without a clip."""
    if terms.noise is not None and math.isinf(terms.epsilon):
        raise Problem("budgets: 'none' does not go with a noise that is given")
    used = -math.expm1(merges.merges * math.log1p(-merges.rate)) if merges.rate < 1 else 1.0
    if merges.hidden and merges.merges and used <= terms.delta:
        raise Problem(
            f"privacy.delta: {terms.delta:g} is not below {used:.3g}, the chance that a silo comes at all: it"
            " would allow to publish every upload without noise; take a smaller delta"
        )


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


def _target(asked: Sequence[Merges], epsilon: float, delta: float) -> Target:
    """Give what the noise must pay for: what is seen of the silo that was to come most often."""
    events = max(asked, key=lambda own: own.came).strongest()
    return (
        Target(epsilon, delta, events[0].rate, events[0].count) if events else Target(epsilon, delta, 1.0, 0)
    )


def _silo(
    name: str,
    work: Work,
    counts: Counts,
    k: int,
    merges: Merges,
    terms: Terms,
    rounds: int,
) -> SiloPlan:
    events, delta = merges.strongest(), terms.delta
    spent = epsilon_of(events, delta)
    return SiloPlan(
        name, work, terms.epsilon if terms.noise is None else spent, delta,
        steps=sum(event.count for event in events),
        noise=merges.noise,
        epsilon=spent,
        bytes_up=counts.bytes_up[k],
        bytes_down=counts.bytes_down[k],
        rounds=rounds,
        merges=merges,
    )  # fmt: skip
