"""Signed messages between a coordinator and a guard: a header, and a body of tensors or JSON.

A message is eight bytes that name the format, four bytes with the header's length, the header, and the body.
The header is canonical JSON (sorted keys, spaces only at its end): which training, round and call the message
belongs to, its kind and sender, the size and digest of the body, further facts of its kind, and a signature
of all that. Sizes are checked before anything else is read, and the signature before the body is. Nothing is
unpickled.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import Problem
from ..privacy.keys import Key, PublicKey, is_signed

FORMAT = b"coterie1"
LENGTH = struct.Struct(">I")
LONGEST_HEADER = 2**16
ALIGNED = 8  # a body begins at a multiple of so many bytes, so that its tensors can be used where they lie
PURPOSE = "coterie-message/1"
WHOLE = ("training", "round", "call", "kind", "sender", "to", "size", "digest", "facts")


class Unreadable(Problem):
    """Bytes that are no message, or that nobody signed."""


@dataclass(frozen=True)
class Envelope:
    """One message: what it belongs to, its kind, who sent it to whom, facts of its kind, and a body."""

    training: str
    round: int
    call: int
    kind: str
    sender: str
    to: str
    facts: dict[str, Any] = field(default_factory=dict)
    body: bytes | memoryview = b""

    @cached_property
    def body_digest(self) -> str:
        """The digest of the body, which may be long: it is computed once."""
        return hashlib.sha256(self.body).hexdigest()

    @property
    def digest(self) -> str:
        """The digest of everything that the message says."""
        return self.digest_without()

    def digest_without(self, *facts: str) -> str:
        """Return the digest of everything that the message says, apart from some facts."""
        kept = {name: value for name, value in self.facts.items() if name not in facts}
        return hashlib.sha256(self._text(kept).encode()).hexdigest()

    def _text(self, facts: dict[str, Any] | None = None) -> str:
        """Return the header without its signature; other facts may be given."""
        own = {name: getattr(self, name) for name in WHOLE if name not in ("size", "digest")}
        own["facts"] = self.facts if facts is None else facts
        return canonical({**own, "size": len(self.body), "digest": self.body_digest})


def canonical(value: Any) -> str:
    """Return plain data as canonical JSON: one text for one value.

    >>> canonical({"b": 1, "a": [1.5, None]})
    '{"a":[1.5,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def seal(envelope: Envelope, key: Key) -> bytes:
    """Return a signed message as bytes."""
    text = envelope._text()
    header = canonical({**json.loads(text), "signature": key.sign(PURPOSE, text)}).encode()
    header += b" " * (-(len(FORMAT) + LENGTH.size + len(header)) % ALIGNED)
    if len(header) > LONGEST_HEADER:
        raise Problem(f"the header of a message has {len(header):,} bytes; the limit is {LONGEST_HEADER:,}")
    return b"".join([FORMAT, LENGTH.pack(len(header)), header, envelope.body])


def unseal(message: bytes | bytearray, key: PublicKey, most: int, to: str | None = None) -> Envelope:
    """Return a message that this key signed for the receiver `to`; raise `Unreadable` for other bytes.

    The body is a part of the message's own memory, because it may be long.
    """
    header = _header(message, most)
    content: dict[str, Any] = {name: header.get(name) for name in WHOLE}
    signature = header.get("signature")
    if set(header) != {*WHOLE, "signature"} or not _sound(content) or not isinstance(signature, str):
        raise Unreadable("the header of the message is incomplete")
    if not is_signed(key.public, PURPOSE, canonical(content), signature):
        raise Unreadable(f"the message of '{content['sender']}' is not signed with key {key.id}")
    if to is not None and content["to"] != to:
        raise Unreadable(f"the message is for '{content['to']}', not for '{to}'")
    body = memoryview(message)[len(message) - content["size"] :]
    named = {name: value for name, value in content.items() if name not in ("size", "digest")}
    opened = Envelope(**named, body=body)
    if opened.body_digest != content["digest"]:
        raise Unreadable("the body of the message was changed")
    return opened


def sender_of(message: bytes | bytearray, most: int) -> str:
    """Return who claims to have sent a message, before its signature is checked."""
    sender = _header(message, most).get("sender")
    if not isinstance(sender, str):
        raise Unreadable("the header of the message names no sender")
    return sender


def _header(message: bytes | bytearray, most: int) -> dict[str, Any]:
    """Return the header of a message whose sizes are right."""
    start = len(FORMAT) + LENGTH.size
    if len(message) > most:
        raise Unreadable(f"the message has {len(message):,} bytes; the limit is {most:,}")
    if message[: len(FORMAT)] != FORMAT or len(message) < start:
        raise Unreadable("these bytes are no message of Coterie, or of another version")
    (length,) = LENGTH.unpack(message[len(FORMAT) : start])
    if length > LONGEST_HEADER or start + length > len(message):
        raise Unreadable("the header of the message is cut off or too long")
    try:
        header = json.loads(message[start : start + length])
    except (ValueError, RecursionError) as error:
        raise Unreadable("the header of the message is not JSON") from error
    if not isinstance(header, dict) or header.get("size") != len(message) - start - length:
        raise Unreadable("the message does not have the size that its header says")
    return header


def _sound(content: dict[str, Any]) -> bool:
    """Return whether all fields of a header have the right type."""
    texts = all(isinstance(content[name], str) for name in ("training", "kind", "sender", "to", "digest"))
    counts = all(
        type(content[name]) is int and 0 <= content[name] < 2**53 for name in ("round", "call", "size")
    )
    return texts and counts and isinstance(content["facts"], dict)
