"""A federation of real processes on loopback: guards that echo, nodes, and a server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from coterie.network.nvflare.kit import Record, make_kits
from coterie.network.nvflare.transport import NVFlareTransport

ROOT = Path(__file__).resolve().parents[1]
PATH = f"{ROOT}:{sysconfig.get_path('purelib')}"
SILOS = ("north", "south", "west")
GUARD = """
import socket, sys, threading, time
from coterie.network.frames import Broken, receive, send
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(8)
def answer(connection):
    with connection:
        try:
            message = receive(connection)
            if message.startswith(b"wait "):
                time.sleep(float(message[5:]))
            send(connection, sys.argv[2].encode() + b":" + message[::-1])
        except Broken:
            pass
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""
NODE = """
import sys
from pathlib import Path
from coterie.network.nvflare.node import run_node
sys.exit(run_node(Path(sys.argv[1]), Path(sys.argv[2]), **{"root": True, **eval(sys.argv[3])}))
"""
SERVER = """
import sys
from pathlib import Path
from coterie.network.nvflare.server import run_server
sys.exit(run_server(Path(sys.argv[1]), root=True))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def reply(silo: str, message: bytes) -> bytes:
    """Return what the silo's guard answers."""
    return silo.encode() + b":" + message[::-1]


def python_for(user: int) -> str | None:
    """Return an interpreter that a user may run and that finds NVFlare, if there is one."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            command = [python, "-c", "import nvflare, coterie.network, cryptography"]
            subprocess.run(
                command, user=user, group=user, extra_groups=[], check=True, env={"PYTHONPATH": PATH}
            )
            return python
        except (OSError, subprocess.CalledProcessError):
            continue
    return None


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.1)


class Parties:
    """Kits, and the processes that were started from them."""

    def __init__(self, folder: Path, federation: str = "clinics", silos: tuple[str, ...] = SILOS) -> None:
        self.folder = folder
        self.record = Record(federation, "localhost", free_port(), silos)
        self.kits = make_kits(self.record, folder / "kits")
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        *command: str,
        environment: dict[str, str] | None = None,
        user: int | None = None,
        python: str = sys.executable,
    ) -> int:
        """Start a process of this name, perhaps as another user, and return its id."""
        with (self.folder / f"{name}.out").open("ab") as output:
            self.running[name] = subprocess.Popen(
                [python, *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                env={**os.environ, "PYTHONPATH": PATH, **(environment or {})},
            )
        return self.running[name].pid

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def socket_of(self, silo: str) -> Path:
        return self.folder / f"{silo}.socket"

    def start_guard(self, silo: str) -> int:
        self.socket_of(silo).unlink(missing_ok=True)
        return self.start(f"guard-{silo}", "-c", GUARD, str(self.socket_of(silo)), silo)

    def start_node(
        self, silo: str, user: int | None = None, python: str = sys.executable, **options: object
    ) -> int:
        kit, path = str(self.kits[silo]), str(self.socket_of(silo))
        return self.start(silo, "-c", NODE, kit, path, repr(options), user=user, python=python)

    def start_plain_node(self, silo: str) -> int:
        """Start a node as NVFlare itself does, without what Coterie puts around it."""
        settings = ["secure_train=true", "config_folder=config", "org=coterie", f"uid={silo}"]
        module = "nvflare.private.fed.app.client.client_train"
        kit = str(self.kits[silo])
        guard = {"COTERIE_GUARD_SOCKET": str(self.socket_of(silo)), "COTERIE_GUARD_SECONDS": "60"}
        return self.start(
            silo,
            *("-m", module, "-m", kit, "-s", "fed_client.json", "--set", *settings),
            environment={**guard, "COTERIE_LARGEST_MESSAGE": str(2**30)},
        )

    def start_server(self) -> int:
        return self.start("server", "-c", SERVER, str(self.kits["server"]))

    def start_all(self) -> None:
        """Start whatever does not run."""
        for silo in self.record.silos:
            if f"guard-{silo}" not in self.running:
                self.start_guard(silo)
        if "server" not in self.running:
            self.start_server()
        for silo in self.record.silos:
            if silo not in self.running:
                self.start_node(silo)

    def job_of(self, name: str) -> int:
        """Return the id of the newest job process of a node or of the server."""
        jobs = psutil.Process(self.running[name].pid).children()
        return max(jobs, key=psutil.Process.create_time).pid

    def kill(self, name: str) -> None:
        """Kill a process at once, and leave those it started to themselves."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str, seconds: float = 20.0) -> int:
        """End a process by SIGTERM and return its exit code."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(seconds)

    def end(self) -> None:
        """Kill whatever still runs, job processes included."""
        for process in self.running.values():
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for one in (process, *children):
                one.kill()
            process.wait()
        self.running.clear()

    @contextmanager
    def transport(self, **options: object) -> Iterator[NVFlareTransport]:
        transport = NVFlareTransport(self.kits["coordinator"], **options)  # type: ignore[arg-type]
        try:
            yield transport
        finally:
            transport.close()
