"""Custody: which key signs a ledger, and which witness remembers its heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import Problem
from ..keys import Key, find_key, own_key, read_key
from .entries import LedgerEntry
from .heads import SignedHead
from .identity import Identity
from .witness import Unwitnessed, Witness, find_witness

UNKNOWN = "does not know it, although it has been changed before"  # why a witness disagrees


@dataclass(frozen=True)
class Custody:
    """Where a ledger's key is, and who its witness is.

    `keys` is a .key file or a folder of keys; without it, the key lies beside the ledger and is made with it.
    """

    keys: Path | None = None
    witness: Witness = field(default_factory=find_witness)

    @classmethod
    def of(cls, keys: str | Path | None = None, witness: str | Path | None = None) -> Custody:
        """Return the custody that a user asks for, by a place of keys and a witness's folder."""
        return cls(None if keys is None else Path(keys), find_witness(witness))

    def check(self, silos: Iterable[str]) -> None:
        """Raise `Problem` unless heads can be recorded, and every silo has a key where keys are given."""
        self.witness.ready()
        if self.keys is not None:
            for silo in silos:
                find_key(self.keys, silo)

    def key_for(self, path: Path, silo: str, make: bool = False) -> Key:
        """Return the key that signs the ledger at a path; with `make`, one that is made beside it."""
        if self.keys is not None:
            return find_key(self.keys, silo)
        beside = path.with_suffix(".key")
        if not make and not beside.exists():
            raise Problem(
                f"the key of ledger '{path}' is missing: restore '{beside}', say where it is with --keys, or"
                " sign with another from now on (`coterie ledger rekey --old-key-lost`)"
            )
        key = own_key(beside, silo) if make else read_key(beside)
        key.public.check(silo)
        return key


def disagreement(seen: SignedHead | None, own: SignedHead, rows: Sequence[LedgerEntry]) -> str | None:
    """Return why a ledger with these rows does not agree with the head its witness has seen; None if it does.

    A ledger that is ahead agrees: a crash
    between its change and its witness's record leaves it so.
    """
    if seen is None:
        return None if own.number == 1 else UNKNOWN
    if seen.ledger != own.ledger:
        return f"knows another ledger of this data set, with {seen.number} changes until {seen.time}"
    if seen.number > own.number:
        return (
            f"has seen {seen.number} changes of it, until {seen.time}, and this file has only {own.number}:"
            " it is an old copy"
        )
    if seen.rows > len(rows) or rows[seen.rows - 1].hash != seen.hash:
        return f"has seen other rows than these, on {seen.time}"
    return None


def refusal(path: Path, witness: Witness, why: str) -> Unwitnessed:
    """Return the problem of a ledger that its witness does not agree with."""
    if why == UNKNOWN:
        return Unwitnessed(
            f"ledger '{path}': the witness '{witness}' {why}: if it was made with another witness, name that"
            " one (--witness FOLDER or COTERIE_WITNESS); if that one is lost, restore it, or accept this"
            f" ledger as it is with `coterie ledger recover {path} --reason WHY`"
        )
    return Unwitnessed(
        f"ledger '{path}': its witness '{witness}' {why}; restore the newest copy, or accept this one with"
        f" `coterie ledger recover {path} --reason WHY`, which charges what the witness knows"
    )


def missing(path: Path, identity: Identity, seen: SignedHead, witness: Witness) -> Problem:
    """Return the problem of a ledger that does not exist, although its witness has seen it."""
    return Problem(
        f"there is no ledger of '{identity.silo}' in '{path.parent}', but the witness '{witness}' has seen"
        f" one with {seen.number} changes until {seen.time}: use its folder, restore it, or begin with what"
        f" it had spent by `coterie ledger recover {path} --reason WHY`"
    )
