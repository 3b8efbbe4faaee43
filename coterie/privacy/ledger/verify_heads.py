"""Check who signed a ledger: every head, and the rows that say from when on and with which key."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ...errors import Problem
from ..accountant import MACHINE_TOLERANCE
from ..keys import PublicKey, stamp
from .custody import refusal
from .entries import LedgerEntry, LedgerState
from .heads import SignedHead, spent_in
from .ledger import SCHEMA, Ledger
from .recovery import check_reason, check_recovery, is_endorsed
from .witness import Witness

KINDS = ("adopt", "key", "recover")


@dataclass
class HeadsCheck:
    """Checks heads as the rows of a ledger are replayed, and remembers what a reader should know."""

    heads: dict[int, SignedHead]
    number: int = 0
    notes: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    _recovering: bool = False

    @classmethod
    def of(cls, ledger: Ledger) -> HeadsCheck:
        """Return the check of a ledger's heads."""
        heads = ledger.heads()
        found = {head.rows: head for head in heads}
        if len(found) != len(heads):
            raise Problem(f"ledger '{ledger.path}': two heads name the same row")
        return cls(found)

    def before(self, state: LedgerState, entry: LedgerEntry) -> None:
        """Raise `Problem` unless a row that changes who signs could have been written at this place."""
        body = entry.body
        if entry.kind == "open" and body["schema"] == SCHEMA:
            _check_start(body)
        elif entry.kind == "adopt":
            if state.ledger or body["schema"] != SCHEMA:
                raise Problem("it adopts a ledger that is signed already")
            check_reason(body["reason"])
            _check_start(body)
            self.notes.append(f"adopted at row {entry.seq}: the rows before it were never signed")
        elif entry.kind == "key" and not is_endorsed(state, body):
            self.notes.append(f"a new key at row {entry.seq}, for which the old one does not vouch")
        elif entry.kind == "budget" and body["raised"]:
            self.notes.append(_raised(state.budgets[body["unit"]], body))
        elif entry.kind == "recover":
            check_recovery(state, self.number, body)
            self._recovering = True
            before = "".join(
                f"; the budget in the unit '{unit}' had been raised {times} time(s) before"
                for unit, times in body.get("raised", {}).items()
            )
            key = self._other_key(state, body)
            self.notes.append(f"recovered at row {entry.seq}: {body['reason']}{key}{before}")

    def _other_key(self, state: LedgerState, body: dict[str, Any]) -> str:
        """Return what a reader should know if the witness of a recovered ledger knew another key."""
        if not body["head"]:
            return ""
        seen = SignedHead(body["head"], body["signature"])
        self.keys.add(seen.public)
        if seen.public == state.key["public"]:
            return ""
        return f"; its witness knew key {seen.key}, and this ledger is signed with key {state.key['id']}"

    def after(self, state: LedgerState, entry: LedgerEntry) -> None:
        """Raise `Problem` unless the head after a row, if there is one, was signed by the ledger's key."""
        head = self.heads.get(entry.seq)
        if head is None:
            return
        head.check()
        if (head.hash, head.ledger, head.public) != (entry.hash, state.ledger, state.key["public"]):
            raise Problem("its head was signed for another row, or with another key")
        follows = head.number > self.number if self._recovering else head.number == self.number + 1
        if not follows:
            raise Problem(f"its head has the number {head.number}, after {self.number}")
        self.number, self._recovering = head.number, False
        self.keys.add(head.public)

    def finish(self, state: LedgerState, last: SignedHead) -> None:
        """Raise `Problem` unless the last head says what the rows say was spent."""
        for unit, amounts in spent_in(state).items():
            for name, true in amounts.items():
                said = last.spent[unit][name]
                if not all(a >= b * (1 - MACHINE_TOLERANCE) for a, b in zip(said, true, strict=True)):
                    raise Problem(f"its head says that less was spent against {name} than its rows do")


def _raised(before: tuple[float, float], body: dict[str, Any]) -> str:
    """Return what a reader should know of a budget that was raised."""
    more = [f"from {before[0]:g} to {body['epsilon']:g}"] if body["epsilon"] != before[0] else []
    more += [f"its delta from {before[1]:g} to {body['delta']:g}"] if body["delta"] != before[1] else []
    unit = "" if body["unit"] == "example" else f" in the unit '{body['unit']}'"
    day = stamp(datetime.fromtimestamp(body["time"], UTC))[:10]
    return f"budget{unit} raised {', '.join(more)} on {day}: {body['reason']}"


def _check_start(body: dict[str, Any]) -> None:
    """Raise `Problem` unless a row gives a ledger an id and a key."""
    PublicKey.from_facts(body["key"], "key")
    if not (isinstance(body["ledger"], str) and body["ledger"]):
        raise Problem("it gives the ledger no id")


def witnessed(ledger: Ledger, witness: Witness) -> int | None:
    """Return how many changes of a ledger its witness has seen; None if it does not know the data set.

    Raise `Problem` if the witness knows better.
    """
    seen = witness.latest(ledger.identity.fingerprint)
    if seen is None:
        return None
    if (why := ledger.why_refused(seen)) is not None:
        raise refusal(ledger.path, witness, why)
    return seen.number
