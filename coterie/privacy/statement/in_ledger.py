"""Compare a statement with the ledger that it names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._json import finite
from ...errors import Problem
from ..accountant import MACHINE_TOLERANCE
from ..adversaries import ADVERSARIES
from ..events import Event, grouped
from ..ledger.entries import LedgerEntry, LedgerState, runs_of
from ..ledger.filters import charge
from ..ledger.heads import SignedHead
from ..ledger.identity import Identity
from ..ledger.ledger import read_ledger
from ..ledger.names import silo_key
from ..ledger.verify import Report, check_ledger
from ..ledger.witness import Witness
from ..merges import MergeEvents
from ..trials import Trials
from .run_facts import check_facts


def find_in_ledger(
    content: dict[str, Any], folder: Path, witness: Witness | None = None
) -> tuple[Report, str | None]:
    """Raise `Problem` unless a statement matches its run in the ledger; its totals are those of its head.

    The ledger must agree with its witness: that of the user, if none is given. Return what was found of the
    ledger, such as whether a witness knows it, and what its row does not say about the run, if anything.
    """
    named, said = content["ledger"], content["guarantee"]
    if named is None:
        raise Problem("statement: it names no ledger, because the run was not metered")
    if named["file"] != Path(named["file"]).name:
        raise Problem(f"statement: ledger.file: expected the name of a file, got '{named['file']}'")
    path = folder if folder.is_file() else folder / named["file"]
    report = check_ledger(path, witness, independently=True)
    ledger = read_ledger(path, only_read=True)
    entries, heads = ledger.entries(), {head.hash: head for head in ledger.heads()}
    ledger.close()
    hashes = [entry.hash for entry in entries]
    if named["head"] not in hashes:
        raise Problem(
            f"statement: ledger '{path}' does not contain its head {named['head'][:12]}; rows were lost, or"
            " this is another ledger"
        )
    state = LedgerState.of(entries[: hashes.index(named["head"]) + 1])
    _check_head(content, state, heads.get(named["head"]))
    run, now = named["run"], LedgerState.of(entries)
    if run not in state.runs or silo_key(report.identity.silo) != silo_key(content["silo"]):
        raise Problem(f"statement: ledger '{path}' does not contain its run {run}")
    _check_data(content, report.identity)
    claim = state.claim_of(run)
    spans = now.reserved(run)  # an older head would hide the rounds that followed
    released = grouped(event for span in spans for event in claim.events(*span))
    if grouped(Event(**event) for event in content["events"]) != released:
        raise Problem(f"statement: events: do not match run {run} in its ledger")
    _check_merges(content, sum(last - first for first, last in spans))
    words = tuple(f"{content['method']}{sign}" for sign in (" ", ","))
    if content["method"] != claim.label and not claim.label.startswith(words):
        raise Problem(f"statement: method: run {run} in its ledger trained '{claim.label}'")
    if named["rounds"] != int(state.runs[run]["allowed"]):
        raise Problem("statement: ledger.rounds: does not match its ledger")
    if said["epsilon"] is None:
        raise Problem("statement: guarantee: a metered run states its epsilon, and this one does not")
    epsilon, delta = charge(now, run)
    if not (
        said["epsilon"] >= epsilon * (1 - MACHINE_TOLERANCE)
        and said["delta"] >= delta * (1 - MACHINE_TOLERANCE)
    ):
        raise Problem(f"statement: guarantee: the ledger charged ({epsilon:.6g}, {delta:.3g}) for this run")
    tuned = isinstance(content["tuning"], dict)  # the budget is then that of one trial
    if not tuned and said["budget"] < min(claim.epsilon, epsilon) * (1 - MACHINE_TOLERANCE):
        raise Problem(f"statement: guarantee.budget: the ledger charged {epsilon:.6g} for this run")
    budget = tuple(named["budget"].values())
    if said["unit"] != claim.unit or budget != state.budgets[claim.unit]:
        raise Problem("statement: guarantee.unit or ledger.budget: does not match its ledger")
    raised = state.raised.get(claim.unit, 0)
    if (named.get("raised") or 0) != raised:
        raise Problem(f"statement: ledger.raised: the budget in its ledger had been raised {raised} times")
    examples = _totals(state, "example") if claim.unit != "example" else None
    alike = _alike(named["total"], _totals(state, claim.unit)) and _alike(named.get("as_example"), examples)
    if not alike:
        raise Problem("statement: ledger.total or ledger.as_example: does not match its ledger")
    for name in claim.seen:
        if content["adversaries"][name]["epsilon"] == 0:
            raise Problem(
                f"statement: adversaries.{name}: states 0, but by the ledger this adversary saw the run"
            )
    for name in claim.unprotected:
        if content["adversaries"][name]["epsilon"] is not None:
            raise Problem(
                f"statement: adversaries.{name}: by the ledger, nothing protected against this adversary"
            )
    _find_chosen(content, state)
    return report, check_facts(content, claim, _chosen_trial(content, entries, now))


def _check_head(content: dict[str, Any], state: LedgerState, head: SignedHead | None) -> None:
    """Raise `Problem` unless the head that a statement names was signed, with the key that signed it too."""
    named = content["ledger"]
    if head is None or (head.ledger, head.number) != (named["id"], named["sequence"]):
        raise Problem("statement: ledger.id or ledger.sequence: does not match its ledger")
    if head.public != content["issuer"]["public"]:
        raise Problem(f"statement: issuer: its ledger was signed with key {head.key} then")
    if state.recoveries != named["recovered"]:
        raise Problem(f"statement: ledger.recovered: its ledger was recovered {state.recoveries} times")


def _check_data(content: dict[str, Any], who: Identity) -> None:
    """Raise `Problem` unless a statement is about the data set of its ledger."""
    data = content["data"]
    if data["rows"] != who.size or content["declared_size"] > who.size:
        raise Problem(f"statement: data.rows or declared_size: its ledger is that of {who.size:,} examples")
    if (data["source"], data["fingerprint"]) != (who.source, who.fingerprint):
        raise Problem(f"statement: data.source or data.fingerprint: its ledger is that of {who.source}")


def _alike(one: Any, other: Any) -> bool:
    """Return whether totals are equal, up to the order in which they were added up."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return one is other is None or (
        one is not None and other is not None and math.isclose(one, other, rel_tol=MACHINE_TOLERANCE)
    )


def _totals(state: LedgerState, unit: str) -> Any:
    """Return what all runs spent in a unit, in the form of a statement."""
    both = ("epsilon", "delta")
    return finite({name: dict(zip(both, state.total(unit, name), strict=True)) for name in ADVERSARIES})


def _check_merges(content: dict[str, Any], rounds: int) -> None:
    """Raise `Problem` if a statement counts merges that these rounds cannot have had."""
    if content["merges"] is None:
        return
    merges = MergeEvents(**content["merges"])
    if merges.merges > rounds:
        raise Problem(f"statement: merges.merges: its ledger reserved {rounds} rounds for this run")
    if merges.hidden and merges.came != merges.merges:  # who came is secret, so every merge is charged
        raise Problem("statement: merges.came: its ledger charged every merge, since who came is secret")


def _chosen_trial(content: dict[str, Any], entries: Sequence[LedgerEntry], state: LedgerState) -> int | None:
    """Return which trial of a sweep was chosen, as the row that ended the sweep says; None without one."""
    row = content["ledger"]["chosen"]
    mine = {seq for seq, body in state.reservations.items() if row is not None and row in runs_of(body)}
    ends = [entry.body for entry in entries if entry.kind == "commit" and entry.body["reservation"] in mine]
    digest = str(ends[0].get("digest")) if ends else ""
    return int(digest) if digest.isdecimal() else None


def _find_chosen(content: dict[str, Any], state: LedgerState) -> None:
    """Raise `Problem` unless a statement's sweep matches the row that paid for the chosen trial."""
    tuning, row = content["tuning"], content["ledger"]["chosen"]
    if not isinstance(tuning, dict):
        if row is not None:
            raise Problem("statement: ledger.chosen: nothing was chosen, because nothing was tuned")
        return
    claim = state.claim_of(row) if row in state.runs else None
    how = Trials(tuning["distribution"], tuning["mean"], tuning["shape"], tuning["most"])
    one = grouped(Event(**event) for event in tuning["trial"])
    if claim is None or claim.trials != how or grouped(claim.events(0, claim.rounds)) != one:
        raise Problem("statement: tuning: does not match what its ledger charged")
    if tuning["epsilon"] < claim.epsilon * (1 - MACHINE_TOLERANCE) or tuning["delta"] != claim.delta:
        raise Problem(
            f"statement: tuning.epsilon or tuning.delta: the ledger charged {claim.epsilon:.6g} at delta"
            f" {claim.delta:g}"
        )
