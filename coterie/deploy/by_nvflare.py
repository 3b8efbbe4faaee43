"""An NVFlare server and nodes on one machine, for trying a deployment whose messages NVFlare carries."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import Problem
from ..network.transport import Transport
from .accounts import Accounts, environment, hand_over, identity
from .guard_folder import GuardFolder
from .guard_processes import stop_all


@contextmanager
def carried_by_nvflare(
    guards: Mapping[str, GuardFolder], place: Path, accounts: Mapping[str, Accounts] | None = None
) -> Iterator[Transport]:
    """Reach guards through an NVFlare server and a node for each, with kits of their own."""
    try:
        from ..network.nvflare.kit import Record, make_kits
        from ..network.nvflare.transport import NVFlareTransport
    except ImportError as error:
        raise Problem("engine: NVFlare is not installed: pip install 'coterie[nvflare]'") from error
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kits = make_kits(Record("federation", "localhost", port, tuple(guards)), place / "kits")
    processes = []
    try:
        with (place / "engine.txt").open("ab") as output:
            processes.append(_start_part(["server", str(kits["server"])], None, place, output))
            for name, at in guards.items():
                user = None if accounts is None else accounts[name].node
                if user is not None:
                    hand_over(kits[name], user)
                command = ["node", str(kits[name]), "--guard", str(at.socket)]
                processes.append(_start_part(command, user, kits[name], output))
        transport = NVFlareTransport(kits["coordinator"], tuple(guards))
        try:
            yield transport
        finally:
            transport.close()
    finally:
        stop_all(processes)


def _start_part(command: list[str], user: int | None, folder: Path, output: Any) -> subprocess.Popen[bytes]:
    """Start one of NVFlare's processes in a folder, as a user of its own or as the one who asks."""
    as_root = ["--as-root"] if user is None else []
    return subprocess.Popen(
        [sys.executable, "-m", "coterie.cli.main", *command, *as_root],
        stdout=output,
        stderr=output,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env=environment(user, folder),
        **identity(user),
    )
