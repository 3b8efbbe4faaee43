"""What a guard sends: signed replies with the head of its ledger, remembered before they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..protocol.envelope import Envelope, seal
from .calls import COORDINATOR, question

if TYPE_CHECKING:
    from .guard import Guard


class Reply(NamedTuple):
    """A reply as signed bytes, and the digest of what it says."""

    digest: str
    message: bytes


def remembered(
    guard: Guard,
    request: Envelope,
    reply: Reply,
    state: bytes | None = None,
    further: int | None = None,
    sum_state: bytes | None = None,
    status: str | None = None,
) -> bytes:
    """Return a reply's bytes, which the guard's store holds from now on.

    The silo's new `state`, its next round (`further`), the state of its secure sum and the training's status
    are written in the same transaction.
    """
    known = (request.training, request.round, request.call, question(request), reply.digest)
    guard.store.answer(*known, reply.message, state, further, sum_state, status)
    return reply.message


def sealed(guard: Guard, request: Envelope, kind: str, facts: dict[str, object], body: bytes = b"") -> Reply:
    """Return a reply with the head of the ledger, signed."""
    head = guard.ledger.signed_head
    facts = {**facts, "head": {"text": head.text, "signature": head.signature}}
    belongs = (request.training, request.round, request.call)
    reply = Envelope(*belongs, kind, guard.silo, COORDINATOR, facts, body)
    return Reply(reply.digest, seal(reply, guard.key))


def refusal(guard: Guard, request: Envelope | None, kind: str, why: str) -> bytes:
    """Return a signed refusal; it is not remembered, because nothing was released."""
    training, number, call = (
        ("", 0, 0) if request is None else (request.training, request.round, request.call)
    )
    reply = Envelope(training, number, call, kind, guard.silo, COORDINATOR, {"why": why[:2000]})
    return seal(reply, guard.key)
