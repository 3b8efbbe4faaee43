"""Recompute what a ledger charges with dp-accounting (see `coterie.privacy.recheck`)."""

from __future__ import annotations

from ...errors import Problem
from ..accountant import ADJACENCY
from ..events import grouped
from ..recheck import recheck
from .claim import OTHER, Claim
from .entries import LedgerState
from .filters import repeated


def recheck_run(state: LedgerState, run: int) -> list[str]:
    """Return the verdicts on the epsilon of a run, or of the last rounds that it repeats, in each unit.

    Raise `Problem` if one is refuted. The best of several trials is "undecided": dp-accounting has no
    comparable bound for it.
    """
    claim, allowed = state.claim_of(run), int(state.runs[run]["allowed"])
    spans = state.reserved(run)
    if not spans:
        return [_verdict(claim, 0, allowed, unit, claim.stated(unit)) for unit in claim.units]
    new = repeated(spans)[len(repeated(spans[:-1])) :]
    return [
        _verdict(claim, first, last, unit, claim.certified(first, last, anew=True, unit=unit))
        for first, last in new
        for unit in claim.units
    ]


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
