"""The node: NVFlare's client at a silo, cut down to carrying messages to the guard.

It holds no data and needs no torch. Run it as a user of its own who can read nothing but its kit and connect
to nothing but the guard's socket.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...errors import Problem
from ..frames import MOST
from .greeting import Away, Stranger, greet
from .process import arguments, limit_memory, prepare, run_until_stopped
from .settings import ROOM, SILO

BASE, COPIES = 3 * 2**30, 8  # address space: what a process needs anyway, and how often it may hold a message


def run_node(
    kit: Path,
    guard_socket: Path,
    *,
    federation: str | None = None,
    seconds: float = 600.0,
    most: int = MOST,
    memory: int | None = None,
    root: bool = False,
    on_note: Callable[[str], None] = lambda line: None,
) -> int:
    """Run a node until SIGTERM and return its exit code.

    A guard may take `seconds` per answer. A message or an answer may have `most` bytes; give the same
    number to all silos and to the coordinator, because NVFlare ends the whole job when a node refuses a
    message. Each of the node's two processes may have `memory` bytes of address space, by default eight
    times `most` and 3 GiB. The node refuses to run as root unless `root` says so, and from a kit that
    `check_kit` finds fault with.
    """
    if seconds <= 0 or not 0 < most <= MOST:
        raise Problem(
            f"seconds must be positive and most between 1 and {MOST:,}, got {seconds:g} and {most:,}"
        )
    party = prepare(kit, SILO, federation, root)
    try:
        greet(party, kit)
    except Stranger:
        raise
    except Away as problem:
        on_note(f"{problem}; this node tries again until it gets there")
    if not guard_socket.exists():
        on_note(f"no guard answers at '{guard_socket}' yet: start it with `coterie guard run`")
    from nvflare.private.fed.app.client import client_train

    from .executor import Limits
    from .gate import gated
    from .worker import seal

    os.environ.update(Limits(str(guard_socket.absolute()), seconds, most).environment())
    limit_memory(BASE + COPIES * most if memory is None else memory)
    seal()
    client: list[Any] = []
    create = client_train.create_admin_agent

    def create_gated(processors: Iterable[Any], federated_client: Any, engine: Any) -> Any:
        client.append(federated_client)
        return create(gated(processors), federated_client, engine)

    client_train.create_admin_agent = create_gated

    def leave() -> None:
        for one in client:
            one.close()

    limit = most + ROOM
    args = arguments(kit, party, uid=party.name, streaming_max_blob_size=limit, max_message_size=limit)
    return run_until_stopped(client_train.main, args, leave)
