"""What a guard holds in a round, apart from the training's own memory: `python -m benchmarks.guard` shows it.

Peaks are the kernel's, of a process that returns freed vectors at once. The row `guard` replaces the work of a round,
once it has been done, by a copy of its result; `training` does the work without a guard; `both` is a guard as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import torch

from coterie.deploy.calls import CALLS
from coterie.deploy.guard import Guard
from coterie.deploy.guard_rounds import own_state
from coterie.engines.network import SiloSide
from coterie.guard.secret_streams import EntropyStreams
from coterie.network.transport import DirectTransport
from coterie.protocol.envelope import Envelope, seal
from coterie.protocol.messages import addressed, pack, unpack
from coterie.protocol.tree import map_leaves
from tests.federations import Small, config_of, digits

PARTS = ("guard", "training", "both")
ROUNDS = 4
RETURNED = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}  # freed memory leaves at once


def growth(work) -> int:
    """Return the bytes that this process grew by, at most, while it worked."""
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    work()
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0]) - before


def message_of(small: Small, kind: str, number: int, body: bytes) -> bytearray:
    """Return a request of the coordinator, as a guard's socket receives it."""
    request = Envelope(small.plan.training, number, CALLS[kind], kind, "coordinator", "silo-0", {}, body)
    return bytearray(seal(request, small.key))


def measured(part: str, method: dict, hidden: int) -> dict[str, int]:
    """Return the bytes of a model, and those that a part of a guard's work takes at most."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(
            method, train={"rounds": ROUNDS, "batch": 8}, model={"name": "mlp", "hidden": hidden}
        )
        small = Small(Path(folder), config, digits(3, 60), seconds=60.0)
        guard = small.guards(streams=None)["silo-0"]
        side = small.coordinator(DirectTransport({}))._side()
        body = pack(addressed(side.method.broadcast(side.begin().shared), 0, len(small.federation)))
        guard.answer(message_of(small, "plan", 0, small.plan.text.encode()))
        guard.answer(message_of(small, "round", 0, body))  # whatever is made once is there now
        real = SiloSide.work
        if part == "guard":
            result = worked(guard, small, body)
            SiloSide.work = lambda *given: map_leaves(torch.clone, result)
        try:
            grown = []
            for number in range(1, ROUNDS):
                if part == "training":
                    grown.append(growth(lambda number=number: worked(guard, small, body, number)))
                else:
                    message = message_of(small, "round", number, body)
                    grown.append(growth(lambda message=message: guard.answer(message)) + len(message))
                    if guard.store.answered(small.plan.training, number, CALLS["round"]) is None:
                        raise SystemExit(f"the guard refused round {number}")
        finally:
            SiloSide.work = real
            guard.close()
        return {"model": 4 * small.plan.blank.task.layout.size, "bytes": max(grown)}


def worked(guard: Guard, small: Small, body: bytes, number: int = 1):
    """Return the result of a round's work, done without the guard: nothing of it leaves."""
    prepared = guard.prepare(small.plan)
    streams = EntropyStreams({"silo-0": os.urandom(32)})
    streams.begin("silo-0", "0" * 64, number, number + 1)
    return prepared.side.work(number, unpack(body), own_state(guard, prepared), streams)


def in_models(part: str, method: dict, hidden: int) -> float:
    """Return what a part takes, in models; measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.guard_memory", part, json.dumps(method), str(hidden)]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **RETURNED}
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    return found["bytes"] / found["model"]


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("benchmarks.guard_memory is a part of another benchmark: run python -m benchmarks.guard")
    print(json.dumps(measured(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))))
