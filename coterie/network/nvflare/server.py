"""The server: NVFlare's, beside the coordinator. It passes messages on and is trusted with nothing else."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from ...errors import Problem, reason
from .kit import follow_move
from .process import arguments, prepare, run_until_stopped
from .settings import SERVER


def run_server(kit: Path, *, federation: str | None = None, root: bool = False) -> int:
    """Run the server until SIGTERM and return its exit code.

    It refuses to run as root unless `root` says so, from a kit that `check_kit` finds fault with, and on a
    port that is taken.
    """
    follow_move(kit)
    party = prepare(kit, SERVER, federation, root)
    check_port(party.port)
    from nvflare.private.fed.app.server import server_train

    return run_until_stopped(server_train.main, arguments(kit, party), lambda: None)


def check_port(port: int) -> None:
    """Raise `Problem` if another process listens on the port; NVFlare would share it without a word."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise Problem(f"the server cannot listen on port {port}: {reason(error)}") from error
