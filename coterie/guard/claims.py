"""The claims that a training makes on silos' data sets before it begins, and the secret coins of its cohorts.

If the server adds the noise and silos are drawn independently ('poisson'), epsilon relies on nobody but the
server knowing which silos take part. So a claim does not depend on the draw; the coins come from the system's
entropy, round by round, and are never stored. A round that is repeated after a crash is drawn again: it is
charged as a second sampled release, and two releases with the same coins would cost more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .._threads import in_threads
from ..planning.accounting import accounting_of
from ..planning.plan import Plan
from ..privacy.ledger.claim import Claim
from ..protocol.streams import Streams, threshold
from .secret_streams import COINS, EntropyStreams


def claims_of(label: str, plan: Plan, k: int) -> list[Claim]:
    """Return the claim that each run of a training makes on silo k's data set."""
    accounting = accounting_of(plan)
    return [accounting.claim(label, plan, run, k) for run in range(len(plan.silos))]


def certify(claims: Iterable[Claim]) -> None:
    """Compute the epsilon of each distinct claim once, before several ledgers ask for it at the same time."""

    def certify_one(claim: Claim) -> None:
        for unit in claim.units:
            claim.certified(0, claim.rounds, unit=unit)

    in_threads(certify_one, {(claim.stages, claim.delta): claim for claim in claims}.values())


def secret_draw(plan: Plan, streams: EntropyStreams) -> Callable[[int], Tensor] | None:
    """Return a function that draws with secret coins who takes part in a round, `[runs, silos]`.

    Return None if the draw is public.
    """
    merges, runs, silos = plan.silos[0][0].merges, len(plan.silos), len(plan.silos[0])
    if merges is None or not merges.hidden:
        return None
    rate = merges.rate

    def draw(number: int) -> Tensor:
        return torch.stack(
            [torch.from_numpy(streams.coins(run, number, silos) < threshold(rate)) for run in range(runs)]
        )

    return draw


def is_drawn(plan: Plan, streams: Streams, number: int) -> bool:
    """Return whether a silo takes part in a round, by a secret coin of its own if the draw is secret."""
    merges = plan.silos[0][0].merges
    if merges is None or not merges.hidden:
        return True
    return bool(streams.merging(0, COINS, number).random(1)[0] < threshold(merges.rate))
