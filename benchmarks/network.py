"""Seconds per round with three silos on loopback, on top of guards that echo: `python -m benchmarks.network`."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from coterie.network.transport import SocketTransport, Transport
from tests.nvflare_parties import SILOS, Parties, reply, wait_for

SIZES = {"4 kB": (4_000, 40), "4 MB": (4_000_000, 15), "40 MB": (40_000_000, 5)}


def seconds_per_round(transport: Transport, size: int, rounds: int) -> list[float]:
    """Return how long each round took, without the first, which warms up."""
    took = []
    for _ in range(rounds + 1):
        messages = {silo: os.urandom(size) for silo in SILOS}
        began = time.perf_counter()
        answers = transport.exchange(messages, 300)
        took.append(time.perf_counter() - began)
        assert answers == {silo: reply(silo, message) for silo, message in messages.items()}
    return took[1:]


def row(name: str, cell: Callable[[int, int], list[float]]) -> str:
    cells = []
    for size, rounds in SIZES.values():
        took = cell(size, rounds)
        cells.append(f"{statistics.median(took):.3f} ({min(took):.3f} to {max(took):.3f})")
    return f"| {name} | " + " | ".join(cells) + " |"


def report() -> list[str]:
    """Return a table of seconds per round, and how long a job takes to start."""
    with tempfile.TemporaryDirectory() as folder:
        parties = Parties(Path(folder))
        try:
            parties.start_all()
            for silo in SILOS:
                wait_for(parties.socket_of(silo).exists, 30, "a guard's start")
            direct = SocketTransport({silo: parties.socket_of(silo) for silo in SILOS})
            lines = [row("guards' sockets only", lambda *case: seconds_per_round(direct, *case))]
            with parties.transport() as transport:
                transport.exchange(dict.fromkeys(SILOS, b""), 60)
                lines.append(row("NVFlare", lambda *case: seconds_per_round(transport, *case)))
            with parties.transport() as transport:
                began = time.perf_counter()
                transport.exchange(dict.fromkeys(SILOS, b""), 60)
                start = time.perf_counter() - began
        finally:
            parties.end()
    return [
        "| seconds per round, median (range) | " + " | ".join(f"{size} each way" for size in SIZES) + " |",
        "| --- | " + " | ".join("---" for _ in SIZES) + " |",
        *lines,
        "",
        f"A job of three connected nodes answers its first round after {start:.1f} s. "
        f"Load at the end: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores.",
    ]


if __name__ == "__main__":
    print("\n".join(report()))
