"""A guard's steps of a secure sum: what a request may ask, and the masked upload.

Each step is a call of its own, which the guard's store answers once. The state of the sum says the same a
second time, and it is written in the transaction of the answer. The step 'upload' alone touches examples.
"""

from __future__ import annotations

import numpy as np

from ..errors import Problem
from ..noise.dice import KeyedDice
from ..privacy.keys import Key
from ..protocol.envelope import Envelope
from ..secure_sum import (
    STEPS,
    Silo,
    State,
    Terms,
    begin,
    confirm,
    contribution,
    forget,
    mask_upload,
    offer_keys,
    reveal_shares,
    share_secrets,
)

FIRST_CALL = 4  # after those of the guard itself
SUM_CALLS = {step: FIRST_CALL + number for number, step in enumerate(STEPS)}
BEFORE_UPLOAD = STEPS[:3]


def open_sum(terms: Terms, name: str, key: Key, kept: bytes | None, request: Envelope) -> tuple[Silo, State]:
    """Return a silo and its state in a round's sum; raise `Problem` for a sum that is closed or not begun."""
    silo = Silo(terms, name, key)
    if request.kind == "keys" and request.facts.get("terms") != terms.digest:
        raise Problem(
            f"round {terms.round}: the coordinator's terms of the secure sum are not those of the plan"
        )
    if kept is None:
        if request.kind != "keys":
            raise Problem(f"round {terms.round}: '{name}' was not asked for the keys of its secure sum yet")
        return silo, begin(silo)
    if not kept:
        raise Problem(f"round {terms.round}: the secure sum is closed for '{name}'")
    return silo, State.from_bytes(kept)


def take_step(silo: Silo, state: State, request: Envelope) -> tuple[State, bytes]:
    """Return the new state and the answer of a step that touches no examples; the last one ends the sum."""
    if request.kind == "keys":
        return offer_keys(silo, state)
    if request.kind == "unmask":
        state, answer = reveal_shares(silo, state, bytes(request.body))
        return forget(state), answer
    step = {"shares": share_secrets, "confirmation": confirm}[request.kind]
    return step(silo, state, bytes(request.body))


def split_upload(request: Envelope) -> tuple[bytes, bytes | memoryview]:
    """Return the two parts of a request for an upload: the others' boxes, and what the method sends."""
    length = request.facts.get("boxes")
    if type(length) is not int or not 0 <= length <= len(request.body):
        raise Problem("the request for an upload does not say how long its first part is")
    return bytes(request.body[:length]), request.body[length:]


def masked(
    silo: Silo, state: State, boxes: bytes, upload: np.ndarray, dice: KeyedDice, clip: float
) -> tuple[State, bytes]:
    """Return the new state and an upload, clipped, noised and masked."""
    return mask_upload(silo, state, boxes, contribution(upload, silo.terms, dice, clip))
