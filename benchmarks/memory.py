"""Working memory stays within the limit: a process for each limit, its peak above the start (Linux)."""

from __future__ import annotations

import subprocess
import sys

LIMITS = (64, 256, 1024)
CODE = """
import coterie, sys, torch
from pathlib import Path
from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.examples import Examples
from coterie.cohort.sampling import Work
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import make_task

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))

coterie.tune_process()
limit, silos, size = int(sys.argv[1]), 20, 512
task = make_task("cnn", shape=(28, 28), classes=10)
x, y = torch.rand(silos, size, 28, 28), torch.zeros(silos, size, dtype=torch.int64)
names = tuple(map(str, range(silos)))
full = torch.ones(1, silos)
settings = Settings(0.1 * full, full, full)

def train(batch, memory):
    work = (Work(size, batch, 2),) * silos
    cohort = Cohort(task, Examples(names, (size,) * silos, x, y, 1.0), work, settings, memory)
    start = torch.zeros(1, silos, task.layout.size)
    descend(cohort, start, SeededStreams(((0, 0),)), 0, 0)

train(1, 2**26)  # imports, kernels, models
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = status("VmRSS")
train(256, limit * 2**20)
print(status("VmHWM") - before)
"""


def report() -> list[str]:
    lines = [
        "## Memory",
        "",
        "Peak of a process above its start (data, models and libraries loaded), training a CNN on 20 silos with"
        " batch 256, against the limit `train.memory`.",
        "",
        "| limit, MiB | peak above start, MiB |",
        "| ---: | ---: |",
    ]
    for limit in LIMITS:
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(limit)], check=True, capture_output=True, text=True
        )
        lines.append(f"| {limit} | {float(done.stdout):.0f} |")
    return lines
