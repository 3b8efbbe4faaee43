"""Whether a run or a block of its rounds fits, and the row that charges it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import Problem
from ..accountant import MACHINE_TOLERANCE
from .claim import Claim
from .entries import Changes, LedgerEntry
from .filters import Spent


@dataclass(frozen=True)
class GrantedClaim:
    """A run in a ledger: its row, that row's hash, and the number of rounds it may train."""

    run: int
    hash: str
    rounds: int


def grant(rows: Changes, claim: Claim, partial: bool) -> GrantedClaim:
    """Add the row of a run, charged as planned; raise `Spent` if it does not fit."""
    state, whole = rows.state, claim.certified(0, claim.rounds)
    if claim.epsilon < whole * (1 - MACHINE_TOLERANCE):
        raise Problem(f"the plan states epsilon {claim.epsilon:.6g}, but its events give {whole:.6g}")
    rounds = state.filter.affordable(state, claim, partial)
    if rounds < 1:
        raise Spent(state.refusal(claim))
    epsilon = max(claim.epsilon, whole) if rounds == claim.rounds else claim.certified(0, rounds)
    other = claim.certified(0, rounds, unit="example") if claim.unit != "example" else math.inf
    made = replace(claim, epsilon=epsilon, as_example=other if math.isfinite(other) else None)
    entry = rows.add("run", {**made.to_json(), "allowed": rounds}, made)
    return GrantedClaim(entry.seq, entry.hash, rounds)


def grant_all(rows: Changes, claims: Sequence[Claim], partial: bool) -> list[GrantedClaim]:
    """Add the rows of all these runs; raise `Spent` unless they fit together."""
    granted = [grant(rows, claim, partial) for claim in claims]
    if not partial:
        rows.state.filter.check_granted(rows.state, claims)
    return granted


def reserve(rows: Changes, runs: Sequence[int], first: int, last: int) -> LedgerEntry:
    """Add the row of a reservation; raise `Spent` unless the runs may train these rounds."""
    state = rows.state
    if not runs or len(set(runs)) != len(runs):
        raise Problem(f"cannot reserve rounds {first} to {last}: expected one or more different runs")
    for run in runs:
        state.check_not_released(run)
        state.claim_of(run)  # raises if there is no such run
        allowed = state.runs[run]["allowed"]
        state.check_not_before(run)
        if not 0 <= first < last <= allowed:
            raise Spent(f"run {run} may train {allowed} rounds, so rounds {first} to {last} are refused")
    state.filter.check_reserve(state, runs, first, last)
    return rows.add("reserve", {"runs": list(runs), "first": first, "last": last})
