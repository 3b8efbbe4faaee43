"""What a training claims of silos' data sets before it begins, and the secret coins of its cohorts.

Where the server adds the noise and silos are drawn one by one ('poisson'), epsilon rests on nobody but the
server knowing which silos came. So a claim does not depend on the draw, and the coins come from the system's
entropy, round by round, and are kept nowhere. A round that is repeated after a crash is drawn anew: two
answers with the same coins would cost more than two that are sampled, which is what is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .._threads import in_threads
from ..planning.accounting import accounting_of
from ..planning.plan import Plan
from ..privacy.ledger.claim import Claim
from .secret_streams import EntropyStreams


def claims_of(label: str, plan: Plan, k: int) -> list[Claim]:
    """Return the claim that each run of a training makes on silo k's data set."""
    accounting = accounting_of(plan)
    return [accounting.claim(label, plan, run, k) for run in range(len(plan.silos))]


def certify(claims: Iterable[Claim]) -> None:
    """Find the epsilons of all different claims, before several ledgers ask for the same at a time."""

    def certify_one(claim: Claim) -> None:
        for unit in claim.units:
            claim.certified(0, claim.rounds, unit=unit)

    in_threads(certify_one, {(claim.stages, claim.delta): claim for claim in claims}.values())


def secret_draw(plan: Plan, streams: EntropyStreams) -> Callable[[int], Tensor] | None:
    """Return a function that draws who comes to a round, `[runs, silos]`, by secret coins.

    None where the draw is public.
    """
    merges, runs, silos = plan.silos[0][0].merges, len(plan.silos), len(plan.silos[0])
    if merges is None or not merges.hidden:
        return None
    rate = merges.rate

    def draw(number: int) -> Tensor:
        return torch.stack(
            [torch.from_numpy(streams.coins(run, number, silos) < rate) for run in range(runs)]
        )

    return draw
