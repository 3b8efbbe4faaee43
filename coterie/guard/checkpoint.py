"""Checkpoints: the state of a training in one file, from which it resumes to the same bits.

A checkpoint holds what silos keep at home (heads, duals), so only its owner may read it.

Random streams are keyed by round, so a checkpoint needs no more than the number of the round to resume them.
For the ledgers it holds the rows of the claimed runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Problem, reason
from ..privacy.files import sync_folder
from ..protocol.messages import pack, unpack
from ..protocol.state import State
from ..protocol.tree import leaves

SCHEMA = "coterie-checkpoint/2"


class Recorded(NamedTuple):
    """Scores after a round: of each run over all silos, of each run and silo, and training losses.

    `losses[run]` is None for a run with privacy.
    """

    round: int
    totals: list[float]
    scores: list[list[float]]
    losses: list[list[float] | None]


History = list[Recorded]


@dataclass(frozen=True)
class Checkpoint:
    """A state, the scores so far, and the runs claimed in each silo's ledger."""

    state: State
    history: History
    claims: list[list[int]]


def save(path: Path, key: str, point: Checkpoint) -> None:
    """Write a checkpoint atomically; it is on disk when this returns."""
    facts = {
        "schema": SCHEMA,
        "key": key,
        "round": point.state.round,
        "history": point.history,
        "claims": point.claims,
    }
    head = json.dumps(facts).encode()
    body = len(head).to_bytes(8, "little") + head + pack((point.state.shared, point.state.own))
    beside = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise Problem(
            f"cannot write the checkpoint '{path}': {reason(error)}; free some space, or make it writable,"
            " then run the same again"
        ) from error


def load(path: Path, key: str) -> Checkpoint | None:
    """Return the checkpoint in a file, or None if there is no file.

    Raise `Problem` if it is damaged or belongs to another training.
    """
    if not path.exists():
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Problem(
            f"checkpoint '{path}' cannot be read: {reason(error)}; try again, or remove it to start over"
        ) from error
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        raise Problem(f"checkpoint '{path}' is damaged: remove it to start over")
    length = int.from_bytes(body[:8], "little")
    facts: dict[str, Any] = json.loads(body[8 : 8 + length])
    if facts["schema"] != SCHEMA or facts["key"] != key:
        raise Problem(f"checkpoint '{path}' belongs to another training: remove it, or choose another folder")
    shared, own = unpack(body[8 + length :])
    history = [Recorded(*row) for row in facts["history"]]
    return Checkpoint(State(facts["round"], shared, own), history, facts["claims"])


def digest_of(state: State, sealed: Sequence[bool] = ()) -> str:
    """Return a digest of a state, without the parts of silos' own state that only doors may read.

    Others see the digest, and could use it to test guesses about what it covers.
    """
    kept = [part for k, part in enumerate(leaves(state.own)) if not (sealed and sealed[k])]
    own = kept if any(sealed) else state.own
    return hashlib.sha256(pack((state.shared, own))).hexdigest()


def key_of(parts: Sequence[Any]) -> str:
    """Return a key of everything that must be equal for a training to resume."""
    return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()
