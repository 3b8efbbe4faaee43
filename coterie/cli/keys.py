"""What `coterie keys` prints; torch is not imported here."""

from __future__ import annotations

import getpass
import json
import os
from pathlib import Path

from ..errors import Problem
from ..privacy.keys import PASSPHRASE, PublicKey, key_file, list_keys, new_key


def make_key(
    place: Path, silo: str | None, with_passphrase: bool, valid_days: float | None, as_json: bool
) -> None:
    """Make a key and print where it is."""
    passphrase = _ask() if with_passphrase else None
    public = new_key(place, silo, passphrase=passphrase, valid_days=valid_days)
    path = key_file(place, silo)
    if as_json:
        print(json.dumps({"file": str(path), **public.facts()}))
        return
    print(
        f"key {public.id} for {_words(public)}: {path} (keep it secret), {path.with_suffix('.pub')} (publish)"
    )


def show_keys(place: Path, as_json: bool) -> None:
    """Print the public keys at a place."""
    found = list_keys(place)
    if as_json:
        print(json.dumps({"keys": [{"file": str(path), **public.facts()} for path, public in found]}))
        return
    for path, public in found:
        print(f"{public.id}  {_words(public)}, made {public.made} ({path})")


def _words(public: PublicKey) -> str:
    whose = "any silo" if public.silo is None else f"'{public.silo}'"
    return whose if public.expires is None else f"{whose} until {public.expires}"


def _ask() -> str:
    """Return the passphrase in the environment, or ask for it twice."""
    if given := os.environ.get(PASSPHRASE):
        return given
    try:
        first, second = (getpass.getpass(f"Passphrase{again}: ") for again in ("", " again"))
    except (EOFError, OSError) as error:
        raise Problem(f"--passphrase: nobody is there to type it; set {PASSPHRASE}") from error
    if first != second:
        raise Problem("--passphrase: the two passphrases differ")
    return first
