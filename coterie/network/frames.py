"""Messages on a Unix socket: eight bytes of length, then the message.

A message that announces more than the limit is refused before any memory is set aside for it.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from pathlib import Path

from ..errors import Problem

LENGTH = struct.Struct(">Q")
PIECE = 2**20
MOST = 2**30  # bytes of a message, unless a plan says less


class Broken(Problem):
    """The other side went away, or sent what is no frame."""


def send(connection: socket.socket, message: bytes) -> None:
    """Send one message."""
    try:
        connection.sendall(LENGTH.pack(len(message)))
        if message:  # the other side may have answered an empty one, and closed, by now
            connection.sendall(message)
    except OSError as error:
        raise Broken(f"the connection broke while sending: {error.strerror or error}") from error


def receive(connection: socket.socket, most: int = MOST) -> bytes:
    """Return the next message; raise `Broken` if it is longer than `most` or cut off."""
    return bytes(receive_buffer(connection, most))


def receive_buffer(connection: socket.socket, most: int = MOST) -> bytearray:
    """Return the next message as `receive` does, in memory that may be written."""
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    if length > most:
        raise Broken(f"a message of {length:,} bytes was announced, but the limit is {most:,}")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytearray:
    """Return this many bytes, taken in pieces, so that nothing is set aside for bytes that never come."""
    received = bytearray()
    while len(received) < count:
        try:
            piece = connection.recv(min(count - len(received), PIECE))
        except OSError as error:
            raise Broken(f"the connection broke while receiving: {error.strerror or error}") from error
        if not piece:
            raise Broken("the connection was closed in the middle of a message" if received else "closed")
        received += piece
    return received


def connect(path: str | Path, seconds: float) -> socket.socket:
    """Return a connection to a Unix socket whose operations take at most `seconds` each."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        connection.connect(os.fspath(path))
    except OSError as error:
        connection.close()
        raise Broken(f"nobody answers at '{path}': {error.strerror or error}") from error
    return connection


def ask(path: str | Path, message: bytes, seconds: float, most: int = MOST) -> bytes:
    """Send a message to a Unix socket and return the answer; raise `Broken` if none comes in time."""
    with connect(path, seconds) as connection:
        send(connection, message)
        return receive(connection, most)


def is_readable(connection: socket.socket, seconds: float) -> bool:
    """Return whether something arrives within so many seconds; a process may have many files open."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(1000 * seconds))
