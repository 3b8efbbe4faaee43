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

from benchmarks.guard_memory import PARTS, in_models
from coterie.deploy.calls import CALLS
from coterie.engines.network import SiloSide
from coterie.network.transport import DirectTransport
from coterie.protocol.envelope import Envelope, seal
from coterie.protocol.messages import addressed, pack
from tests.federations import Small, config_of, digits

HIDDEN = {"10 k": 133, "1 M": 13_333}
ROUNDS = 12
METHODS = ({"name": "fedavg"}, {"name": "mr-mtl", "lam": 0.2})  # the second keeps a model at home


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


def answers(small: Small) -> tuple[list[float], list[float]]:
    """Return the guard's own seconds per new round, and those per repeated one."""
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
            message = bytearray(seal(request, small.key))
            for times in (new, repeated):
                began, watch.seconds = time.perf_counter(), 0.0
                guard.answer(message)
                if kind == "round":
                    times.append(time.perf_counter() - began - watch.seconds)
    finally:
        SiloSide.work = watch.real
        guard.close()
    return new[1:], repeated[1:]


def memory() -> list[str]:
    """Return a table of the most memory that a round takes, in models of a million numbers."""
    lines = ["| method | the guard without its training | the training without a guard | both |"]
    lines.append("| --- | --- | --- | --- |")
    for method in METHODS:
        cells = (f"{in_models(part, method, HIDDEN['1 M']):.1f}" for part in PARTS)
        lines.append(f"| {method['name']} | {' | '.join(cells)} |")
    return lines


def report() -> list[str]:
    """Return a table of a guard's own time per call, and one of its memory in models."""
    lines = ["| numbers in the model | ms per new call | ms per repeated call |"]
    lines.append("| --- | --- | --- |")
    for name, hidden in HIDDEN.items():
        with tempfile.TemporaryDirectory() as folder:
            train = {"rounds": ROUNDS, "batch": 8}
            config = config_of(train=train, model={"name": "mlp", "hidden": hidden})
            small = Small(Path(folder), config, digits(3, 60), seconds=60.0)
            new, repeated = answers(small)
        cells = [f"{1e3 * statistics.median(took):.1f} ({1e3 * min(took):.1f} to {1e3 * max(took):.1f})"
                 for took in (new, repeated)]  # fmt: skip
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return [
        *lines,
        "",
        *memory(),
        "",
        f"Load at the end: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores.",
    ]


if __name__ == "__main__":
    print("\n".join(report()))
