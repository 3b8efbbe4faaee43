"""A deployment of real processes that a supervisor starts again by the same commands, as systemd does.

Guards, nodes, NVFlare's server and the coordinator are commands of `coterie`. Guards alone are started by a line of
Python, because their noise must be known to the test. When a process ends, whatever it left behind is killed first.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil

from coterie.deploy.transcript import read_transcript
from coterie.network.nvflare.kit import Record, make_kits
from coterie.privacy.keys import _write_key
from coterie.privacy.ledger.ledger import read_ledger
from tests.federations import Small
from tests.helpers import vectors
from tests.nvflare_parties import ROOT, free_port

GUARD = """
import sys
import torch
from coterie.deploy.process import run_guard
from tests.federations import seeded
torch.set_num_threads(1)
run_guard(sys.argv[1], seeded)
"""


class Supervised:
    """Parties as processes: `look` starts again whatever has ended, until the coordinator ends well."""

    def __init__(self, folder: Path, small: Small) -> None:
        self.folder, self.small, self.names = folder, small, small.federation.names
        kits = make_kits(Record("clinics", "localhost", free_port(), self.names), folder / "kits")
        plan, key = folder / "plan.json", folder / "coordinator.key"
        small.plan.save(plan)
        _write_key(key, small.key, None)
        cli = ["-m", "coterie.cli.main"]
        self.training = folder / "training"
        self.commands = {"server": [*cli, "server", str(kits["server"]), "--as-root"]}
        for name in self.names:
            home = small.folder / name
            self.commands[f"guard {name}"] = ["-c", GUARD, str(home)]
            node = ["node", str(kits[name]), "--guard", str(home / "guard.sock"), "--as-root"]
            self.commands[f"node {name}"] = [*cli, *node]
        options = [
            "--folder",
            str(self.training),
            "--key",
            str(key),
            "--kit",
            str(kits["coordinator"]),
            "--json",
        ]
        self.commands["coordinator"] = [*cli, "coordinate", str(plan), *options]
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.family: dict[str, list[psutil.Process]] = {name: [] for name in self.commands}
        self.ended_by_itself: list[tuple[str, int]] = []
        self.killed: list[str] = []

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self.running[name] = subprocess.Popen(
                [sys.executable, *self.commands[name]],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=self.folder,
            )

    def look(self) -> bool:
        """Start again what has ended; return whether the coordinator has ended well."""
        for name in self.commands:
            process = self.running.get(name)
            if process is not None and process.poll() is None:
                self.family[name] = psutil.Process(process.pid).children(recursive=True)
                continue
            if name == "coordinator" and process is not None and process.returncode == 0:
                return True
            if process is not None and process.returncode != -9:
                self.ended_by_itself.append((name, process.returncode))
            self._clear(name)
            self.start(name)
        return False

    def _clear(self, name: str) -> None:
        """Kill what a dead process left behind, as the end of a systemd unit does."""
        for child in self.family[name]:
            if child.is_running():
                child.kill()
        self.family[name] = []

    def kill(self, name: str, dice: random.Random) -> bool:
        """Kill a process, or a job process of it, with -9; return whether there was one."""
        process = self.running[name]
        if process.poll() is not None:
            return False
        jobs = psutil.Process(process.pid).children() if name.startswith(("node", "server")) else []
        victim = dice.choice([psutil.Process(process.pid), *jobs])
        victim.kill()
        if victim.pid == process.pid:
            process.wait()
        self.killed.append(f"job of {name}" if victim.pid != process.pid else name)
        return True

    def rounds(self) -> int:
        """How many rounds the coordinator has seen answers for."""
        path = self.training / "transcript.jsonl"
        if not path.exists():
            return 0
        whole = path.read_bytes().rpartition(b"\n")[0].decode().splitlines()
        return max((line.count('"asked":"round"') and _number(line) + 1 for line in whole), default=0)

    def released(self, name: str) -> set[int]:
        """The rounds whose uploads of a silo have reached the coordinator."""
        lines = read_transcript(self.training / "transcript.jsonl", self.small.key.public)
        return {line["round"] for line in lines if line["silo"] == name and line["kind"] == "upload"}

    def charged(self, name: str) -> list[int]:
        """The rounds that a silo's ledger shows."""
        ledger = read_ledger(next((self.small.folder / name / "ledger").glob("*.sqlite")), only_read=True)
        state = ledger.state()
        ledger.close()
        return [k for run in state.runs for span in state.reserved(run) for k in range(*span)]

    def expected(self):
        """The vectors of the same training in one process."""
        return vectors(replace(self.small.plan.experiment(), federation=self.small.federation))[0]

    def end(self) -> None:
        for name, process in self.running.items():
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for each in (process, *children):
                each.kill()
            process.wait()
            self._clear(name)


def _number(line: str) -> int:
    return int(line.partition('"round":')[2].partition(",")[0])
