"""Let a node's question for a task wait until there is one, instead of asking again and again.

A question passes through four processes and costs about 15 ms of a core. Three nodes that ask ten times per
second take half a core from the guards, and a message still waits for the next question. So the server holds
a question for up to a second. NVFlare answers questions from a pool of 64 threads, so only a few are held at
once; the nodes of the others ask again after a while, as NVFlare does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.private.defs import TaskConstant

HOLD = 1.0  # seconds that a question waits for a task; a node gives up after five
MOST = 32  # questions that wait at once
SOON = 0.01  # seconds until a node whose questions are held asks again

Ask = Callable[[Any, FLContext], tuple[str, str, Any]]


class Waiting:
    """Which silos have a message to fetch, and the questions that wait for one."""

    def __init__(self, seconds: float = HOLD, most: int = MOST) -> None:
        self.seconds, self.most = seconds, most
        self._changed = threading.Condition()
        self._due: set[str] = set()
        self._held = 0
        self._closed = False

    def announce(self, silo: str) -> None:
        """Say that there is a message for a silo."""
        with self._changed:
            self._due.add(silo)
            self._changed.notify_all()

    def close(self) -> None:
        """Hold no question any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def hold(self, silo: str) -> bool:
        """Return when there is a message for a silo, or time is up; return False at once if too many wait."""
        with self._changed:
            if self._held >= self.most and silo not in self._due:
                return False
            self._held += 1
            try:
                self._changed.wait_for(lambda: self._closed or silo in self._due, self.seconds)
                self._due.discard(silo)
            finally:
                self._held -= 1
            return True

    def holding(self, ask: Ask) -> Ask:
        """Return a function that answers a question as `ask` does, but holds it first."""

        def held(client: Any, fl_ctx: FLContext) -> tuple[str, str, Any]:
            waited = self.hold(client.name)
            name, number, data = ask(client, fl_ctx)
            if waited and data is not None:
                data.set_header(TaskConstant.WAIT_TIME, SOON)
            return name, number, data

        return held

    def attach(self, fl_ctx: FLContext) -> None:
        """Hold the questions that reach the job of this context."""
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        if runner is None or not hasattr(runner, "process_task_request"):
            raise RuntimeError("NVFlare has changed: its job answers no questions for tasks")
        runner.process_task_request = self.holding(runner.process_task_request)
