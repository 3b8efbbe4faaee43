"""A Flower server and nodes on one machine, for trying a deployment whose messages Flower carries.

They talk on this machine's own interface, without TLS. A real federation runs Flower with TLS and with keys
for its nodes; the guard's own signatures do not depend on that.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import Problem
from ..network.flower.transport import FlowerTransport, flower_command, flower_environment
from ..network.transport import Transport
from .accounts import Accounts, hand_over, identity
from .guard_folder import GuardFolder

START = 120.0  # seconds in which the server must listen
STOP = 20.0  # seconds that a process has to end
HOST, NAME = "127.0.0.1", "coterie"


@contextmanager
def carried_by_flower(
    guards: Mapping[str, GuardFolder], place: Path, accounts: Mapping[str, Accounts] | None = None
) -> Iterator[Transport]:
    """Reach guards through a Flower server and a node for each, as the nodes' users if there are accounts."""
    own = place / "flower" / "server"
    own.mkdir(parents=True)
    port, *others = free_ports(1 + len(guards))
    (own / "config.toml").write_text(connection_text(port))
    link = [flower_command("flower-superlink"), "--insecure", "--host", HOST, "--port", str(port)]
    with ExitStack() as stack:
        output = stack.enter_context((place / "engine.txt").open("ab"))
        start(stack, [*link, "--disable-runtime-dependency-installation"], own, None, output)
        await_port(port)
        for k, (name, at) in enumerate(guards.items()):
            home = place / "flower" / f"node-{k}"
            home.mkdir()
            user = None if accounts is None else accounts[name].node
            if user is not None:
                hand_over(home, user)
            command = [flower_command("flower-supernode"), "--insecure", "--superlink", f"{HOST}:{port}"]
            command += ["--port", str(others[k]), "--node-config", f"silo='{name}' guard='{at.socket}'"]
            start(stack, command, home, user, output)
        yield stack.enter_context(closing(FlowerTransport(NAME, tuple(guards), home=own)))


def connection_text(port: int) -> str:
    """Return Flower's configuration of a server on this machine."""
    return (
        f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{HOST}:{port}"\ninsecure = true\n'
    )


def start(stack: ExitStack, command: list[str], home: Path, user: int | None, output: Any) -> None:
    """Start a process in its own folder, in a group that is stopped when the stack is left."""
    environment = {**flower_environment(home), "HOME": str(home)}
    how: dict[str, Any] = {"stdout": output, "stderr": output, "stdin": subprocess.DEVNULL, **identity(user)}
    process = subprocess.Popen(command, cwd=home, env=environment, start_new_session=True, **how)
    stack.callback(stop, process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started, by force if they take too long."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody uses now."""
    with ExitStack() as opened:
        probes = [opened.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def await_port(port: int) -> None:
    """Wait until Flower's server listens; raise `Problem` if it does not."""
    until = time.monotonic() + START
    while time.monotonic() < until:
        try:
            socket.create_connection((HOST, port), 1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise Problem(f"Flower's server did not listen at port {port} within {START:g} seconds: see engine.txt")
