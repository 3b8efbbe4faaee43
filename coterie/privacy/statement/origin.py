"""Where a statement comes from: data set, model, run, configuration, code, and who issues it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import Problem
from ..keys import CLOCKS_DIFFER, Key, PublicKey, is_signed, now, parse_time, stamp
from ..ledger.identity import Identity

PURPOSE = "coterie-statement/5"  # what a signature of a statement is for
SIMULATION, METERED_RUN = "simulation", "metered"


@dataclass(frozen=True)
class Origin:
    """What a statement is about: a run of a model on a data set, as a configuration describes it.

    `configuration` is a digest of the configuration. `stayed_home` says what the silo never handed out.
    """

    data: dict[str, Any]
    model: dict[str, Any]
    run: dict[str, Any]
    configuration: str | None = None
    stayed_home: Sequence[str] = ()

    def facts(self) -> dict[str, Any]:
        """Return what a statement says about its origin."""
        digests = {"configuration": self.configuration, "code": code_digest()}
        return {
            "data": self.data,
            "model": self.model,
            "run": self.run,
            "digests": digests,
            "stayed_home": list(self.stayed_home),
        }


def data_facts(name: str, identity: Identity | None, rows: int) -> dict[str, Any]:
    """Return what a statement says about its data set; `identity` is what ledgers know it by, if anything."""
    source = None if identity is None else identity.source
    known = None if identity is None else identity.fingerprint
    return {"name": name, "source": source, "fingerprint": known, "rows": rows}


def run_id(*parts: Any) -> str:
    """Return the id of a run, from all that sets it apart from others."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@functools.cache
def code_digest() -> str:
    """Return a digest of the installed package: of all its files, by their names and contents."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc"):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def issuer_facts(key: Key | None) -> dict[str, Any]:
    """Return who issues a statement, and when; a statement that nobody signs has no date."""
    if key is None:
        return {"issuer": None, "time": None}
    return {"issuer": key.public.facts(), "time": stamp(now())}


def signature_of(key: Key | None, checksum: str) -> str | None:
    """Return the signature of a statement with this checksum, which covers all of it."""
    return None if key is None else key.sign(PURPOSE, checksum)


def check_issuer(content: dict[str, Any], key: PublicKey | None = None, at: datetime | None = None) -> str:
    """Raise `Problem` unless a statement is signed as it says; return in words who signed it.

    With `key`, it must be signed with that key. The key must be valid on the date of the statement and at
    the time `at` (now, if none is given); a date in the future is refused.
    """
    if (content["issuer"] is None) != (content["signature"] is None):
        raise Problem("statement: signature: a statement has both an issuer and a signature, or neither")
    if (content["issuer"] is None) != (content["time"] is None):
        raise Problem("statement: time: a statement has both an issuer and a date, or neither")
    if content["issuer"] is None:
        if content["kind"] != SIMULATION:
            raise Problem("statement: signature: it is missing, and a metered run is always signed")
        if key is not None:
            raise Problem("statement: signature: there is none, because nobody signed this simulation")
        return "not signed"
    issuer = PublicKey.from_facts(content["issuer"], "statement: issuer")
    if not is_signed(issuer.public, PURPOSE, content["checksum"], content["signature"]):
        raise Problem(
            f"statement: signature: it was not made with key {issuer.id}, or not for this statement"
        )
    if key is not None and key.public != issuer.public:
        raise Problem(
            f"statement: issuer: it was signed with key {issuer.id} for {_whose(content['silo'])}; the key"
            f" you gave is {key.id} of {_whose(key.silo)}"
        )
    _check_dates(content, issuer, now() if at is None else at)
    if key is not None:  # its dates count, too: the issuer can sign others
        _check_dates(content, key, now() if at is None else at)
    signed = f"signed on {content['time']} with key {issuer.id}"
    if key is None:
        return f"{signed} (whose key this is was not checked: give --key)"
    return f"{signed}, which is the key you gave"


def _whose(silo: str | None) -> str:
    return "any silo" if silo is None else f"'{silo}'"


def _check_dates(content: dict[str, Any], issuer: PublicKey, at: datetime) -> None:
    """Raise `Problem` unless a statement's date has come, and its key was and is valid."""
    date = parse_time(content["time"], "statement: time")
    if date > at + CLOCKS_DIFFER:
        raise Problem(f"statement: time: it is dated {content['time']}, which is after {stamp(at)}")
    try:
        issuer.check(content["silo"], date)
    except Problem as problem:
        raise Problem(f"statement: issuer: on the date of the statement, {problem}") from None
    if issuer.expires is not None and at >= parse_time(issuer.expires, "expires"):
        raise Problem(
            f"statement: issuer: key {issuer.id} expired on {issuer.expires}; if you have had the statement"
            " since before then, check it as of that day (--at DATE)"
        )
