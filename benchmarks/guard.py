"""What a guard adds to the work of a round, in time and in memory: `python -m benchmarks.guard`.

One guard with the model of a million numbers answers rounds in this process. The work is what the method does with the
examples; all else is the guard's: signatures, checks, its ledger, its memory on the disk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from coterie.deploy.calls import CALLS
from coterie.engines.network import SiloSide
from coterie.network.transport import DirectTransport
from coterie.protocol.envelope import Envelope, seal
from coterie.protocol.messages import addressed, pack
from tests.federations import Small, config_of, digits

HIDDEN = {"10 k": 133, "1 M": 13_333}
ROUNDS = 12


class Watch:
    """How long the work inside a guard takes."""

    def __init__(self) -> None:
        self.real, self.seconds = SiloSide.work, 0.0

    def work(self, side, *given):
        began = time.perf_counter()
        try:
            return self.real(side, *given)
        finally:
            self.seconds = time.perf_counter() - began


def peak() -> int:
    """The most bytes that this process has held."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def answers(small: Small) -> tuple[list[float], list[float], float]:
    """Return the guard's own seconds per new round, those per repeated one, and the bytes it grew by."""
    watch = Watch()
    guard = small.guards(streams=None)["silo-0"]
    coordinator = small.coordinator(DirectTransport({}))
    side = coordinator._side()
    body = pack(addressed(side.method.broadcast(side.begin().shared), 0, len(small.federation)))
    SiloSide.work = lambda *given: watch.work(*given)
    new, repeated = [], []
    try:
        for kind, number in [("plan", 0), *(("round", k) for k in range(ROUNDS))]:
            given = body if kind == "round" else small.plan.text.encode()
            request = Envelope(
                small.plan.training, number, CALLS[kind], kind, "coordinator", "silo-0", {}, given
            )
            message = seal(request, small.key)
            if kind == "round" and number == 0:
                before = psutil.Process().memory_info().rss
            for times in (new, repeated):
                began, watch.seconds = time.perf_counter(), 0.0
                guard.answer(message)
                if kind == "round":
                    times.append(time.perf_counter() - began - watch.seconds)
    finally:
        SiloSide.work = watch.real
        guard.close()
    return new[1:], repeated[1:], peak() - before


def report() -> list[str]:
    """Return a table of a guard's own time per call, and of its memory in models."""
    lines = ["| numbers in the model | ms per new call | ms per repeated call | growth in models |"]
    lines.append("| --- | --- | --- | --- |")
    for name, hidden in HIDDEN.items():
        with tempfile.TemporaryDirectory() as folder:
            train = {"rounds": ROUNDS, "batch": 8}
            config = config_of(train=train, model={"name": "mlp", "hidden": hidden})
            small = Small(Path(folder), config, digits(3, 60), seconds=60.0)
            new, repeated, grown = answers(small)
            size = 4 * small.plan.blank.task.layout.size
        cells = [f"{1e3 * statistics.median(took):.1f} ({1e3 * min(took):.1f} to {1e3 * max(took):.1f})"
                 for took in (new, repeated)]  # fmt: skip
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {grown / size:.1f} |")
    return [*lines, "", f"Load at the end: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores."]


if __name__ == "__main__":
    print("\n".join(report()))
