"""Check a statement's file, and its run in the ledger that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import Problem, as_path, nearest, plainly, reason
from ..keys import PublicKey, list_keys, parse_time, read_public_key
from ..ledger.absent import no_witness
from ..ledger.witness import find_witness
from .build import SCHEMA, SEES_UPLOADS, text_of
from .in_ledger import find_in_ledger
from .origin import check_issuer
from .verify import verify as recompute

FEW = 8  # neighbours that a message lists
BEGINNING = 1000  # bytes of a file in which a statement names its schema


@dataclass(frozen=True)
class Verified:
    """A statement whose numbers were recomputed; `epsilon` is None if it promises no privacy.

    `in_ledger` says whether its run was found in a ledger. `not_checked` says what only a ledger, or
    its witness, can show.
    `signature` says who signed it.
    """

    path: Path | None
    silo: str
    method: str
    epsilon: float | None
    delta: float | None
    in_ledger: bool
    not_checked: str | None
    content: dict[str, Any]
    signature: str = "not signed"

    def __repr__(self) -> str:
        privacy = (
            "no privacy" if self.epsilon is None else f"epsilon {self.epsilon:.4g}, delta {self.delta:g}"
        )
        found = ", found in its ledger" if self.in_ledger else ""
        return f"Verified('{self.silo}', {self.method}: {privacy}{found})"


def _read(path: Path) -> str:
    """Return the text of a statement's file; if it is not there, name what is."""
    if path.is_dir():
        places = ("statements/*/*.json", "*/*.json", "*.json")
        inside = next((file for place in places for file in sorted(path.glob(place))), None)
        hint = f", such as '{inside}'" if inside else ""
        raise Problem(f"'{path}' is a folder: name the file of a statement{hint}")
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        hint = _beside(path) if isinstance(error, FileNotFoundError) else ""
        raise Problem(f"statement '{path}' cannot be read: {reason(error)}{hint}") from error


def find_statements(places: Sequence[str | Path]) -> list[Path]:
    """Return the files of statements at these places; folders are searched for them, and may not be empty.

    In a folder, every JSON file that names a schema of statements is one, however damaged it is.
    """
    found: list[Path] = []
    for place in map(Path, places):
        if not place.is_dir():
            found.append(place)
            continue
        inside = [file for file in sorted(place.rglob("*.json")) if _names_schema(file)]
        if not inside:
            raise Problem(f"there is no statement in the folder '{place}'")
        found += inside
    return list(dict.fromkeys(found))


def _names_schema(file: Path) -> bool:
    try:
        return SCHEMA.partition("/")[0].encode() in file.read_bytes()[:BEGINNING]
    except OSError:
        return True  # then the problem is told when it is checked


def _key_of(place: Path, text: str) -> PublicKey:
    """Return the public key at a place; in a folder, that of the silo that a statement names."""
    if not place.is_dir():
        return read_public_key(place)
    try:
        content = json.loads(text)
        silo, issuer = content["silo"], content["issuer"]["id"]
    except (ValueError, RecursionError, TypeError, KeyError):
        silo = issuer = None
    known = [public for _, public in list_keys(place)]
    fitting = [public for public in known if public.silo == silo] or [p for p in known if p.silo is None]
    if silo is not None and not fitting:
        whose = ", ".join(sorted(f"'{public.silo}'" for public in known))
        raise Problem(f"there is no key of '{silo}' in '{place}', which has keys of {whose}")
    return next((public for public in fitting if public.id == issuer), (fitting or known)[0])


def _text_of(content: Mapping[str, Any]) -> str:
    """Return a statement that is given itself as its file would have it."""
    try:
        return text_of(dict(content))
    except (TypeError, ValueError, RecursionError) as error:
        raise Problem("statement: this dict is not a statement") from error


def _beside(path: Path) -> str:
    """Return a hint that names what is next to the first part of a path that does not exist."""
    part = path
    while not part.parent.exists():
        part = part.parent
    known = [entry.name for entry in part.parent.iterdir() if entry.suffix == ".json" or entry.is_dir()]
    hint = nearest(part.name, known)
    return f"; in '{part.parent}', {hint}" if 0 < len(known) <= FEW or hint.startswith("did") else ""


@plainly
def verify(
    path: str | Path | Mapping[str, Any],
    ledger: str | Path | None = None,
    *,
    key: str | Path | PublicKey | None = None,
    at: str | datetime | None = None,
    witness: str | Path | None = None,
) -> Verified:
    """Recompute a statement from its events; with a ledger, or a folder of them, also find its run there.

    `path` is a statement's file, or the statement itself as `Result.statement` returns it. `key` is the
    public key (a .pub file, or a folder with one per silo) that must have signed it; without it, the key that
    the statement names is used, and whose that is stays unchecked. `at` is the day as of which dates are
    checked, else today. `witness` is the folder that keeps the heads of the ledger. Raise `Problem` if
    anything differs.
    """
    where = None if isinstance(path, Mapping) else as_path("path", path)
    text = _text_of(path) if isinstance(path, Mapping) else _read(Path(path))
    public = _key_of(Path(key), text) if isinstance(key, str | Path) else key
    day = parse_time(at, "--at") if isinstance(at, str) else at
    content = recompute(text, public, day)
    said, unchecked = content["guarantee"], None
    if ledger is not None:
        report, free = find_in_ledger(content, as_path("ledger", ledger), find_witness(witness))
        unchecked = "; ".join(filter(None, (no_witness([report]), free))) or None
    sent = any(content["adversaries"][who]["epsilon"] for who in SEES_UPLOADS)
    if ledger is None and said["epsilon"] and not sent:
        unchecked = "that nothing was sent; only its ledger shows this (give the ledger to check it)"
    return Verified(
        where,
        content["silo"],
        content["method"],
        said["epsilon"],
        said["delta"],
        ledger is not None,
        unchecked,
        content,
        check_issuer(content, public, day),
    )
