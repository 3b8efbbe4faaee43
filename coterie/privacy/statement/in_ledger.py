"""Comparing a statement with the ledger that it names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..._json import finite
from ...errors import Problem
from ..accountant import MACHINE_TOLERANCE
from ..adversaries import ADVERSARIES
from ..events import Event, grouped
from ..ledger.entries import LedgerState
from ..ledger.filters import charge
from ..ledger.ledger import read_ledger
from ..ledger.verify import check_ledger
from ..trials import Trials


def find_in_ledger(content: dict[str, Any], folder: Path) -> None:
    """Compare a statement with its run, as its ledger stood at the head that it names."""
    named, said = content["ledger"], content["guarantee"]
    if named is None:
        raise Problem("statement: it names no ledger: the run was not metered")
    path = folder if folder.is_file() else folder / Path(named["file"]).name
    report = check_ledger(path)
    ledger = read_ledger(path)
    entries = ledger.entries()
    ledger.close()
    hashes = [entry.hash for entry in entries]
    if named["head"] not in hashes:
        raise Problem(
            f"statement: ledger '{path}' does not have its head {named['head'][:12]}: rows were lost, or this"
            " is another one's ledger"
        )
    state = LedgerState.of(entries[: hashes.index(named["head"]) + 1])
    run, now = named["run"], LedgerState.of(entries)
    if run not in state.runs or report.identity.silo != content["silo"]:
        raise Problem(f"statement: ledger '{path}' does not have its run {run}")
    claim = state.claim_of(run)
    released = grouped(event for span in state.reserved(run) for event in claim.events(*span))
    if grouped(Event(**event) for event in content["events"]) != released:
        raise Problem(f"statement: events: not those of run {run} in its ledger")
    if not claim.label.startswith(content["method"]):
        raise Problem(f"statement: method: run {run} of its ledger is of '{claim.label}'")
    epsilon, delta = charge(now, run)
    if not (
        said["epsilon"] >= epsilon * (1 - MACHINE_TOLERANCE)
        and said["delta"] >= delta * (1 - MACHINE_TOLERANCE)
    ):
        raise Problem(f"statement: guarantee: the ledger charged ({epsilon:.6g}, {delta:.3g}) for this run")
    if said["unit"] != claim.unit or said["budget"] != state.budgets[claim.unit][0]:
        raise Problem("statement: guarantee.unit or guarantee.budget: not what its ledger says")
    examples = _totals(state, "example") if claim.unit == "silo" else None
    alike = _alike(named["total"], _totals(state, claim.unit)) and _alike(named.get("as_example"), examples)
    if not alike:
        raise Problem("statement: ledger.total or ledger.as_example: not what its ledger says")
    for name in claim.seen:
        if content["adversaries"][name]["epsilon"] == 0:
            raise Problem(f"statement: adversaries.{name}: 0 is stated, the ledger says that it saw the run")
    for name in claim.unprotected:
        if content["adversaries"][name]["epsilon"] is not None:
            raise Problem(f"statement: adversaries.{name}: the ledger says that nothing protected against it")
    _find_chosen(content, state)


def _alike(one: Any, other: Any) -> bool:
    """Compare totals, which may have been added up in another order."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return one is other is None or (
        one is not None and other is not None and math.isclose(one, other, rel_tol=MACHINE_TOLERANCE)
    )


def _totals(state: LedgerState, unit: str) -> Any:
    """Give what all runs spent in a unit, as statements tell it."""
    both = ("epsilon", "delta")
    return finite({name: dict(zip(both, state.total(unit, name), strict=True)) for name in ADVERSARIES})


def _find_chosen(content: dict[str, Any], state: LedgerState) -> None:
    """Compare what a statement says of a sweep with the row that was charged for the chosen trial."""
    tuning, row = content["tuning"], content["ledger"]["chosen"]
    if not isinstance(tuning, dict):
        return
    claim = state.claim_of(row) if row in state.runs else None
    how = Trials(tuning["distribution"], tuning["mean"], tuning["shape"], tuning["most"])
    one = grouped(Event(**event) for event in tuning["trial"])
    if claim is None or claim.trials != how or grouped(claim.events(0, claim.rounds)) != one:
        raise Problem("statement: tuning: not what its ledger was charged for")
    if tuning["epsilon"] < claim.epsilon * (1 - MACHINE_TOLERANCE) or tuning["delta"] != claim.delta:
        raise Problem(f"statement: tuning.epsilon is below the {claim.epsilon:.6g} that the ledger charged")
