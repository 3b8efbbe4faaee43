"""Answer on a Unix socket: one request at a time, from users who are allowed to ask."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import Problem
from .frames import MOST, receive_buffer, send

CREDENTIALS = struct.Struct("3i")
IDLE = 30.0  # seconds that a client may keep the guard waiting in the middle of a message


class TimedOut(Problem):
    """An answer took longer than it may."""


def user_ids(users: Sequence[str]) -> frozenset[int]:
    """Return the ids of users by name or number; without any, that of the user who runs this."""
    ids = set()
    for user in users:
        try:
            ids.add(int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid)
        except KeyError as error:
            raise Problem(f"users: there is no user '{user}' on this machine") from error
    return frozenset(ids or {os.getuid()})


def peer_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end, as the kernel knows it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(raw)[1])


def listening(path: Path, mode: int = 0o660) -> socket.socket:
    """Return a socket at a path; a file that a killed process left there is replaced."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            probe.connect(os.fspath(path))
        server.close()
        raise Problem(f"another process answers at '{path}' already: only one may")
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        path.unlink()
    except OSError as error:
        server.close()
        raise Problem(f"cannot listen at '{path}': {error.strerror or error}") from error
    try:
        server.bind(os.fspath(path))
        path.chmod(mode)
        server.listen(16)
    except OSError as error:
        server.close()
        raise Problem(f"cannot listen at '{path}': {error.strerror or error}") from error
    return server


def serve(
    server: socket.socket,
    answer: Callable[[bytearray], bytes],
    allowed: frozenset[int],
    most: int = MOST,
    log: Callable[[str], None] = print,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Answer requests until told to stop; whatever one client does, the next one is served."""
    server.settimeout(0.5)
    while not stopping():
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        except OSError as error:
            if stopping():
                return
            log(f"a connection failed: {error}")
            continue
        with connection:
            try:
                connection.settimeout(IDLE)
                user = peer_of(connection)
                if user not in allowed:
                    log(f"refused: user {user} may not ask here")
                    continue
                send(connection, answer(receive_buffer(connection, most)))
            except Problem as problem:  # a broken connection, or an answer that came too late
                if str(problem) != "closed":
                    log(f"refused: {problem}")


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TimedOut` if the work inside takes longer; only in a process's main thread."""

    def late(number: int, frame: FrameType | None) -> Any:
        raise TimedOut(f"the answer took longer than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
