"""Ed25519 keys: with its own, a silo signs the heads of its ledger and its statements.

A key is two files. `north.key` holds the private key (PKCS8 PEM, mode 600, with a passphrase if wanted)
below one line of facts: silo, when it was made, when it expires. `north.pub` holds the same facts as JSON,
for everybody. The facts are signed by the key itself, so nobody else can change them. A key's id is a
fingerprint of its public half.

A signature shows that the holder of the key wrote something, and no more: the holder can also sign
something else later. That a ledger never goes back is what a witness shows (`coterie.privacy.ledger`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from ..errors import Problem, reason
from .files import make_folder, write_new

SCHEMA = "coterie-key/1"
TITLE = "Coterie key: "  # begins the line of facts in a private file
PASSPHRASE = "COTERIE_PASSPHRASE"  # the environment variable that holds a passphrase
CLOCKS_DIFFER = timedelta(minutes=5)  # what two machines' clocks may differ by


def now() -> datetime:
    """Return the time, UTC."""
    return datetime.now(UTC)


def stamp(time: datetime) -> str:
    """Return a time as text, to the second.

    >>> stamp(datetime(2026, 5, 12, 9, 30, tzinfo=UTC))
    '2026-05-12T09:30:00Z'
    """
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str, what: str) -> datetime:
    """Return the time that a text says; raise `Problem`, naming `what`, if it says none."""
    try:
        time = datetime.fromisoformat(text)
    except (ValueError, TypeError) as error:
        raise Problem(
            f"{what}: expected a day or a UTC time, such as 2026-05-12 or 2026-05-12T09:30:00Z, got {text!r}"
        ) from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def fingerprint(public: str) -> str:
    """Return the id of a public key (64 hexadecimal digits)."""
    return hashlib.sha256(bytes.fromhex(public)).hexdigest()[:32]


def is_signed(public: str, purpose: str, text: str, signature: str) -> bool:
    """Return whether a signature of a text, for a purpose, was made with the key of this public half."""
    if isinstance(signature, str) and signature != signature.lower():  # it has one form only
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature), _message(purpose, text))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


def _message(purpose: str, text: str) -> bytes:
    """Return what is signed; with its purpose, a signature of one thing is never one of another."""
    return f"{purpose}\n{text}".encode()


@dataclass(frozen=True)
class PublicKey:
    """The public half of a key and its facts, signed by itself; `silo` is None for a key of any silo."""

    public: str
    silo: str | None
    made: str
    expires: str | None
    signature: str = ""

    def __repr__(self) -> str:
        whose = "any silo" if self.silo is None else f"'{self.silo}'"
        return f"PublicKey({self.id} of {whose})"

    @property
    def id(self) -> str:
        """The key's id: a fingerprint of its public half."""
        return fingerprint(self.public)

    def facts(self) -> dict[str, Any]:
        """Return the key as plain data."""
        return {"schema": SCHEMA, "id": self.id, **vars(self)}

    @classmethod
    def from_facts(cls, facts: Any, where: str) -> PublicKey:
        """Read a key from plain data; raise `Problem` if it is none, or if its facts were changed."""
        wrong = Problem(f"{where}: this is not a public key of Coterie (a .pub file)")
        if not isinstance(facts, Mapping) or facts.get("schema") != SCHEMA:
            raise wrong
        fields = {name: facts.get(name) for name in ("public", "silo", "made", "expires", "signature")}
        optional = {"silo", "expires"}
        for name, value in fields.items():
            if not (isinstance(value, str) or (value is None and name in optional)):
                raise wrong
        key = cls(**fields)  # type: ignore[arg-type]
        if not re.fullmatch("[0-9a-f]{64}", key.public) or facts.get("id") != key.id:
            raise wrong
        if not is_signed(key.public, SCHEMA, key._text(), key.signature):
            raise Problem(f"{where}: the facts of this key were changed: they are not what its holder signed")
        parse_time(key.made, where)
        if key.expires is not None:
            parse_time(key.expires, where)
        return key

    def _text(self) -> str:
        """Return the facts that a key signs about itself."""
        return json.dumps([self.public, self.silo, self.made, self.expires])

    def check(self, silo: str, at: datetime | None = None) -> None:
        """Raise `Problem` unless this is a key for a silo, valid at a time (now, if none is given)."""
        if self.silo not in (None, silo):
            raise Problem(f"key {self.id} belongs to '{self.silo}', not to '{silo}': use the key of '{silo}'")
        time = now() if at is None else at
        if time < parse_time(self.made, "made") - CLOCKS_DIFFER:
            raise Problem(
                f"key {self.id} was made on {self.made}, which is after {stamp(time)}: check the clock; if it"
                " was wrong then, make a new key and give it to its ledger with `coterie ledger rekey`"
            )
        if self.expires is not None and time >= parse_time(self.expires, "expires"):
            raise Problem(
                f"key {self.id} expired on {self.expires}, and the date is {stamp(time)}: make a new one with"
                " `coterie keys new`, then give it to its ledger with `coterie ledger rekey`"
            )


@dataclass(frozen=True)
class Key:
    """A private key: what a silo signs with."""

    public: PublicKey
    _private: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"Key({self.public.id})"

    @property
    def id(self) -> str:
        """The key's id."""
        return self.public.id

    def sign(self, purpose: str, text: str) -> str:
        """Return the signature of a text for a purpose, as 128 hexadecimal digits."""
        return self._private.sign(_message(purpose, text)).hex()


def draw_key(silo: str | None = None, valid_days: float | None = None) -> Key:
    """Return a new key in memory, for one silo or for any; without `valid_days` it never expires."""
    if valid_days is not None and not 0 < valid_days <= 36_500:
        raise Problem(f"--valid-days: expected a number of days > 0, at most 36500, got {valid_days:g}")
    private, made = Ed25519PrivateKey.generate(), now()
    expires = None if valid_days is None else stamp(made + timedelta(days=valid_days))
    half = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    public = PublicKey(half, silo, stamp(made), expires)
    key = Key(public, private)
    return replace(key, public=replace(public, signature=key.sign(SCHEMA, public._text())))


def key_file(place: str | Path, silo: str | None = None) -> Path:
    """Return the private file for a silo's key: the place if it is a .key file, else one in that folder.

    >>> key_file("keys", "St. Mary's").as_posix(), key_file("mine.key").as_posix()
    ('keys/St.-Mary-s.key', 'mine.key')
    """
    place = Path(place)
    if place.suffix == ".key":
        return place
    name = re.sub(r"[^\w.-]+", "-", silo or "any-silo").lstrip(".")
    return place / f"{name}.key"


def new_key(
    place: str | Path,
    silo: str | None = None,
    *,
    passphrase: str | None = None,
    valid_days: float | None = None,
) -> PublicKey:
    """Make a key, in a folder or in a file that ends in .key, and return its public half.

    Without `silo` it may sign for any silo. `passphrase` encrypts the private file. With `valid_days` the
    key expires. An existing file is never replaced.
    """
    path = key_file(place, silo)
    for file in (path, path.with_suffix(".pub")):
        if file.exists():
            raise Problem(f"key '{file}' exists already: choose another place, or remove it first")
    if passphrase == "":
        raise Problem("the passphrase is empty: give one, or make the key without")
    key = draw_key(silo, valid_days)
    if not _write_key(path, key, passphrase):
        raise Problem(f"key '{path}' exists already: choose another place, or remove it first")
    try:
        _write_public(path, key.public)
    except Problem:
        path.unlink(missing_ok=True)  # a key is two files, or none
        raise
    return key.public


def own_key(path: Path, silo: str) -> Key:
    """Return the key in a file, made on first use; several processes agree on one."""
    if not path.exists():
        _write_key(path, draw_key(silo), None)
    key = read_key(path)
    if not path.with_suffix(".pub").exists():
        _write_public(path, key.public)
    return key


def _write_key(path: Path, key: Key, passphrase: str | None) -> bool:
    """Write a private file unless there is one; return whether it was written, all of it on the disk."""
    lock: KeySerializationEncryption = NoEncryption()
    if passphrase is not None:
        lock = BestAvailableEncryption(passphrase.encode())
    title = f"{TITLE}{json.dumps(key.public.facts())}\n".encode()
    return _write_new(
        path, title + key._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock), 0o600
    )


def _write_public(path: Path, public: PublicKey) -> None:
    _write_new(path.with_suffix(".pub"), (json.dumps(public.facts(), indent=2) + "\n").encode(), 0o644)


def _write_new(path: Path, content: bytes, mode: int) -> bool:
    """Write a file that does not exist yet; return False if it does. It is written whole or not at all."""
    try:
        make_folder(path.parent)
        return write_new(path, content, mode)
    except FileExistsError:
        raise Problem(f"key '{path}' cannot be written: '{path.parent}' is not a folder") from None
    except OSError as error:
        raise Problem(f"key '{path}' cannot be written: {reason(error)}") from error


def read_key(path: str | Path, passphrase: str | None = None) -> Key:
    """Return the private key in a file; its passphrase, if it has one, may be in COTERIE_PASSPHRASE."""
    path = Path(path)
    try:
        content, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise Problem(f"key '{path}' cannot be read: {reason(error)}") from error
    if mode & 0o077:
        raise Problem(f"key '{path}' can be read by others: make it yours alone with `chmod 600 {path}`")
    if content.lstrip().startswith(b"{"):
        raise Problem(f"key '{path}' is a public key; expected the private .key file")
    title, _, pem = content.partition(b"\n")
    private = _private_half(path, pem, os.environ.get(PASSPHRASE) if passphrase is None else passphrase)
    half = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    public = _titled(path, title)
    if public.public != half:
        raise Problem(f"key '{path}' is damaged: its first line is that of another key")
    return Key(public, private)


def _private_half(path: Path, pem: bytes, passphrase: str | None) -> Ed25519PrivateKey:
    """Return the private key in a PEM text."""
    locked = b"ENCRYPTED" in pem
    if locked and not passphrase:
        raise Problem(f"key '{path}' needs its passphrase: set {PASSPHRASE}, or give passphrase=")
    try:
        private = load_pem_private_key(pem, passphrase.encode() if locked and passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if locked and "password" in str(error).lower():
            raise Problem(f"key '{path}': the passphrase is wrong") from error
        raise Problem(
            f"'{path}' is not a private key of Coterie: make one with `coterie keys new`"
        ) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise Problem(f"'{path}' is not an Ed25519 key: make one with `coterie keys new`")
    return private


def read_public_key(path: str | Path) -> PublicKey:
    """Return the public key in a .pub file."""
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"key '{path}' cannot be read: {reason(error)}") from error
    if text.startswith(TITLE) or "PRIVATE KEY" in text:
        raise Problem(f"key '{path}' is a private key: never hand it on; expected the .pub file beside it")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        facts = None
    return PublicKey.from_facts(facts, f"key '{path}'")


def list_keys(place: str | Path) -> list[tuple[Path, PublicKey]]:
    """Return the public keys at a place, which is a .pub or .key file or a folder, each after its file.

    Where a .pub file is missing, its .key file says the same.
    """
    place = Path(place)
    if place.is_dir():
        private = [file for file in place.glob("*.key") if not file.with_suffix(".pub").exists()]
        files = sorted([*place.glob("*.pub"), *private])
        if not files:
            raise Problem(f"there is no key in '{place}': make one with `coterie keys new {place}`")
    elif place.exists():
        public = place.with_suffix(".pub")
        files = [public if place.suffix == ".key" and public.exists() else place]
    else:
        raise Problem(f"there is no key '{place}'")
    return [(file, _public_half(file) if file.suffix == ".key" else read_public_key(file)) for file in files]


def _public_half(path: Path) -> PublicKey:
    """Return the public key in the first line of a private file, which needs no passphrase."""
    try:
        title = path.read_bytes().partition(b"\n")[0]
    except OSError as error:
        raise Problem(f"key '{path}' cannot be read: {reason(error)}") from error
    return _titled(path, title)


def _titled(path: Path, title: bytes) -> PublicKey:
    """Return the public key that the first line of a private file says."""
    try:
        facts = json.loads(title.decode().removeprefix(TITLE))
    except ValueError as error:
        raise Problem(f"key '{path}' is damaged: its first line does not say whose it is") from error
    return PublicKey.from_facts(facts, f"key '{path}'")


def _public_file(folder: Path, silo: str) -> Path:
    """Return a file of the key for a silo in a folder, looking first where `new_key` puts its public half."""
    likely = key_file(folder, silo).with_suffix(".pub")
    if likely.is_file() and read_public_key(likely).silo == silo:
        return likely
    named = {public.silo: file for file, public in list_keys(folder)}
    if silo not in named and None not in named:
        raise Problem(
            f"there is no key of '{silo}' in '{folder}': make one with `coterie keys new {folder} --silo"
            f" '{silo}'`"
        )
    return named[silo] if silo in named else named[None]


def find_key(place: str | Path, silo: str) -> Key:
    """Return the private key for a silo at a place: a .key file, or a folder with the silo's key or any's."""
    place = Path(place)
    file = _public_file(place, silo).with_suffix(".key") if place.is_dir() else place
    key = read_key(file)
    key.public.check(silo)
    return key
