"""Ctrl-C: held back while files are written, and until a training has finished its round."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Self


class InterruptsHeld:
    """A context that holds Ctrl-C back and raises `KeyboardInterrupt` when it ends."""

    def __init__(self) -> None:
        self.heard = False
        self._before: Any = None

    def __enter__(self) -> Self:
        try:
            self._before = signal.signal(signal.SIGINT, self._hear)
        except ValueError:  # not the main thread
            self._before = None
        return self

    def _hear(self, *_: Any) -> None:
        self.heard = True

    def __exit__(self, *_: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self.heard:
            raise KeyboardInterrupt


class InterruptAfterRound(InterruptsHeld):
    """A context that notes the first Ctrl-C, so that a training can stop after its round.

    The first Ctrl-C calls `on_first`; a second one raises `KeyboardInterrupt` at once.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        super().__init__()
        self._on_first = on_first

    def _hear(self, *_: Any) -> None:
        if self.heard:
            raise KeyboardInterrupt
        self.heard = True
        self._on_first()

    def asked(self) -> bool:
        """Return whether the training was asked to stop."""
        return self.heard
