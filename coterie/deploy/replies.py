"""What a guard sends: signed replies with the head of its ledger, remembered before they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.envelope import Envelope, seal
from .calls import COORDINATOR, question

if TYPE_CHECKING:
    from .guard import Guard


def remembered(
    guard: Guard,
    request: Envelope,
    kind: str,
    facts: dict[str, object],
    body: bytes = b"",
    state: bytes | None = None,
    further: int | None = None,
    sum_state: bytes | None = None,
    status: str | None = None,
) -> bytes:
    """Return a reply as signed bytes, which the guard's store holds from now on.

    The silo's new `state`, its next round (`further`), the state of its secure sum and the training's status
    are written in the same transaction.
    """
    reply, answer = sealed(guard, request, kind, facts, body)
    known = (request.training, request.round, request.call, question(request), reply.digest)
    guard.store.answer(*known, answer, state, further, sum_state, status)
    return answer


def sealed(
    guard: Guard, request: Envelope, kind: str, facts: dict[str, object], body: bytes = b""
) -> tuple[Envelope, bytes]:
    """Return a reply with the head of the ledger, and as signed bytes."""
    head = guard.ledger.signed_head
    facts = {**facts, "head": {"text": head.text, "signature": head.signature}}
    belongs = (request.training, request.round, request.call)
    reply = Envelope(*belongs, kind, guard.silo, COORDINATOR, facts, body)
    return reply, seal(reply, guard.key)


def refusal(guard: Guard, request: Envelope | None, kind: str, why: str) -> bytes:
    """Return a signed refusal; it is not remembered, because nothing was released."""
    training, number, call = (
        ("", 0, 0) if request is None else (request.training, request.round, request.call)
    )
    reply = Envelope(training, number, call, kind, guard.silo, COORDINATOR, {"why": why[:2000]})
    return seal(reply, guard.key)
