"""The ways out that are recorded: take over an unsigned ledger, begin again after a loss, change the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..._json import finite
from ...errors import Problem
from ..accountant import MACHINE_TOLERANCE
from ..keys import Key, PublicKey, is_signed, list_keys, read_key
from .book import Ledger
from .custody import Custody
from .entries import LedgerState
from .heads import Amounts, SignedHead, amounts_of, spent_in
from .identity import Identity
from .ledger import HEADS, SCHEMA, is_signed_ledger, make_ledger, new_custody, open_file, read_ledger

ENDORSEMENT = "coterie-rekey/1"


def check_reason(reason: Any) -> None:
    """Raise `Problem` unless somebody said why."""
    if not (isinstance(reason, str) and reason.strip()):
        raise Problem("--reason: say why; the ledger keeps it")


def adopt_ledger(path: Path, reason: str, custody: Custody) -> Ledger:
    """Sign a ledger of an older version from now on; a row says that the rows before it were never signed."""
    check_reason(reason)
    custody.witness.ready()
    ledger = Ledger(path, open_file(path), custody, unsigned=True)
    try:
        if is_signed_ledger(ledger):
            raise Problem(f"ledger '{path}' is signed already: there is nothing to adopt")
        identity = _unsigned_identity(ledger)
        if custody.witness.latest(identity.fingerprint) is not None:
            raise Problem(
                f"ledger '{path}': the witness '{custody.witness}' knows a signed ledger of"
                f" '{identity.silo}': restore that one, or remove this file and run `coterie ledger recover"
                f" {path} --reason WHY`"
            )
        ledger.signer = custody.key_for(path, identity.silo, make=True)
        ledger.connection.executescript(HEADS)
        with ledger.change(check=False) as rows:
            rows.add("adopt", {"schema": SCHEMA, "reason": reason, **new_custody(ledger.signer)})
    finally:
        ledger.close()
    return read_ledger(path, custody=custody)


def _unsigned_identity(ledger: Ledger) -> Identity:
    row = ledger.connection.execute("select body from entries where seq = 1").fetchone()
    try:
        return Identity(**json.loads(row[0])["identity"])
    except (ValueError, LookupError, TypeError) as error:
        raise Problem(f"ledger '{ledger.path}': row 1 is incomplete; restore a backup") from error


def recover_ledger(path: Path, reason: str, custody: Custody, new_key: bool = False) -> Ledger:
    """Accept a ledger that its witness does not agree with, or begin again where there is none.

    The ledger is charged with all that the witness knows and the ledger does not. Runs that began before
    cannot continue. Both the ledger and the witness keep the reason. A ledger that begins again is signed
    with the key that the witness knows, unless a `new_key` is accepted.
    """
    check_reason(reason)
    custody.witness.ready()
    if not path.exists():
        _begin_again(path, custody, new_key)
    ledger = read_ledger(path, custody=custody)
    try:
        seen = ledger.seen()
        if ledger.why_refused(seen) is None:
            raise Problem(f"ledger '{path}' agrees with its witness: there is nothing to recover")
        with ledger.change(check=False) as changes:
            head = {"head": "" if seen is None else seen.text}
            carried, bare = carried_from(changes.state, ledger.signed_head.number, seen)
            body = {"reason": reason, **head, "signature": "" if seen is None else seen.signature}
            changes.number = max(changes.number, 1 if seen is None else seen.number + 1)
            raised = raised_from(changes.state, ledger.signed_head.number, seen)
            more = {"raised": raised} if raised else {}
            changes.add("recover", {**body, "carried": finite(carried), "bare": bare, **more})
    except BaseException:
        ledger.close()
        raise
    return ledger


def _begin_again(path: Path, custody: Custody, new_key: bool) -> None:
    """Make a ledger with the filter and the budgets of one that is lost, and that its witness knows."""
    seen = custody.witness.latest(path.stem)
    if seen is None:
        raise Problem(f"there is no ledger '{path}', and the witness '{custody.witness}' does not know it")
    if not new_key:
        _check_same_key(path, custody, seen)
    budgets = {unit: (float(e), float(d)) for unit, (e, d) in seen.facts["budgets"].items()}
    opened = {"filter": seen.facts["filter"], "order": seen.facts["order"]}
    make_ledger(path, seen.identity, opened, budgets, custody)


def _check_same_key(path: Path, custody: Custody, seen: SignedHead) -> None:
    """Raise `Problem` unless the key that signs a ledger which begins again is the one its witness knows."""
    made = custody.keys is None and not path.with_suffix(".key").exists()
    found = None if made else custody.key_for(path, seen.identity.silo).id
    if found != seen.key:
        would = "a new key would sign it" if found is None else f"key {found} would sign it"
        raise Problem(
            f"ledger '{path}': its witness '{custody.witness}' knows key {seen.key}, but {would} from now on:"
            " give the old key (--keys) or, if it is lost, accept another (--new-key; new_key=True in Python)"
        )


def carried_from(
    state: LedgerState, number: int, seen: SignedHead | None
) -> tuple[Amounts, dict[str, list[str]]]:
    """Return what a ledger is charged when it is recovered, and against whom nothing protects.

    If it is an old copy, what was lost is the difference. Otherwise its rows may be others than those that
    the witness knows, so that both count in full.
    """
    if seen is None:
        return {}, {}
    if (seen.facts["filter"], seen.facts["order"]) != (state.filter_name, state.order):
        raise Problem(
            "the ledger that the witness knows adds up in another way (filter or order): remove this file and"
            " recover the lost ledger instead"
        )
    own = spent_in(state) if is_old_copy(state, number, seen) else {}
    carried = {
        unit: {
            name: _beyond(amount, own.get(unit, {}).get(name, (0.0, 0.0))) for name, amount in each.items()
        }
        for unit, each in seen.spent.items()
    }
    return carried, seen.facts["bare"]


def raised_from(state: LedgerState, number: int, seen: SignedHead | None) -> dict[str, int]:
    """Return how often the budget of each unit was raised, as its witness knows and the ledger does not.

    A budget that is now above the one that the witness knows counts as raised once more.
    """
    if seen is None:
        return {}
    own = state.raised if is_old_copy(state, number, seen) else {}
    more = {unit: max(0, times - own.get(unit, 0)) for unit, times in seen.facts.get("raised", {}).items()}
    for unit, known in seen.facts["budgets"].items():
        above = any(a > b for a, b in zip(state.budgets.get(unit, ()), known, strict=False))
        more[unit] = more.get(unit, 0) + above
    return {unit: times for unit, times in more.items() if times}


def is_old_copy(state: LedgerState, number: int, seen: SignedHead) -> bool:
    """Return whether a ledger with this number of changes has no rows but those its witness has seen.

    A ledger is changed only while its witness agrees, except by a recovery.
    """
    return seen.ledger == state.ledger and number < seen.number and not state.recoveries


def _beyond(lost: tuple[float, float], own: tuple[float, float]) -> tuple[float, float]:
    """Return how much more was lost than a copy has, part by part."""
    first, second = (max(0.0, a - b) if b < a else 0.0 for a, b in zip(lost, own, strict=True))
    return first, second


def check_recovery(state: LedgerState, number: int, body: dict[str, Any]) -> None:
    """Raise `Problem` unless a row charges all that its witness had seen."""
    check_reason(body["reason"])
    seen = SignedHead(body["head"], body["signature"]) if body["head"] else None
    if seen is not None:
        seen.check()
    carried, bare = carried_from(state, number, seen)
    said = amounts_of(body["carried"])
    for unit, amounts in carried.items():
        for name, true in amounts.items():
            spread = MACHINE_TOLERANCE * max(seen.spent[unit][name]) if seen is not None else 0.0
            if not all(a >= b - spread for a, b in zip(said[unit][name], true, strict=True)):
                raise Problem("it does not charge what its witness had seen")
    if body.get("raised", {}) != raised_from(state, number, seen):
        raise Problem("it does not say how often its witness had seen the budget raised")
    if body["bare"] != bare:
        raise Problem("it does not name the adversaries that its witness had seen unprotected")


def rekey_ledger(
    path: Path, reason: str, custody: Custody, old: Path | None = None, old_key_lost: bool = False
) -> Ledger:
    """Sign a ledger with another key from now on: that of `custody`.

    The old key, which may have expired, signs that it is replaced: `old` is its file or folder, else it is
    looked for beside the ledger. If it is lost, the ledger says that nobody vouches for the new one.
    """
    check_reason(reason)
    custody.witness.ready()
    ledger = read_ledger(path, custody=custody)
    try:
        with ledger.change() as rows:
            key, before = new_and_old_key(ledger, custody, old, old_key_lost)
            text = _endorsement(rows.state, key.public.public)
            endorsed = "" if before is None else before.sign(ENDORSEMENT, text)
            rows.add("key", {"key": key.public.facts(), "reason": reason, "endorsed": endorsed})
            ledger.signer = key
    except BaseException:
        ledger.close()
        raise
    return ledger


def new_and_old_key(
    ledger: Ledger, custody: Custody, old: Path | None, old_key_lost: bool
) -> tuple[Key, Key | None]:
    """Return the key that is to sign a ledger and the one that vouches for it, None if that one is lost.

    Raise `Problem` if the old key is not at hand and nobody says that it is lost.
    """
    path, known = ledger.path, ledger.state().key
    key = custody.key_for(path, ledger.identity.silo)
    if key.public.public == known["public"]:
        raise Problem(f"ledger '{path}' is signed with key {key.id} already")
    before = _old_key(path, old, known["public"])
    if before is None and not old_key_lost:
        where = path.with_suffix(".key") if old is None else old
        raise Problem(
            f"ledger '{path}': its old key {known['id']} is not in '{where}', so it cannot vouch for the new"
            " one: say where it is (--old), or that it is lost (--old-key-lost; old_key_lost=True in Python)"
        )
    return key, before


def _old_key(path: Path, place: Path | None, public: str) -> Key | None:
    """Return the private key with this public half, if it is at hand."""
    if place is None:
        files = [path.with_suffix(".key")]
    else:
        files = [file.with_suffix(".key") for file, each in list_keys(place) if each.public == public]
        if not files:
            raise Problem(f"--old: '{place}' does not have the key that signed ledger '{path}'")
    keys = [read_key(file) for file in files if file.exists()]
    return next((key for key in keys if key.public.public == public), None)


def _endorsement(state: LedgerState, public: str) -> str:
    return json.dumps([state.ledger, public])


def is_endorsed(state: LedgerState, body: dict[str, Any]) -> bool:
    """Return whether the key before signed that it is replaced; raise `Problem` for a false signature."""
    check_reason(body["reason"])
    PublicKey.from_facts(body["key"], "key")
    if not body["endorsed"]:
        return False
    text = _endorsement(state, body["key"]["public"])
    if not is_signed(state.key["public"], ENDORSEMENT, text, body["endorsed"]):
        raise Problem("the key before it did not sign that it was replaced")
    return True
