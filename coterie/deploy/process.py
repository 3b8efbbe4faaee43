"""A guard as a process: it answers on its Unix socket until it is told to stop."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import Problem
from ..network.serve import at_most, listening, serve, user_ids
from .guard import Guard, StreamsFor
from .guard_folder import GuardFolder


def run_guard(
    folder: str | Path, streams: StreamsFor | None = None, ready: Callable[[str], None] = lambda line: None
) -> None:
    """Answer requests for a silo until SIGTERM or SIGINT; only one guard may run in a folder."""
    place = GuardFolder(folder)
    lock = _locked(place.path / "lock")
    try:
        guard = Guard(place, streams)
        asked: list[int] = []

        def hear(number: int, frame: FrameType | None) -> Any:
            asked.append(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, hear)

        def answer(message: bytearray) -> bytes:
            with at_most(guard.policy.seconds):
                return guard.answer(message)

        server = listening(place.socket)
        try:
            guard.log(f"the guard of '{place.silo}' answers at {place.socket}")
            ready(f"the guard of '{place.silo}' answers at {place.socket}")
            serve(
                server,
                answer,
                user_ids(place.table.users),
                guard.policy.bytes,
                guard.log,
                lambda: bool(asked),
            )
        finally:
            server.close()
            place.socket.unlink(missing_ok=True)
            guard.close()
    finally:
        os.close(lock)


def _locked(path: Path) -> int:
    """Return a lock that no other process holds."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Problem(f"cannot write '{path}': {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise Problem(f"another guard runs in '{path.parent}': two may not share a ledger") from error
    return handle
