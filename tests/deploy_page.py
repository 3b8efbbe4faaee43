"""Follow docs/deploy.md word by word: its commands, at machines with networks and addresses of their own.

Machines are network namespaces of Linux, joined by a bridge. They share this machine's files, so users are made once.
What people do by hand is done here: sending files, editing nothing, and saying yes to a plan.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.readable import held

PAGE = Path(__file__).resolve().parents[1] / "docs" / "deploy.md"
BLOCK = re.compile(
    r"<!-- run at (each silo|the coordinator)( once)?, as ([\w-]+)(, until the end)? -->\n```\n(.*?)```", re.S
)
SILOS = ("north", "south", "west")
MACHINES = ("coordinator", *SILOS)
BRIDGE, MEETING = "coterie0", Path("/var/lib/coterie")
HOME = Path("/home")
USERS = ("coterie-guard", "coterie-node", "coterie")
MARK = Path(
    "/var/tmp/coterie-page-test"
)  # it exists, and is locked, as long as machines and users are the test's


@dataclass(frozen=True)
class Block:
    """Commands of the page, where and as whom they are run, and whether they run until the end."""

    everywhere: bool
    once: bool
    user: str
    lasting: bool
    text: str


def blocks() -> list[Block]:
    found = BLOCK.findall(PAGE.read_text())
    return [
        Block(where == "each silo", bool(once), user, bool(lasting), text)
        for where, once, user, lasting, text in found
    ]


def run(*words: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], check=True, capture_output=True, text=True, **options
    )


class Page:
    """Machines, the users that the page makes, and the processes that its commands started."""

    def __init__(self, folder: Path, programs: Path, records: Callable[[str], str]) -> None:
        self.folder, self.programs, self.records = folder, programs, records
        self.lasting: dict[str, subprocess.Popen[bytes]] = {}
        self.said: list[str] = []

    def make_machines(self) -> None:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "link", "set", BRIDGE, "up")
        for k, name in enumerate(MACHINES):
            machine, cable = f"coterie-{name}", f"cot-{name[:8]}"
            run("ip", "netns", "add", machine)
            run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", machine)
            run("ip", "link", "set", cable, "master", BRIDGE, "up")
            for words in (f"addr add 10.77.0.{k + 1}/24 dev eth0", "link set eth0 up", "link set lo up"):
                run("ip", "-n", machine, *words.split())
            hosts = Path("/etc/netns") / machine / "hosts"
            hosts.parent.mkdir(parents=True)
            hosts.write_text("127.0.0.1 localhost\n10.77.0.1 coordinator.example.org\n")

    def remove(self) -> None:
        """End all processes, and remove machines and users."""
        for name, process in self.lasting.items():
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self.said.append(f"{name} had to be killed")
        remove_all()

    def at(self, machine: str, user: str, text: str) -> list[str]:
        """Return the command line of a shell at a machine, as a user in its home folder."""
        home = "/root" if user == "root" else f"/home/{user}"
        path = f"{self.programs}:/usr/sbin:/usr/bin:/sbin:/bin"
        shell = ["env", "-i", f"PATH={path}", f"HOME={home}", "OMP_NUM_THREADS=1", "bash", "-euc"]
        script = f"cd {home}\n{'exec ' if text.count(chr(10)) == 1 else ''}{text}"
        return ["ip", "netns", "exec", f"coterie-{machine}", "runuser", "-u", user, "--", *shell, script]

    def follow(self, block: Block) -> None:
        """Run a block wherever the page says; at another silo, it is about that silo."""
        machines = SILOS[: 1 if block.once else None] if block.everywhere else ("coordinator",)
        for machine in machines:
            text = re.sub(r"\bnorth\b", machine, block.text) if block.everywhere else block.text
            words = self.at(machine, block.user, text)
            if "records.csv" in text:
                (HOME / block.user / "records.csv").write_text(self.records(machine))
            if block.lasting:
                log = self.folder / f"{machine}-{block.user}.txt"
                with log.open("wb") as output:
                    self.lasting[f"{machine} {block.user}"] = subprocess.Popen(
                        words, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
                    )
                continue
            done = subprocess.run(words, input="y\n", capture_output=True, text=True, timeout=600)
            self.said.append(f"{machine} {block.user}: {text}{done.stdout}{done.stderr}")
            assert done.returncode == 0, self.said[-1]

    def send(self, source: str, target: str, owner: str) -> None:
        """Take files from one user to another, as people do."""
        into = HOME / target
        (shutil.copytree if (HOME / source).is_dir() else shutil.copy)(HOME / source, into)
        run("chown", "-R", f"{owner}:{owner}", into)

    def deliver(self) -> None:
        """Send whatever exists by now and was not sent yet."""
        letters = [("coterie/plan.json", "coterie-guard/plan.json", "coterie-guard")]
        letters += [("coterie/keys/coordinator.pub", "coterie-guard/coordinator.pub", "coterie-guard")]
        for silo in SILOS:
            letters += [(f"coterie/kits/{silo}", f"coterie-node/{silo}", "coterie-node")]
            letters += [(f"coterie-guard/{silo}.json", f"coterie/{silo}.json", "coterie")]
        for source, target, owner in letters:
            if (HOME / source).exists() and not (HOME / target).exists():
                self.send(source, target, owner)

    def open_ports(self, machine: str) -> set[str]:
        """The TCP ports of a machine that others can reach: those on which somebody listens beyond loopback."""
        lines = run("ip", "netns", "exec", f"coterie-{machine}", "ss", "-Hltn").stdout.splitlines()
        places = [line.split()[3].rpartition(":")[::2] for line in lines]
        return {port for address, port in places if address not in ("127.0.0.1", "[::1]")}

    def received(self, machine: str) -> int:
        """The bytes that have arrived at a machine."""
        path = "/sys/class/net/eth0/statistics/rx_bytes"
        return int(run("ip", "netns", "exec", f"coterie-{machine}", "cat", path).stdout)


def wait_for_socket(path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path}"
        time.sleep(0.2)


def remove_all() -> None:
    """Remove the machines, with every process in them, the users and their folders, whoever started them."""
    for name in MACHINES:
        machine = f"coterie-{name}"
        inside = subprocess.run(
            ["ip", "netns", "pids", machine], capture_output=True, text=True
        ).stdout.split()
        for process in inside:  # this network is the test's, so these are, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        for words in (f"link del cot-{name[:8]}", f"netns del {machine}"):
            subprocess.run(["ip", *words.split()], capture_output=True)
        shutil.rmtree(f"/etc/netns/{machine}", ignore_errors=True)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)
    for user in USERS:
        subprocess.run(["userdel", "--force", "--remove", user], capture_output=True)
    shutil.rmtree(MEETING, ignore_errors=True)


@contextmanager
def alone() -> Iterator[str | None]:
    """Return why the page cannot be followed here; None if it can. What a killed test left behind is removed."""
    if (reason := why_not()) is not None:
        yield reason
        return
    left = MARK.exists()
    if not left and (reason := taken()) is not None:
        yield reason
        return
    MARK.touch()
    if (lock := held(MARK)) is None:
        yield "this page is followed by another test at the moment"
        return
    try:
        if left:
            remove_all()
        yield None
        remove_all()
    finally:
        MARK.unlink()
        os.close(lock)


def why_not() -> str | None:
    """Why the page can never be followed on this machine."""
    if os.geteuid() != 0:
        return "only root can make users and networks"
    missing = [word for word in ("ip", "ss", "runuser", "useradd", "userdel") if shutil.which(word) is None]
    return f"this machine has no {' and no '.join(missing)}" if missing else None


def taken() -> str | None:
    """Which users, folder or bridge of the page exist here already, for another purpose than this test."""
    found = [user for user in USERS if (HOME / user).exists()]
    found += [str(path) for path in (MEETING, Path("/sys/class/net") / BRIDGE) if path.exists()]
    return f"{', '.join(found)}: exists here already" if found else None
