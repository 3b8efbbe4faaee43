"""The coordinator's side of a round's secure sum, which a crash at any moment does not change.

What the coordinator asks next depends on who answered before. Guards answer each step once, so after a crash
it must ask the same again: it writes what it knows and will ask to a journal before it asks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import Problem, reason
from ..experiment.files import OWNER_ONLY, write
from ..noise.keystream import WORD
from ..secure_sum import (
    STEPS,
    Missing,
    Peer,
    Server,
    Terms,
    add_uploads,
    collect_confirmations,
    from_cells,
    publish_keys,
    recover_sum,
    route_shares,
)

SCHEMA = "coterie-sum-journal/2"
AskStep = Callable[[str, Mapping[str, bytes]], Mapping[str, bytes]]


@dataclass(frozen=True, eq=False)
class Point:
    """Where a sum stands: what the server knows, and the messages of the next step, by silo.

    `missed` are the messages to silos that uploaded and did not confirm in time: they still may.
    """

    server: Server
    step: str
    messages: Mapping[str, bytes]
    missed: Mapping[str, bytes] = field(default_factory=dict)


def first_point(terms: Terms) -> Point:
    """Return where a sum begins: every member is asked for its keys."""
    return Point(Server(terms), STEPS[0], {member.name: b"" for member in terms.members})


def next_point(point: Point, answers: Mapping[str, bytes]) -> Point:
    """Return where a sum stands after the answers to a step before the last."""
    following = STEPS[STEPS.index(point.step) + 1]
    if point.step == "shares":
        server, messages = route_shares(point.server, answers)
        return Point(server, following, messages)
    work = {"keys": publish_keys, "upload": add_uploads, "confirmation": collect_confirmations}
    server, message = work[point.step](point.server, answers)
    asked = dict.fromkeys(server.present, message)
    missed = {name: point.messages[name] for name in asked if name in server.left_out}
    return Point(server, following, asked, missed)


def sum_uploads(terms: Terms, ask: AskStep, journal: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the sum of a round's uploads, and the names of the silos in it.

    `ask` sends the messages of a step and returns the answers. Raise `Missing` if too few silos are left.
    """
    point = load_point(journal, terms) or first_point(terms)
    while point.step != STEPS[-1]:
        point = next_point(point, ask(point.step, point.messages))
        save_point(journal, point)
    return from_cells(_unmasked(point, ask), terms), point.server.present


def _unmasked(point: Point, ask: AskStep) -> np.ndarray:
    """Return the cells of a sum; silos that missed a step are asked again only if the others are too few.

    A guard reveals shares only after it has confirmed, so a silo that missed that step takes it first.
    """
    prompt = {name: message for name, message in point.messages.items() if name not in point.missed}
    answers = dict(ask(point.step, prompt))
    try:
        return recover_sum(point.server, answers)
    except Missing:
        if not point.missed:
            raise
    back = ask("confirmation", point.missed)
    if back:
        answers |= ask(point.step, {name: point.messages[name] for name in back})
    return recover_sum(point.server, answers)


def save_point(path: Path, point: Point) -> None:
    """Write where a sum stands; it is on the disk when this returns."""
    server = point.server
    facts = {
        "schema": SCHEMA,
        "terms": server.terms.digest,
        "step": point.step,
        "peers": [peer.plain() for peer in server.peers],
        "survivors": server.survivors,
        "left_out": server.left_out,
        "messages": {name: message.hex() for name, message in point.messages.items()},
        "missed": {name: message.hex() for name, message in point.missed.items()},
    }
    head = json.dumps(facts).encode()
    total = b"" if server.total is None else server.total.tobytes()
    content = len(head).to_bytes(8, "little") + head + total
    content = hashlib.sha256(content).digest() + content

    def fill(beside: Path) -> None:
        beside.write_bytes(content)

    try:
        write(path, fill, OWNER_ONLY, lasting=True)
    except OSError as error:
        raise Problem(f"cannot write the journal '{path}': {reason(error)}") from error


def load_point(path: Path, terms: Terms) -> Point | None:
    """Return where a sum stood, or None if the journal is of another round; raise `Problem` if damaged."""
    if not path.exists():
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Problem(f"the journal '{path}' cannot be read: {reason(error)}; try again") from error
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        raise Problem(f"the journal '{path}' is damaged: restore it, because its round cannot go on without")
    length = int.from_bytes(content[32:40], "little")
    facts = json.loads(content[40 : 40 + length])
    if facts["schema"] != SCHEMA or facts["terms"] != terms.digest:
        return None
    words = np.frombuffer(content[40 + length :], dtype=WORD).copy()
    server = Server(
        terms,
        tuple(Peer(place, *map(bytes.fromhex, keys)) for place, *keys in facts["peers"]),
        tuple(facts["survivors"]),
        words if len(words) else None,
        facts["left_out"],
    )
    messages, missed = (
        {name: bytes.fromhex(text) for name, text in facts[key].items()} for key in ("messages", "missed")
    )
    return Point(server, facts["step"], messages, missed)
