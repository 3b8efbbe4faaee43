"""Recompute what a ledger charges with dp-accounting (see `coterie.privacy.recheck`)."""

from __future__ import annotations

import math

from ...errors import Problem
from ..accountant import ADJACENCY
from ..events import grouped
from ..recheck import recheck, recheck_mu
from .claim import OTHER, Claim
from .entries import LedgerState
from .filters import Gaussian, gaussian_cost, repeated


def recheck_run(state: LedgerState, run: int) -> list[str]:
    """Return the verdicts on the epsilon of a run, or of the last rounds that it repeats, in each unit.

    Raise `Problem` if one is refuted. The best of several trials is "undecided": dp-accounting has no
    comparable bound for it.
    """
    claim, allowed = state.claim_of(run), int(state.runs[run]["allowed"])
    spans = state.reserved(run)
    parts = repeated(spans)[len(repeated(spans[:-1])) :] if spans else [(0, allowed)]
    verdicts = []
    for first, last in parts:
        for unit in claim.units:
            stated = claim.certified(first, last, anew=True, unit=unit) if spans else claim.stated(unit)
            verdicts.append(_verdict(claim, first, last, unit, stated))
            if isinstance(state.filter, Gaussian) and unit in state.budgets:
                verdicts.append(_gaussian_verdict(claim, first, last, unit))
    return verdicts


def _gaussian_verdict(claim: Claim, first: int, last: int, unit: str) -> str:
    """Check the mu of rounds with dp-accounting."""
    square, told = gaussian_cost(claim, first, last, unit)
    if claim.trials is not None or math.isinf(square):
        return "undecided"
    adjacency = ADJACENCY if unit == claim.unit else OTHER
    confirmed = recheck_mu(grouped(claim.events(first, last)), told, math.sqrt(square), adjacency)
    if confirmed is False:
        mu = f"{math.sqrt(square):.6g}"
        raise Problem(f"it charges mu {mu} for rounds {first} to {last}, but dp-accounting finds more")
    return "undecided" if confirmed is None else "confirmed"


def _verdict(claim: Claim, first: int, last: int, unit: str, stated: float) -> str:
    if claim.trials is not None:
        return "undecided"
    adjacency = ADJACENCY if unit == claim.unit else OTHER
    found = recheck(grouped(claim.events(first, last)), claim.delta, stated, adjacency)
    if found.verdict == "refuted":
        where = "" if unit == claim.unit else f" in the unit '{unit}'"
        raise Problem(
            f"it charges epsilon {stated:.6g}{where} for rounds {first} to {last}, but dp-accounting gives"
            f" {found.epsilon:.6g}"
        )
    return found.verdict
