"""The silo's end inside NVFlare: a task's bytes go to the guard's Unix socket, and its answer goes back.

Where the guard listens and what it may take come from the node's environment, which its owner sets. Nothing
of that comes from a job.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from ..frames import MOST, Broken, connect, receive, send
from .job import ANSWER, MESSAGE, POLL, PROBLEM, TASK

SOCKET, SECONDS, LARGEST = "COTERIE_GUARD_SOCKET", "COTERIE_GUARD_SECONDS", "COTERIE_LARGEST_MESSAGE"


@dataclass(frozen=True)
class Limits:
    """Where the guard listens, how long it may take, and how many bytes a message or an answer may have."""

    socket: str
    seconds: float = 600.0
    most: int = MOST

    def environment(self) -> dict[str, str]:
        """Return the variables that tell a job process these limits."""
        return {SOCKET: self.socket, SECONDS: repr(self.seconds), LARGEST: str(self.most)}


def limits_from(environment: Mapping[str, str]) -> Limits:
    """Return the limits that the node's owner set."""
    return Limits(environment[SOCKET], float(environment[SECONDS]), int(environment[LARGEST]))


def ask_within(limits: Limits, message: bytes, stopped: Callable[[], bool]) -> bytes:
    """Return the guard's answer; raise `Broken` if it is late or too long, or if the job was stopped."""
    if len(message) > limits.most:
        raise Broken(f"the message has {len(message):,} bytes, but the silo's limit is {limits.most:,}")
    deadline = time.monotonic() + limits.seconds
    over = threading.Event()
    with connect(limits.socket, limits.seconds) as connection:

        def watch() -> None:
            while not over.wait(POLL):
                if time.monotonic() > deadline or stopped():
                    connection.shutdown(socket.SHUT_RDWR)
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            send(connection, message)
            return receive(connection, limits.most)
        except Broken as error:
            if time.monotonic() > deadline:
                raise Broken(f"the guard did not answer within {limits.seconds:g} s") from error
            raise
        finally:
            over.set()
            watcher.join()


class GuardExecutor(Executor):  # type: ignore[misc]
    """Forward each task to the guard."""

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Return the guard's answer, or one sentence that says why there is none."""
        message = shareable.get(MESSAGE)
        if task_name != TASK or not isinstance(message, bytes | bytearray | memoryview):
            return make_reply(ReturnCode.BAD_TASK_DATA, {PROBLEM: "the task carries no message"})
        try:
            answer = ask_within(limits_from(os.environ), bytes(message), lambda: bool(abort_signal.triggered))
        except Broken as error:
            self.log_warning(fl_ctx, str(error))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION, {PROBLEM: "the guard gave no answer"})
        reply = make_reply(ReturnCode.OK)
        reply[ANSWER] = answer
        return reply
