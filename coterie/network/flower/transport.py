"""The coordinator's `Transport` over Flower: it keeps one run going and sends batches through it.

A run that dies is replaced by a new one, which gets the messages that were not answered. Guards answer a
repeated message from storage, so sending twice is safe.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import Problem
from ..batches import Batch, Hello, receive_hello, send_batch, send_stop, take_answer
from ..frames import MOST, Broken
from ..serve import listening
from .app import run_settings, write_app

PATIENCE = 120.0  # seconds in which a run must start
GRACE = 30.0  # seconds after the silos' time in which the run must finish a batch
RESTARTS = 5  # runs that may die in one exchange
STOP = 10.0  # seconds that `close` waits for the run to end
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


class FlowerTransport:
    """Silos behind Flower nodes, reached through a connection that Flower's configuration names.

    The Flower server must run on this machine, as a user who may connect to the coordinator's socket: the
    one who runs this. `home` is Flower's folder, if it is not the user's own.
    """

    def __init__(
        self,
        connection: str,
        silos: Sequence[str],
        *,
        home: Path | None = None,
        patience: float = PATIENCE,
        most: int = MOST,
    ) -> None:
        self.name, self.silos, self.home = connection, tuple(silos), home
        self.patience, self.most = patience, most
        self._folder = Path(tempfile.mkdtemp(prefix="coterie-"))
        self._app = write_app(self._folder / "app")
        self._listener = listening(self._folder / "socket", 0o600)
        self._connection: socket.socket | None = None
        self._number = 0
        self.problems: dict[str, str] = {}  # why silos gave no answer in the last exchange

    def exchange(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Send each silo its message and return the answers; a silo that did not answer in time is absent."""
        if unknown := sorted(set(messages) - set(self.silos)):
            raise Problem(f"no silo is called {' or '.join(unknown)}")
        if large := sorted(silo for silo, message in messages.items() if len(message) > self.most):
            raise Problem(f"the message to {' and '.join(large)} has more than {self.most:,} bytes")
        answers: dict[str, bytes] = {}
        self.problems = {}
        deadline = time.monotonic() + seconds
        for _ in range(RESTARTS):
            left = {silo: message for silo, message in messages.items() if silo not in answers}
            if self._connection is None:
                self._connection = self._start()
            self._number += 1
            wait = max(deadline - time.monotonic(), 1.0)
            self._connection.settimeout(wait + GRACE)
            try:
                batch = Batch(self._number, wait, left)
                send_batch(self._connection, batch)
                while take_answer(self._connection, batch, self.most, answers, self.problems):
                    pass
                return answers
            except Broken:
                self._connection.close()
                self._connection = None
        raise Problem(
            f"the run died {RESTARTS} times in one exchange: see what Flower's server logged, with"
            f" `flwr log` or in its own output"
        )

    def close(self) -> None:
        """End the run and remove the socket."""
        if self._connection is not None:
            with contextlib.suppress(Broken, OSError):
                send_stop(self._connection)
                self._connection.settimeout(STOP)
                self._connection.recv(1)
            self._connection.close()
            self._connection = None
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> socket.socket:
        """Start a run and return its connection; raise `Problem` if it does not come."""
        token = secrets.token_hex(16)
        settings = run_settings(self._folder / "socket", token, self.most)
        command = [flower_command("flwr"), "run", str(self._app), self.name, "--run-config", settings]
        done = subprocess.run(
            command, capture_output=True, text=True, env=flower_environment(self.home), check=False
        )
        words = " ".join(f"{done.stdout} {done.stderr}".translate(FRAME).split())
        if done.returncode != 0 or "started run" not in words:
            raise Problem(f"Flower started no run through the connection '{self.name}': {words[-300:]}")
        deadline = time.monotonic() + self.patience
        while (wait := deadline - time.monotonic()) > 0:
            self._listener.settimeout(wait)
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                break
            connection.settimeout(GRACE)
            if _token(connection) == token:
                return connection
            connection.close()
        raise Problem(
            f"the run did not connect within {self.patience:g} s: the Flower server must run on this machine,"
            " as the same user, with coterie installed"
        )


FRAME = str.maketrans("│╭╮╰╯─", "      ")


def _token(connection: socket.socket) -> str | None:
    try:
        hello: Hello = receive_hello(connection)
    except Broken:
        return None
    return hello.token


def flower_command(name: str) -> str:
    """Return the path of one of Flower's programs; raise `Problem` if it is not installed."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise Problem(f"Flower is not installed: there is no program '{name}'; pip install 'coterie[flower]'")
    return found


def flower_environment(home: Path | None = None) -> dict[str, str]:
    """Return the environment of Flower's programs: they tell nobody, and find each other."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    place = {} if home is None else {"FLWR_HOME": str(home)}
    return {**os.environ, **QUIET, **place, "PATH": path}
