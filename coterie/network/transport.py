"""The coordinator's side of the seam: a message to each silo, and the answers that came in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from .frames import MOST, Broken, ask

Answer = Callable[[bytes], bytes]


class Transport(Protocol):
    """How a coordinator reaches silos; `problems` says why silos gave no answer in the last exchange."""

    problems: dict[str, str]

    def exchange(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Send each silo its message and return the answers; a silo that did not answer in time is absent."""
        ...

    def close(self) -> None:
        """End what was started for the exchange."""
        ...


class DirectTransport:
    """Silos in the same process: each is a function from bytes to bytes."""

    def __init__(self, silos: Mapping[str, Answer]) -> None:
        self.silos = dict(silos)
        self.problems: dict[str, str] = {}

    def exchange(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Ask one silo after the other."""
        return {name: self.silos[name](message) for name, message in messages.items() if name in self.silos}

    def close(self) -> None:
        """Do nothing: nothing was started."""


class SocketTransport:
    """Silos on the same machine: each guard listens on a Unix socket."""

    def __init__(self, sockets: Mapping[str, Path], most: int = MOST) -> None:
        self.sockets, self.most = dict(sockets), most
        self.problems: dict[str, str] = {}

    def exchange(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Ask all silos at once."""

        def one(name: str) -> bytes | None:
            try:
                return ask(self.sockets[name], messages[name], seconds, self.most)
            except Broken as problem:
                self.problems[name] = str(problem)
                return None

        self.problems = {name: "no socket was given for it" for name in messages if name not in self.sockets}
        names = [name for name in messages if name in self.sockets]
        if not names:
            return {}
        with ThreadPoolExecutor(len(names)) as pool:
            answers = pool.map(one, names)
        return {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}

    def close(self) -> None:
        """Do nothing: every exchange closes its own connections."""
