"""Environments of the peers, made when they are first asked for: .venv-peers/NAME."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".venv-peers"
NEEDS = {"flower": "flwr[simulation]==1.41.0", "pfl": "pfl==0.6.0"}


def prepare(name: str) -> str | None:
    """Make an environment unless it is there; give the reason if that fails."""
    place = PLACE / name
    ready = place / ".ready"
    if ready.exists():
        return None
    torch = next(
        line for line in (ROOT / "constraints.txt").read_text().split() if line.startswith("torch==")
    )
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # torch first and exactly: a range pulls CUDA packages
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [*pip, "setuptools", torch],
        [*pip, torch, NEEDS[name]],
    ):
        print("preparing", name, "...", flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"cannot be installed: {last_line(done.stderr or done.stdout)}"
    ready.touch()
    return None


def last_line(text: str) -> str:
    """Give the last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"
