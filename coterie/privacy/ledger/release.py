"""Give back the rounds of a run that was abandoned: those that were never reserved, and so never released.

A claim is charged, or holds its rounds, before anything of the data is used; rounds are reserved before they
happen. What a claim never reserved was therefore never released, whoever gives it up and for whatever reason.
- A run that reserved nothing is given back in full, under every filter.
- A run that reserved some rounds gives back the others only where single rounds are charged: under the filter
  *rdp*, which holds for rounds that are chosen one by one. *basic* and *gdp* certify a run as a whole, and
  its results may be the reason to stop it, so it stays charged as planned.
- Reserved rounds stay charged, whether or not they happened.
- The chosen trial of a sweep stays charged: how many trials follow can be computed from its row, so one who
  gives it back could draw again until the number pleases.
- A run from before a recovery stays charged: what became of it is not known.
"""

from __future__ import annotations

from ...errors import Problem
from .book import Ledger
from .entries import LedgerState, runs_of
from .recovery import check_reason

Span = tuple[int, int]


def held(state: LedgerState) -> dict[int, Span]:
    """Return the rounds that each unfinished run holds and may give back, by the row of the run."""
    found = state.unreserved()
    return {run: span for run, span in found.items() if why_kept(state, run) is None}


def unfinished(state: LedgerState) -> dict[int, Span]:
    """Return up to which round each unfinished run has reserved, and how many it may train, by its row.

    A run has finished when it has reserved its last round and committed it.
    """
    newest = {run: seq for seq, row in state.reservations.items() for run in runs_of(row)}
    ends = {run: max((last for _, last in state.reserved(run)), default=0) for run in state.runs}
    return {
        run: (ends[run], int(body["allowed"]))
        for run, body in state.runs.items()
        if run > state.recovered
        and run not in state.released
        and (ends[run] < int(body["allowed"]) or newest.get(run) not in state.committed)
    }


def why_kept(state: LedgerState, run: int) -> str | None:
    """Return why a run can give back no rounds; None if it can."""
    if run in state.released:
        return f"was released before, at row {state.released[run]}"
    if run not in state.runs:
        return "is not in this ledger"
    if run < state.recovered:
        return "began before the ledger was recovered, so it stays charged"
    if state.claim_of(run).trials is not None:
        return "is the chosen trial of a sweep, which stays charged once its number of trials can be known"
    if run not in state.unreserved():
        return "holds no rounds: it reserved all that it may train, or was stopped and gave the others back"
    if state.reserved(run) and not state.filter.by_round:
        return (
            f"has reserved rounds, and the filter '{state.filter_name}' charges a run as planned once it has"
            " begun, so it stays charged"
        )
    return None


def check_release(state: LedgerState, run: int, reason: object) -> None:
    """Raise `Problem` unless a run may give back the rounds that it never reserved, and somebody says why."""
    check_reason(reason)
    why = why_kept(state, run)
    if why is not None:
        known = ", ".join(map(str, held(state))) or "none"
        raise Problem(f"run {run} {why} (runs that hold rounds: {known})")


def release(ledger: Ledger, run: int, reason: str) -> Span:
    """Give back the rounds that a run never reserved, and return them; the run cannot continue.

    A signed row keeps the reason.
    """
    with ledger.change() as rows:
        try:
            check_release(rows.state, run, reason)
        except Problem as problem:
            raise Problem(f"ledger '{ledger.path}': {problem}") from None
        span = rows.state.unreserved()[run]
        rows.add("release", {"run": run, "reason": reason})
    return span
