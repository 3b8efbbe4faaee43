"""Messages of a secure sum as bytes: a canonical JSON header, then one row of bytes for each silo it lists.

The header names the kind of message, the digest of the terms, the silo that the message is from or for (null
for all) and the places of the silos that the rows are about, in increasing order. The width of a row follows
from the kind and the terms. So the length of a message is known before anything is set aside for it, and a
message has one form only.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from ..errors import Problem
from .terms import SCHEMA, Terms, canonical

START = f"{SCHEMA}\n".encode()
LENGTH_BYTES = 4
LONGEST_HEADER = 4096
USUAL_HEADER = 170  # bytes before the rows of a message
KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES = 32, 64, 16
KEYS = 3 * KEY_BYTES + SIGNATURE_BYTES  # two public keys, a commitment, and their signature
SHARE = 2 * KEY_BYTES  # of the mask key, and of the seed of a silo's own mask
BOX = SHARE + TAG_BYTES


class Message(NamedTuple):
    """A message that was read: the places of silos, and a row of bytes for each."""

    silos: tuple[int, ...]
    rows: np.ndarray


def width_of(kind: str, terms: Terms) -> int:
    """Return the bytes of a row in a message of some kind."""
    widths = {
        "keys": KEYS,
        "shares": BOX,
        "boxes": BOX,
        "upload": SIGNATURE_BYTES + 8 * terms.size,
        "survivors": SIGNATURE_BYTES,
        "confirmations": SIGNATURE_BYTES,
        "unmask": KEY_BYTES,
    }
    return widths[kind]


def pack(
    terms: Terms, kind: str, silo: int | None, silos: tuple[int, ...], *rows: bytes | memoryview
) -> bytes:
    """Return a message; `rows` are the bytes of all rows, one after the other, in any pieces."""
    header = _header(terms, kind, silo, silos)
    message = b"".join([START, len(header).to_bytes(LENGTH_BYTES, "big"), header, *rows])
    if len(message) != len(START) + LENGTH_BYTES + len(header) + len(silos) * width_of(kind, terms):
        raise ValueError(f"the rows of a message '{kind}' do not have the right length")
    return message


def _header(terms: Terms, kind: str, silo: int | None, silos: tuple[int, ...]) -> bytes:
    plain = {"kind": kind, "terms": terms.digest, "silo": silo, "silos": list(silos)}
    text = canonical(plain).encode()
    return text + b" " * (-(len(START) + LENGTH_BYTES + len(text)) % 8)  # words are aligned


def unpack(terms: Terms, kind: str, silo: int | None, message: bytes | memoryview) -> Message:
    """Return the rows of a message of this kind, from or for this silo; raise `Problem` if it is not one."""
    if not isinstance(message, bytes | memoryview):
        raise Problem(f"secure sum: expected a message of bytes, got {type(message).__name__}")
    begin = len(START) + LENGTH_BYTES
    if len(message) < begin or message[: len(START)] != START:
        raise Problem(f"secure sum: this is not a message of the schema {SCHEMA}")
    length = int.from_bytes(message[len(START) : begin], "big")
    if length > LONGEST_HEADER or length > len(message) - begin:
        raise Problem(f"secure sum: a message's header is cut off, or longer than {LONGEST_HEADER} bytes")
    header = bytes(message[begin : begin + length])
    silos = _silos_of(header, len(terms.members))
    if header != _header(terms, kind, silo, silos):
        raise Problem(f"secure sum: {_difference(terms, kind, silo, header)}")
    width, rest = width_of(kind, terms), len(message) - begin - length
    if rest != len(silos) * width:
        raise Problem(
            f"secure sum: a message '{kind}' about {len(silos)} silo(s) has {rest} bytes of rows; expected"
            f" {len(silos) * width}"
        )
    rows = np.frombuffer(message, dtype=np.uint8, offset=begin + length).reshape(len(silos), width)
    return Message(silos, rows)


def _silos_of(header: bytes, members: int) -> tuple[int, ...]:
    """Return the places that a header lists; raise `Problem` if they are not increasing places."""
    try:
        places = json.loads(header)["silos"]
        whole = all(type(place) is int for place in places)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Problem("secure sum: the header of a message cannot be read") from None
    if not whole or any(high <= low for low, high in zip([-1, *places], [*places, members], strict=True)):
        raise Problem("secure sum: a message does not list silos by increasing places")
    return tuple(places)


def _difference(terms: Terms, kind: str, silo: int | None, header: bytes) -> str:
    """Return in what a header differs from the expected one."""
    plain = json.loads(header)
    if plain.get("kind") != kind:
        return f"expected a message '{kind}', got another kind"
    if plain.get("terms") != terms.digest:
        return f"a message '{kind}' belongs to another training, another round or other terms"
    if plain.get("silo") != silo:
        return f"a message '{kind}' is from or for another silo"
    return f"the header of a message '{kind}' is not in its canonical form"


def step_bytes(members: int) -> tuple[int, int]:
    """Return the bytes that a member sends and receives in all steps of a sum, apart from its upload's words.

    The headers of messages are counted with the length that they usually have.
    """
    up = KEYS + (members - 1) * BOX + 2 * SIGNATURE_BYTES + members * KEY_BYTES
    down = members * KEYS + (members - 1) * BOX + 2 * members * SIGNATURE_BYTES
    return up + 5 * USUAL_HEADER, down + 4 * USUAL_HEADER
