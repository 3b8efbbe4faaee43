"""Ctrl-C: held back while files are written; a training ends its round, so that nothing is done twice."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Self


class undisturbed:  # noqa: N801
    """Holds Ctrl-C back, and lets it happen at the end."""

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


class after_the_round(undisturbed):  # noqa: N801
    """Holds the first Ctrl-C back until a round has ended, which a training asks; a second one is at once."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def _hear(self, *_: Any) -> None:
        if self.heard:
            raise KeyboardInterrupt
        self.heard = True
        self._tell()

    def asked(self) -> bool:
        """Whether somebody wants it to stop."""
        return self.heard
