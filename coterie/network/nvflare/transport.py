"""The coordinator's `Transport` over NVFlare: it keeps one job running and sends batches through it.

A job that dies is replaced by a new one, which gets the messages that were not answered. Guards answer a
repeated message from storage, so sending twice is safe.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import Problem
from ..batches import Batch, Hello, receive_hello, send_batch, send_stop, take_answer
from ..frames import MOST, Broken, is_readable
from ..serve import listening
from .desk import Desk, JobEnd
from .greeting import Away
from .job import write_job
from .kit import check_kit, read_party
from .settings import COORDINATOR

PATIENCE = 120.0  # seconds until silos that do not connect are given up
GRACE = 30.0  # seconds after the silos' time in which the controller must finish a batch
LOOK = 1.0  # seconds between two looks at the server while a job is to start
AGAIN = 10.0  # seconds between two looks for nodes that did not reply
RESTARTS = 5  # jobs that may die in one exchange
STOP = 10.0  # seconds that `close` waits for the job to end


@dataclass
class Attempt:
    """What an attempt to start a job has found out."""

    present: set[str] = field(default_factory=set)
    refusals: dict[str, str] = field(default_factory=dict)
    away: str = ""

    @property
    def willing(self) -> set[str]:
        """The silos that are there and have not refused the job."""
        return self.present - set(self.refusals)

    def lacking(self, wanted: set[str]) -> str:
        """Return what must happen before a job can start; empty if nothing must."""
        missing = sorted(wanted - self.present - set(self.refusals))
        nodes = f"the node{'s' if len(missing) > 1 else ''} of {' and '.join(missing)}"
        return self.away or (f"{nodes} did not connect yet" if missing else "")

    def excuse(self, silos: Sequence[str], patience: float) -> str:
        """Return why no job could be started, in a sentence."""
        if self.away:
            return f"no job could be started within {patience:g} s: {self.away}"
        said = [f"{silo} refused the job ({words})" for silo, words in sorted(self.refusals.items())]
        if missing := [silo for silo in silos if silo not in self.present]:
            nodes = " and ".join(missing)
            said.append(
                f"no node of {nodes} connected within {patience:g} s: start it there, or check its kit"
            )
        return (
            "; ".join(said)
            or f"no job could be started within {patience:g} s: see log.txt in the server's kit"
        )


class NVFlareTransport:
    """Silos behind NVFlare nodes.

    `exchange` waits up to `patience` seconds for nodes that are not connected. After that it continues
    without them if at least `least` silos are there (by default all of them), and raises `Problem` if
    not. A silo that comes back is taken in again by the next exchange. Messages and answers have at most
    `most` bytes. `on_note` is told what is waited for.
    """

    def __init__(
        self,
        kit: Path,
        silos: Sequence[str] | None = None,
        *,
        patience: float = PATIENCE,
        least: int | None = None,
        most: int = MOST,
        on_note: Callable[[str], None] = lambda line: None,
    ) -> None:
        if problems := check_kit(kit, kind=COORDINATOR):
            raise Problem(f"the kit '{kit}' cannot be used: {'; '.join(problems)}")
        party = read_party(kit)
        self.silos = tuple(party.silos if silos is None else silos)
        if unknown := sorted(set(self.silos) - set(party.silos)):
            raise Problem(f"the kit '{kit}' knows no silo {' and '.join(unknown)}: make a new kit")
        self.patience, self.most, self.on_note = patience, most, on_note
        self.least = len(self.silos) if least is None else least
        self._desk = Desk(kit, party)
        self._folder = Path(tempfile.mkdtemp(prefix="coterie-"))
        self._listener = listening(self._folder / "socket", 0o600)
        self._connection: socket.socket | None = None
        self._job = ""
        self._reached: tuple[str, ...] = ()
        self._given_up: set[str] = set()
        self._silent: set[str] = set()  # silos that gave no answer in the last exchange
        self._gone: set[str] = set()  # silos whose nodes did not reply when we looked
        self._looked = 0.0
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
        if self._connection is not None and self._should_start_over():
            self._drop()
        for _ in range(RESTARTS):
            done = self._gone | set(answers)
            waiting = {silo: message for silo, message in messages.items() if silo not in done}
            try:
                connection = self._connection or self._start()
                self._carry(connection, waiting, seconds, answers)
            except Broken:
                self._drop()
                continue
            self._silent = set(messages) - set(answers)
            self.problems |= dict.fromkeys(self._gone & self._silent, "its node does not reply")
            self.problems = dict.fromkeys(self._silent, f"no answer within {seconds:g} s") | self.problems
            return answers
        why = "a message may be larger than a node takes; see log.txt in the server's kit"
        raise Problem(f"the job died {RESTARTS} times in one exchange: {why}")

    def close(self) -> None:
        """End the job and remove the socket."""
        if self._connection is not None:
            with contextlib.suppress(Broken):
                send_stop(self._connection)
                self._connection.settimeout(STOP)
                with contextlib.suppress(OSError):
                    self._connection.recv(1)
            self._connection.close()
            self._connection = None
        self._desk.close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _carry(
        self,
        connection: socket.socket,
        messages: Mapping[str, bytes],
        seconds: float,
        answers: dict[str, bytes],
    ) -> None:
        """Send a batch and put answers into `answers` as they come; raise `Broken` if the job dies.

        A node that was started again is not part of the running job. If one that owes an answer is found so
        twice, the job is as good as dead.
        """
        self._number += 1
        deadline = time.monotonic() + seconds + GRACE
        connection.settimeout(seconds + GRACE)
        batch = Batch(self._number, seconds, messages)
        send_batch(connection, batch)
        left_out: set[str] = set()
        while True:
            if not is_readable(connection, AGAIN):
                before, left_out = left_out, self._left_out(set(messages) - set(answers))
                if before & left_out or time.monotonic() > deadline:
                    raise Broken(f"the job does not reach {' and '.join(sorted(left_out)) or 'its silos'}")
                continue
            if not take_answer(connection, batch, self.most, answers, self.problems):
                return

    def _should_start_over(self) -> bool:
        """Return whether a node is connected that is not part of the running job; note those that are not."""
        suspects = (set(self.silos) - set(self._reached)) | self._silent
        if suspects <= self._gone and time.monotonic() < self._looked + AGAIN:
            return False
        return bool(self._left_out(suspects))

    def _left_out(self, suspects: set[str]) -> set[str]:
        """Return the silos whose nodes reply but do not run the job; note those whose nodes are gone."""
        try:
            nodes = self._desk.nodes()
        except Away:
            return set()
        finally:
            self._looked = time.monotonic()
            self._desk.close()
        self._gone = suspects - set(nodes)
        return {silo for silo in suspects - self._gone if self._job not in nodes[silo]}

    def _start(self) -> socket.socket:
        """Return the connection of a new job; raise `Problem` if too few silos connect."""
        attempt = self._attempt(set(self.silos) - self._given_up)
        if self._connection is None and self.least <= len(attempt.willing) < len(self.silos):
            attempt = self._attempt(attempt.willing)
        if self._connection is None:
            raise Problem(attempt.excuse(self.silos, self.patience))
        self._given_up = set(self.silos) - set(self._reached)
        return self._connection

    def _attempt(self, wanted: set[str]) -> Attempt:
        """Submit a job as soon as all wanted silos are there, and wait until it connects."""
        attempt, job, token, told = Attempt(), "", "", ""
        deadline = time.monotonic() + self.patience
        while self._connection is None and time.monotonic() < deadline:
            try:
                attempt.present = set(self._desk.nodes()) & set(self.silos)
                attempt.away = ""
                if not job and wanted <= attempt.willing:
                    token = secrets.token_hex(16)
                    job = self._submit(sorted(attempt.willing), token)
                elif job and (end := self._desk.end_of(job)):
                    job = ""
                    attempt.refusals |= _refusals(end, self.silos)
                    if not wanted <= attempt.willing:
                        break
            except Away as error:
                attempt.away = str(error)
            if (lacking := attempt.lacking(wanted)) not in ("", told):
                self.on_note(f"waiting up to {self.patience:g} s: {lacking}")
                told = lacking
            if attempt.away:
                time.sleep(LOOK)
                continue
            self._accept(token)
        if self._connection is None and job:
            self._desk.abort(job)
        return attempt

    def _submit(self, silos: list[str], token: str) -> str:
        folder = Path(tempfile.mkdtemp(dir=self._folder)) / "coterie"
        return self._desk.submit(write_job(folder, silos, self._folder / "socket", token, self.most))

    def _accept(self, token: str) -> None:
        """Take the connection of the job with this token, if it comes within a second."""
        if not is_readable(self._listener, LOOK):
            return
        connection, _ = self._listener.accept()
        connection.settimeout(GRACE)
        try:
            hello: Hello | None = receive_hello(connection)
        except Broken:
            hello = None
        if hello is None or not token or hello.token != token:
            connection.close()
            return
        self._connection, self._job, self._reached = connection, hello.job, hello.silos
        self._silent, self._gone = set(), set()
        self._desk.close()

    def _drop(self) -> None:
        """Give up the job that is running."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._desk.abort(self._job)


def _refusals(end: JobEnd, silos: Sequence[str]) -> dict[str, str]:
    """Return which silos refused a job when they were given it, and what they said."""
    said = (line.partition(": ")[::2] for line in end.details)
    return {
        silo: words for silo, words in said if silo in silos and words != "OK" and "no reply" not in words
    }
