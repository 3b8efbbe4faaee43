"""Whether silos' ledgers cover a training, from reading them alone: nothing is claimed, written or signed.

The decision is that of a claim: the same rows are added to a copy of the ledger's state, which is then
dropped. It holds until somebody changes a ledger, so a training asks again when it begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data.federation import Federation
from ..errors import Problem
from ..privacy.ledger.claim import Claim
from ..privacy.ledger.custody import missing, refusal
from ..privacy.ledger.data_sets import holds_ledgers
from ..privacy.ledger.entries import Changes, LedgerState
from ..privacy.ledger.grants import grant_all
from ..privacy.ledger.identity import Identity
from ..privacy.ledger.ledger import read_ledger
from ..privacy.ledger.witness import Witness
from .claims import certify
from .ledgers import find_ledgers

Pair = tuple[float, float]
RAISE = (
    "use fewer rounds or a smaller epsilon, or raise the budgets (`coterie ledger budget`, or set_budget in"
    " Python)"
)


@dataclass(frozen=True)
class Coverage:
    """What a silo's ledger has left for a training, each as (epsilon, delta) in its unit.

    `spent` is what the best informed of those who would see the training know already. `asked` is what all
    its runs charge if their epsilons add up. The ledger pays for `covers` of `rounds` rounds; `why` says why
    it does not pay for all. `is_new` says that the run would make the ledger.
    """

    silo: str
    unit: str
    budget: Pair | None
    spent: Pair
    asked: Pair
    covers: int
    rounds: int
    why: str | None = None
    is_new: bool = False

    @property
    def left(self) -> Pair:
        """What is left of the budget."""
        return (0.0, 0.0) if self.budget is None else _left(self.budget, self.spent)

    @property
    def is_covered(self) -> bool:
        """Whether the ledger pays for all rounds."""
        return self.covers == self.rounds and self.why is None

    def facts(self) -> dict[str, Any]:
        """Return the same as plain data."""
        pairs = {"budget": self.budget, "spent": self.spent, "left": self.left, "asked": self.asked}
        named = {
            key: pair and dict(zip(("epsilon", "delta"), pair, strict=True)) for key, pair in pairs.items()
        }
        rest = {"covers": self.covers, "rounds": self.rounds, "covered": self.is_covered}
        return {"silo": self.silo, "unit": self.unit, **named, **rest, "why": self.why, "new": self.is_new}


def find_coverage(
    folder: Path,
    federation: Federation,
    asked: Sequence[Sequence[Claim]],
    budgets: Sequence[Pair | None],
    witness: Witness,
    partial: bool,
) -> tuple[Coverage, ...]:
    """Return what each silo's ledger in a folder has left for the runs `asked[k]`.

    In a folder without ledgers, `budgets` are those of the ledgers that the run would make. With `partial`, a
    ledger may cover some of the rounds.
    """
    certify(claim for claims in asked for claim in claims)
    found, makes = find_ledgers(folder, federation), not holds_ledgers(folder)
    return tuple(
        _of_silo(folder, known, own, claims, budget if makes else None, witness, partial)
        for known, own, claims, budget in zip(found, federation.identities, asked, budgets, strict=True)
    )


def _of_silo(
    folder: Path,
    known: Identity | None,
    own: Identity,
    claims: Sequence[Claim],
    budget: Pair | None,
    witness: Witness,
    partial: bool,
) -> Coverage:
    first = claims[0]
    needs = math.fsum(claim.epsilon for claim in claims), math.fsum(claim.delta for claim in claims)
    nothing = Coverage(own.silo, first.unit, None, (0.0, 0.0), needs, 0, first.rounds)
    path = folder / f"{(known or own).fingerprint}.sqlite"
    try:
        if not path.exists():
            if (seen := witness.latest(own.fingerprint)) is not None:
                raise missing(path, own, seen, witness)
            if budget is None:
                raise Problem(f"there is no ledger in '{folder}': make it with `coterie ledger open`")
            return replace(nothing, budget=budget, covers=first.rounds, is_new=True)
        ledger = read_ledger(path, only_read=True)
        try:
            if (why := ledger.why_refused(witness.latest(ledger.identity.fingerprint))) is not None:
                raise refusal(path, witness, why)
            return _of_state(
                replace(nothing, silo=own.silo), ledger.entries()[-1], ledger.state(), claims, partial
            )
        finally:
            ledger.close()
    except Problem as problem:
        return replace(nothing, why=str(problem))


def _of_state(
    nothing: Coverage, last: Any, state: LedgerState, claims: Sequence[Claim], partial: bool
) -> Coverage:
    """Return what a ledger in this state covers."""
    unit = nothing.unit
    seen = dict.fromkeys(name for claim in claims for name in claim.seen)
    spent = [(0.0, 0.0), *(state.spent(unit, name) for name in seen)]
    known = replace(nothing, budget=state.budgets.get(unit), spent=max(spent))
    try:
        granted = grant_all(Changes(last, state), claims, partial)
    except Problem as problem:
        return replace(known, why=str(problem))
    covers = min(claim.rounds for claim in granted)
    why = None if covers == known.rounds else f"its budget covers {covers} of {known.rounds} rounds"
    return replace(known, covers=covers, why=why)


def _left(budget: Pair, spent: Pair) -> Pair:
    return max(0.0, budget[0] - spent[0]), max(0.0, budget[1] - spent[1])


def refusal_of(coverage: Sequence[Coverage], alone: bool) -> str | None:
    """Return why a training would not begin, with every silo whose ledger is short; None if it would.

    A single run begins if some silo's ledger pays for all rounds and every ledger can be charged.
    """
    short = [each for each in coverage if not each.is_covered]
    begins = alone and len(short) < len(coverage) and all(each.covers for each in short)
    if not short or begins:
        return None
    lines = "".join(f"\n  '{each.silo}': {each.why}" for each in short)
    return (
        f"the ledgers of {len(short)} of {len(coverage)} silos do not cover this training ({RAISE}):{lines}"
    )


def early_leavers(coverage: Sequence[Coverage]) -> str | None:
    """Return which silos would leave a training early; None if there are none."""
    short = [
        f"'{each.silo}' ({each.covers} of {each.rounds} rounds)" for each in coverage if not each.is_covered
    ]
    return (
        f"these silos would leave early, as their budgets are used up: {', '.join(short)}" if short else None
    )
