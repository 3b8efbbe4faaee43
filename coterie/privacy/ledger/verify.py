"""Check a ledger from its rows alone: the chain of hashes, every epsilon, and every budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import Problem
from ..accountant import MACHINE_TOLERANCE
from ..adversaries import ADVERSARIES
from ..units import UNITS
from .claim import Claim
from .entries import LedgerEntry, LedgerState, runs_of
from .filters import vetoing
from .heads import units_of
from .ledger import Identity, read_ledger
from .recheck import recheck_run
from .release import check_release, held, unfinished
from .verify_heads import KINDS, HeadsCheck, witnessed
from .witness import Witness, find_witness

WHOLE = {"order", "size", "rounds", "allowed", "first", "last", "count", "run", "reservation"}
NUMBERS = WHOLE | {"epsilon", "delta", "noise", "rate", "as_example", "time", "mean", "shape", "most"}
UNKNOWN = {"as_example", "shape", "most"}  # may be null

RunFacts = tuple[int, str, int, int]  # a run's row, its label, and two numbers of rounds


@dataclass(frozen=True)
class Report:
    """The contents of a ledger that passed all checks.

    `witnessed` is how many changes its witness has seen; None if no witness knows it, so that an old copy
    would not be noticed. `sequence` counts all changes of the data set's ledgers, and `keys` the keys that
    are known to have signed them, of which `key` is the last. `carried` says that a recovery charged what the
    witness knew of lost rows.
    `held` has the unfinished runs that may be released: the row of each, its label, and the rounds it holds.
    `unfinished` has all unfinished runs: the row, the label, up to which round it reserved, and of how many.
    """

    path: Path
    identity: Identity
    rows: int
    head: str
    filter: str
    budgets: dict[str, tuple[float, float]]
    totals: dict[str, dict[str, tuple[float, float]]]
    runs: int
    uncommitted: int
    sequence: int = 0
    key: str = ""
    witnessed: int | None = None
    notes: tuple[str, ...] = ()
    rechecked: Mapping[str, int] = field(default_factory=dict)
    held: tuple[RunFacts, ...] = ()
    keys: int = 1
    carried: bool = False
    unfinished: tuple[RunFacts, ...] = ()


def check_ledger(path: Path, witness: Witness | None = None, independently: bool = False) -> Report:
    """Recompute a ledger and replay its rules; raise `Problem`, naming the row, if anything differs.

    Every signature is checked, and that the witness (by default the user's) has seen no later or other head.
    If `independently`, dp-accounting recomputes every epsilon (see `recheck`); our own accountant decides
    only where dp-accounting cannot. `rechecked` counts the epsilons of each verdict.
    """
    ledger = read_ledger(path, only_read=True)
    try:
        entries, heads = ledger.entries(), HeadsCheck.of(ledger)
        named = len(path.stem) == 24 and path.stem != ledger.identity.fingerprint
        if named and path.suffix == ".sqlite":
            raise Problem(
                f"ledger '{path}' has another ledger's name: it belongs to '{ledger.identity.silo}'"
            )
        state, verdicts = LedgerState(), Counter[str]()
        for entry in entries:
            try:
                _check_row(state, entry)
                heads.before(state, entry)
                state.add(entry)
                heads.after(state, entry)
                if independently:
                    for run in _charged(entry):
                        verdicts.update(recheck_run(state, run))
                for run in _charged(entry):
                    _check_budget(state, state.claim_of(run))
            except (Problem, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise Problem(f"ledger '{path}': row {entry.seq}: {error}") from error
        try:
            heads.finish(state, ledger.signed_head)
        except Problem as problem:
            raise Problem(f"ledger '{path}': row {entries[-1].seq}: {problem}") from problem
        seen = witnessed(ledger, witness or find_witness())
        totals = {unit: {name: state.total(unit, name) for name in ADVERSARIES} for unit in units_of(state)}
        uncommitted = len(state.reservations.keys() - state.committed)
        return Report(
            path, ledger.identity, len(entries), entries[-1].hash, entries[0].body["filter"],
            state.budgets, totals, len(state.runs), uncommitted, heads.number, state.key["id"], seen,
            tuple(heads.notes), dict(verdicts),
            _labelled(state, held(state)),
            len(heads.keys), any(max(amount) > 0 for amount in state.carried.values()),
            _labelled(state, unfinished(state)),
        )  # fmt: skip
    finally:
        ledger.close()


def _labelled(state: LedgerState, runs: Mapping[int, tuple[int, int]]) -> tuple[RunFacts, ...]:
    """Return runs with their labels, each before its two numbers."""
    return tuple((run, state.claim_of(run).label, *span) for run, span in runs.items())


def _charged(entry: LedgerEntry) -> list[int]:
    """Return the runs that a row charges."""
    return runs_of(entry.body) if entry.kind == "reserve" else [entry.seq] if entry.kind == "run" else []


def _check_row(state: LedgerState, entry: LedgerEntry) -> None:
    """Raise `Problem` unless the row could have been written at this place."""
    body = entry.body
    _check_numbers(body)
    if (entry.kind == "open") != (entry.seq == 1):
        raise Problem("the first row, and no other, must open the ledger")
    if entry.kind == "budget":
        _check_new_budget(state, body)
    elif entry.kind == "run":
        _check_run(state, Claim.from_json(body), int(body["allowed"]))
    elif entry.kind == "reserve":
        if not runs_of(body) or len(set(runs_of(body))) != len(runs_of(body)):
            raise Problem("a reservation must name one or more different runs")
        if not all(type(value) is int for value in (*runs_of(body), body["first"], body["last"])):
            raise Problem("runs and rounds must be whole numbers")
        for run in runs_of(body):
            state.check_not_released(run)
            state.check_not_before(run)
        for allowed in [int(state.runs[run]["allowed"]) for run in runs_of(body)]:
            if not 0 <= body["first"] < body["last"] <= allowed:
                raise Problem(
                    f"it reserves rounds {body['first']} to {body['last']}, but only {allowed} are allowed"
                )
    elif entry.kind == "commit":
        if body["reservation"] not in state.reservations:
            raise Problem(f"it commits row {body['reservation']}, which is not a reservation")
        if "last" in body:
            state.check_shorter(body["reservation"], body["last"])
    elif entry.kind == "cancel":
        state.check_not_before(body["run"])
        if body["run"] not in state.runs or state.reserved(body["run"]):
            raise Problem(f"it cancels run {body['run']}, which does not exist or has released something")
        if state.claim_of(body["run"]).trials is not None:
            raise Problem(f"it cancels run {body['run']}, which decides how many trials a sweep has")
    elif entry.kind == "release":
        check_release(state, body["run"], body["reason"])
    elif entry.kind not in ("open", *KINDS):
        raise Problem(f"unknown kind of row '{entry.kind}'")


def _check_numbers(content: Any) -> None:
    """Raise `Problem` if a number is stored as text, as a truth value, or as a fraction of a whole number."""
    for key, value in content.items() if isinstance(content, dict) else ():
        kinds = (int,) if key in WHOLE else (int, float)
        known = type(value) in kinds or (key in UNKNOWN and value is None)
        if key in NUMBERS and not known:
            raise Problem(f"{key}: expected a {'whole ' * (key in WHOLE)}number, got {value!r}")
    for value in content.values() if isinstance(content, dict) else content:
        if isinstance(value, dict | list):
            _check_numbers(value)


def _check_new_budget(state: LedgerState, body: dict[str, Any]) -> None:
    epsilon, delta = float(body["epsilon"]), float(body["delta"])
    if body["unit"] not in UNITS:
        raise Problem(f"it sets a budget in the unit {body['unit']!r}, which does not exist")
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise Problem(f"({epsilon}, {delta}) is not a valid budget")
    now = state.budgets.get(body["unit"])
    raised = now is not None and (epsilon > now[0] or delta > now[1])
    said = isinstance(body["reason"], str) and body["reason"].strip()
    if raised and not (body["raised"] is True and said):
        raise Problem("it raises the budget without marking it as raised and giving a reason")
    if body["raised"] is not bool(raised):
        raise Problem("it is marked as raising the budget, which it does not")


def _check_run(state: LedgerState, claim: Claim, allowed: int) -> None:
    """Raise `Problem` unless a run's epsilon covers its events and its unit and adversaries are valid."""
    if claim.unit not in state.budgets or not {*claim.seen, *claim.unprotected} <= set(ADVERSARIES):
        raise Problem(f"a run in the unit '{claim.unit}', seen by {list(claim.seen)}, is not possible here")
    if claim.unit == "silo" and claim.seen and {*claim.seen, *claim.unprotected} != set(ADVERSARIES):
        raise Problem(
            f"a run in the unit 'silo' cannot be seen by {list(claim.seen)} only, since everybody sees merges"
        )
    if not all(isinstance(digest, str) and len(digest) == 64 for _, digest in claim.facts):
        raise Problem("its facts must be digests")
    if any(rounds < 1 for rounds, _ in claim.stages):
        raise Problem("every stage of a run must have at least one round")
    if not 1 <= allowed <= claim.rounds:
        raise Problem(f"it allows {allowed} of {claim.rounds} planned rounds")
    for unit in claim.units:
        said = claim.stated(unit)
        if not said >= claim.least(0, allowed, unit):
            true = claim.certified(0, allowed, anew=True, unit=unit)
            where = "" if unit == claim.unit else f" in the unit '{unit}'"
            raise Problem(f"it states epsilon {said:.6g}{where}, but its events give {true:.6g}")


def _check_budget(state: LedgerState, claim: Claim) -> None:
    """Raise `Problem` if a charge exceeds the budget of its time, against anyone who sees the run."""
    for unit in vetoing(state, claim):
        epsilon, delta = state.budgets[unit]
        for name in claim.seen:
            spent = state.spent(unit, name)
            if not (
                spent[0] <= epsilon * (1 + MACHINE_TOLERANCE) and spent[1] <= delta * (1 + MACHINE_TOLERANCE)
            ):
                raise Problem(
                    f"it exceeds the budget ({epsilon:g}, {delta:g}) against {name}:"
                    f" ({spent[0]:.6g}, {spent[1]:.3g}) is spent"
                )
