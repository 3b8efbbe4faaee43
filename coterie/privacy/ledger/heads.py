"""Signed heads: what a ledger's key signs after every change, and a witness keeps.

A head names the last row by its hash, and so every row before it. It counts the changes of its data set,
and holds what was spent and the budgets, so that a ledger that was lost can begin again where it was.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ..._json import finite
from ...errors import Problem
from ..adversaries import ADVERSARIES
from ..keys import Key, fingerprint, is_signed, now, stamp
from .entries import LedgerEntry, LedgerState, text_of
from .identity import Identity

PURPOSE = "coterie-head/1"
Amounts = dict[str, dict[str, tuple[float, float]]]


@dataclass(frozen=True)
class SignedHead:
    """The head of a ledger after a change: a text, and its signature."""

    text: str
    signature: str

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the head says, as plain data."""
        facts: dict[str, Any] = json.loads(self.text)
        return facts

    @property
    def ledger(self) -> str:
        """The ledger's id, drawn when it was made: another ledger of the same data set has another."""
        return str(self.facts["ledger"])

    @property
    def identity(self) -> Identity:
        """The data set."""
        return Identity(**self.facts["identity"])

    @property
    def number(self) -> int:
        """The sequence number: how many changes of this data set's ledgers there were."""
        return int(self.facts["number"])

    @property
    def rows(self) -> int:
        """The number of the last row."""
        return int(self.facts["rows"])

    @property
    def hash(self) -> str:
        """The hash of the last row."""
        return str(self.facts["hash"])

    @property
    def time(self) -> str:
        """When it was signed (UTC), by the clock of the signer. Nothing relies on it."""
        return str(self.facts["time"])

    @property
    def public(self) -> str:
        """The public half of the key that signed it."""
        return str(self.facts["public"])

    @property
    def key(self) -> str:
        """The id of the key that signed it."""
        return fingerprint(self.public)

    @property
    def spent(self) -> Amounts:
        """What was spent in each unit against each adversary, in the filter's own numbers."""
        return amounts_of(self.facts["spent"])

    def check(self) -> None:
        """Raise `Problem` unless this is a head, signed by the key that it names."""
        try:
            whole = (
                self.facts["schema"] == PURPOSE
                and min(self.number, self.rows) > 0
                and bool(self.identity.fingerprint and self.ledger and self.hash and self.time and self.spent)
                and is_signed(self.public, PURPOSE, self.text, self.signature)
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise Problem("the head is damaged, or its signature is wrong")


def amounts_of(plain: dict[str, Any]) -> Amounts:
    """Read amounts from plain data, where null is infinite."""
    return {unit: {name: _pair(*amount) for name, amount in each.items()} for unit, each in plain.items()}


def _pair(first: float | None, second: float | None) -> tuple[float, float]:
    return math.inf if first is None else float(first), math.inf if second is None else float(second)


def units_of(state: LedgerState) -> list[str]:
    """Return the units with a budget, and always "example" once there is any budget."""
    return sorted({*state.budgets, "example"} if state.budgets else ())


def spent_in(state: LedgerState) -> Amounts:
    """Return what was spent in each unit against each adversary, in the filter's own numbers."""
    return {
        unit: {name: state.filter.carried(state, unit, name) for name in ADVERSARIES}
        for unit in units_of(state)
    }


def sign_head(key: Key, identity: Identity, number: int, last: LedgerEntry, state: LedgerState) -> SignedHead:
    """Return the signed head of a ledger with this last row and this state."""
    bare = {unit: [name for name in ADVERSARIES if state.bare(unit, name)] for unit in units_of(state)}
    facts = {
        "schema": PURPOSE,
        "ledger": state.ledger,
        "identity": asdict(identity),
        "number": number,
        "rows": last.seq,
        "hash": last.hash,
        "time": stamp(now()),
        "public": key.public.public,
        "filter": state.filter_name,
        "order": state.order,
        "budgets": state.budgets,
        "spent": spent_in(state),
        "bare": bare,
    }
    if state.raised:
        facts["raised"] = state.raised
    text = text_of(finite(facts))
    return SignedHead(text, key.sign(PURPOSE, text))
