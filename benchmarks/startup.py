"""How soon the command line answers."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path


def report() -> list[str]:
    command = [str(Path(sys.executable).with_name("coterie")), "--help"]
    took = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    return [
        "## Start",
        "",
        f"`coterie --help`: {statistics.median(took):.2f} s (median of {len(took)}, goal 0.5).",
    ]
