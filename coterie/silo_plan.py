"""Planning under the unit 'silo': one noise on the merge makes every silo end at the same budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .cohort.sampling import Work
from .dry_run import Counts, Facts, dry_run, one_pass
from .errors import Refused
from .merging import SUMS_AT_HOME, Merge
from .method import Method
from .participation import Participation
from .plan import Plan, SiloPlan
from .privacy.accountant import epsilon_of
from .privacy.calibration import Target, calibrate
from .privacy.whole_silo import Merges
from .roster import Roster


def make_silo_plan(
    method: Method,
    roster: Roster,
    work: Sequence[Work],
    layers: tuple[int, ...],
    rounds: int,
    terms: Sequence[tuple[float, float, float]],
    how: Participation | None,
    present: Tensor | None,
    where: str = "server",
    on_progress: Callable[[int, int], None] | None = None,
    names: tuple[str, ...] = (),
) -> Plan:
    """Count what a method asks for, and find the noise of its merges; `terms` are (epsilon, delta, clip).

    The budget holds against the best informed against whom there is any protection: all other silos
    together where the server adds the noise, the server where silos do.
    """
    facts, first = Facts(roster, rounds, layers, names), None if present is None else present[:, 0]
    counts = [dry_run(method, roster, layers, rounds, "silo", first, names)]
    if where == "silos" and counts[0].mixed:
        raise Refused(SUMS_AT_HOME)
    if present is not None:
        counts += [one_pass(method, facts, present[:, run], run, "silo") for run in range(1, len(terms))]
    rate, sampler = draw_of(how, len(roster))
    asked = [
        [
            Merges(1.0, clip, len(roster), rate, sampler, sum(own.merged), came, where, own.raw_personal)
            for came in _came(own, present, run, len(roster))
        ]
        for run, (_, _, clip) in enumerate(terms)
        for own in (counts[run % len(counts)],)
    ]
    targets = [_target(own, epsilon, delta) for own, (epsilon, delta, _) in zip(asked, terms, strict=True)]
    found = calibrate((target for target in targets if target.steps), on_progress)
    noise = [found[target].noise if target.steps else 0.0 for target in targets]
    silos = tuple(
        tuple(
            _silo(roster.names[k], work[k], counts[run % len(counts)], k, replace(own, noise=noise[run]),
                  terms[run], _rounds(present, run, k, rounds))
            for k, own in enumerate(row)
        )
        for run, row in enumerate(asked)
    )  # fmt: skip
    clips = torch.tensor([math.inf if math.isinf(e) else clip for e, _, clip in terms], dtype=torch.float64)
    merge = Merge(torch.tensor(noise, dtype=torch.float64), clips, asked[0][0].cohort, where)
    return Plan(counts[0], silos, present, merge)


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
    """Give what the noise must pay for: what is seen of the silo that came most often."""
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
    terms: tuple[float, float, float],
    rounds: int,
) -> SiloPlan:
    events, (budget, delta, _) = merges.strongest(), terms
    return SiloPlan(
        name, work, budget, delta,
        steps=sum(event.count for event in events),
        noise=merges.noise,
        epsilon=epsilon_of(events, delta),
        bytes_up=counts.bytes_up[k],
        bytes_down=counts.bytes_down[k],
        rounds=rounds,
        merges=merges,
    )  # fmt: skip
