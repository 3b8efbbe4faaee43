"""What a silo remembers of one secure sum, and why it answers every step once.

The state begins with a random seed, from which all secrets follow. It records a digest of every message that
the silo answered, and of its answer. The same message gets the same answer; any other one is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import Problem, Refused
from ..privacy.keys import Key
from .agreement import Peer
from .terms import SCHEMA, Terms, canonical, digest_of
from .wire import KEY_BYTES

STEPS = ("keys", "shares", "upload", "confirmation", "unmask")


@dataclass(frozen=True)
class Silo:
    """A silo in one secure sum: the terms, its name, and the key that it signs with."""

    terms: Terms
    name: str
    key: Key

    def __post_init__(self) -> None:
        if self.terms.members[self.terms.index(self.name)].public != self.key.public.public:
            raise Problem(f"secure sum: the terms have another key for '{self.name}' than this one")

    @property
    def place(self) -> int:
        """The place of the silo among the members."""
        return self.terms.index(self.name)


@dataclass(frozen=True)
class State:
    """What a silo must not lose, and must never take back, during one secure sum.

    `done` has the digests of each step's message and answer. `peers` are the members whose keys it accepted
    and, once it uploaded, those that it masked its upload with, itself included. `shares` are what these sent
    it, 64 bytes each. `survivors` is the one set that it confirmed. Without a `seed` the sum is closed.
    """

    terms: str
    place: int
    seed: bytes
    done: tuple[tuple[str, str], ...] = ()
    peers: tuple[Peer, ...] = ()
    shares: bytes = b""
    survivors: tuple[int, ...] = ()

    def __repr__(self) -> str:
        steps = ", ".join(STEPS[: len(self.done)]) or "nothing"
        return f"State(of place {self.place}, answered: {steps})"

    def to_bytes(self) -> bytes:
        """Return the state as bytes. They are secret: whoever has them can take off this silo's masks."""
        plain = {
            "schema": SCHEMA,
            "terms": self.terms,
            "place": self.place,
            "seed": self.seed.hex(),
            "done": self.done,
            "peers": [peer.plain() for peer in self.peers],
            "shares": self.shares.hex(),
            "survivors": self.survivors,
        }
        return canonical(plain).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> State:
        """Return the state that `to_bytes` wrote; raise `Problem` if the bytes are none."""
        try:
            plain = json.loads(content)
            state = cls(
                plain["terms"],
                plain["place"],
                bytes.fromhex(plain["seed"]),
                tuple((asked, answered) for asked, answered in plain["done"]),
                tuple(Peer(place, *map(bytes.fromhex, keys)) for place, *keys in plain["peers"]),
                bytes.fromhex(plain["shares"]),
                tuple(plain["survivors"]),
            )
            whole = state.to_bytes() == content
        except (ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if not whole:
            raise Problem("secure sum: the state of a silo is damaged, so it cannot continue this round")
        return state


def begin(silo: Silo) -> State:
    """Return the state of a silo before the first step; begin once per training and round."""
    return State(silo.terms.digest, silo.place, os.urandom(KEY_BYTES))


def forget(state: State) -> State:
    """Return the state without its secrets: nothing is answered any more, not even a repeated message.

    After the sum, the secrets could only be used to take off the silo's masks.
    """
    return replace(state, seed=b"", peers=(), shares=b"")


Work = Callable[[], tuple[State, bytes]]


def answer_once(silo: Silo, state: State, step: str, message: bytes, work: Work) -> tuple[State, bytes]:
    """Return the state after a step, and the answer: `work()` if the step is due or repeated."""
    if (state.terms, state.place) != (silo.terms.digest, silo.place):
        raise Refused(f"secure sum: this state of '{silo.name}' belongs to another silo, round or training")
    if len(state.seed) != KEY_BYTES:
        raise Refused(f"secure sum: round {silo.terms.round} is closed for '{silo.name}'")
    number, asked = STEPS.index(step), digest_of(message)
    if len(state.done) < number:
        due = STEPS[len(state.done)]
        raise Refused(f"secure sum: '{step}' is not due yet for '{silo.name}', whose next step is '{due}'")
    again = len(state.done) > number
    if again and state.done[number][0] != asked:
        raise Refused(f"secure sum: '{silo.name}' answered '{step}' before, to another message")
    after, answer = work()
    answered = digest_of(answer)
    if not again:
        return replace(after, done=(*state.done, (asked, answered))), answer
    if state.done[number][1] != answered:
        raise Refused(f"secure sum: '{silo.name}' sent another '{step}' before; it sends only one")
    return state, answer
