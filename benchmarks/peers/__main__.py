"""Run the same job with every party in turn and write benchmarks/peers.md.

python -m benchmarks.peers          batches of 10 and of 32
python -m benchmarks.peers 64       of other sizes
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import writers

from . import making
from .environments import PLACE, ROOT, last_line, prepare

HERE = Path(__file__).parent
TURNS, ROUNDS, PATIENCE = 3, 2, 900


@dataclass
class Party:
    """Who does the job: the command, its environment if it needs one, and what came out."""

    title: str
    command: list[str]
    needs: str | None = None
    goal: str = ""
    threads: int | None = None
    turns: list[list[float]] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    versions: str = ""
    reason: str | None = None

    def run(self, job: Path) -> None:
        """Do the job once, in a process of its own."""
        surroundings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" or self.needs is None}
        if self.threads is not None:
            surroundings["OMP_NUM_THREADS"] = str(self.threads)
        try:
            done = subprocess.run(
                [*self.command, str(job)],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                cwd=ROOT,
                env=surroundings,
            )
        except subprocess.TimeoutExpired:
            self.reason = f"no answer within {PATIENCE} s"
            return
        told = last_line(done.stdout) if done.stdout.strip() else ""
        if done.returncode or not told.startswith("{"):
            self.reason = f"failed: {last_line(done.stderr or done.stdout)}"
            return
        said = json.loads(done.stdout.strip().splitlines()[-1])
        self.turns.append(said["seconds"])
        self.processor += said["processor"]
        self.versions = said["versions"]


def parties() -> list[Party]:
    """Coterie first; the others are compared with it."""
    flower, pfl = PLACE / "flower" / "bin", PLACE / "pfl" / "bin"
    flower_script, pfl_script = str(HERE / "with_flower.py"), str(HERE / "with_pfl.py")
    return [
        Party("Coterie", [sys.executable, "-m", "benchmarks.peers.with_coterie"], goal="< 4 s"),
        Party("plain loop over silos", [sys.executable, str(HERE / "with_loop.py")]),
        Party("Flower, a client a core", [str(flower / "python"), flower_script], "flower", "3 x", threads=1),
        Party("Flower, as it comes", [str(flower / "python"), flower_script, "as-it-comes"], "flower", "3 x"),
        Party("pfl, one process", [str(pfl / "python"), pfl_script], "pfl", "1.5 x"),
        Party(
            "pfl, a process a core",
            [str(pfl / "torchrun"), "--nproc_per_node", str(os.cpu_count()), pfl_script],
            "pfl",
            "1.5 x",
            threads=1,
        ),
    ]


def measure(job: Path) -> list[Party]:
    """Have all take turns."""
    found = parties()
    for party in found:
        party.reason = prepare(party.needs) if party.needs else None
    for turn in range(TURNS):
        for party in found:
            if party.reason is None:
                party.run(job)
                shown = party.reason or [round(s, 2) for s in party.turns[-1]]
                print(f"turn {turn + 1}, {party.title}: {shown}", flush=True)
    return found


def table(found: list[Party]) -> list[str]:
    """Compare medians of time and of processor time."""
    lines = [
        "| party | a round, s | ratio | best round, s | ratio | processor time a round, s | ratio | goal |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    ours = found[0]
    for party in found:
        if party.reason is not None or not ours.turns:
            lines.append(f"| {party.title} | {party.reason} | | | | | | {party.goal} |")
            continue
        seconds = [second for turn in party.turns for second in turn]
        pairs = zip(party.turns, ours.turns, strict=False)
        ratio = statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)
        best = min(seconds) / min(second for turn in ours.turns for second in turn)
        spent = statistics.median(party.processor)
        lines.append(
            f"| {party.title} | {statistics.median(seconds):.2f} | {ratio:.2f} | {min(seconds):.2f} | {best:.2f} |"
            f" {spent:.2f} | {spent / statistics.median(ours.processor):.2f} | {party.goal} |"
        )
    return lines


def main() -> None:
    batches = [int(word) for word in sys.argv[1:]] or [10, writers.BATCH]
    lines = [
        "# The same job, side by side",
        "",
        "Written by `make bench-peers`: parties take turns, each in a process and an environment of its own. A ratio is",
        "the party's time over Coterie's. The job: FedAvg, whole silos protected; 200 silos, 100 a round, one local epoch",
        f"of plain SGD; a CNN of 99,678 parameters; uploads clipped to {writers.CLIP:g}, their mean noised. Every silo",
        "takes as many steps, of batches of the same size, with every party; Coterie draws Poisson batches of that",
        "expected size and converts pixels, the others get batches ready-made. Start-up and the first round do not",
        f"count. {TURNS} turns of {ROUNDS} rounds; the ratio of times is the median over the turns. Processor time is that",
        "of all processes of a party: other work on the machine changes it little, threads that wait by spinning do.",
        "",
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}.",
    ]
    for batch in batches:
        with tempfile.TemporaryDirectory() as folder:
            job = Path(folder) / "job.npz"
            name = making.make(job, ROUNDS, batch)
            found = measure(job)
        told = [f"- {party.title}: {party.versions}" for party in found if party.versions]
        lines += ["", f"## {name}, batches of {batch}", "", *table(found), "", *told]
    text = "\n".join(lines) + "\n"
    print(text)
    (ROOT / "benchmarks" / "peers.md").write_text(text)


if __name__ == "__main__":
    main()
