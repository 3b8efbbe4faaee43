"""`coterie federate`, started by root: guards and nodes have users of their own, who cannot reach each other's.

Real processes and real users; run by `make test-deploy`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.readable import environment, open_folder

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users"),
]
CONFIG = """
[data]
source = "digits"
rows = 240
silos = 3
[train]
rounds = 3
lr = 0.5
[privacy]
epsilon = 4.0
delta = 1e-3
[[method]]
name = "fedavg"
"""
DRIVER = """
import ctypes, json, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
ctypes.CDLL(None).prctl(1, signal.SIGINT)  # if the test is killed, this is interrupted, and stops all it started
from pathlib import Path
from coterie.deploy.federate import Listening, federate
from coterie.experiment.config.schema import read
place, go = Path(sys.argv[2]), Path(sys.argv[3])
def on_round(label, done, rounds):
    (place / "round").write_text(str(done))
    while done == 1 and not go.exists():
        time.sleep(0.1)
notes = []
trainings = federate(
    read(sys.argv[1]), place, engine="nvflare", listening=Listening(notes.append, on_round)
)
print(json.dumps({"notes": notes, "missing": list(trainings[0].outcome.missing), "reports": trainings[0].reports}))
"""
PROBE = """
import ctypes, json, os, socket, sys
attempts = json.loads(sys.argv[1])
def ptrace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, int(pid), None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(int(pid), 0)
    libc.ptrace(17, int(pid), None, None)
def memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as held:
        held.seek(int(maps.readline().partition("-")[0], 16))
        assert held.read(16)
def connect(path):
    socket.socket(socket.AF_UNIX).connect(path)
def append(path):
    open(path, "ab").close()
acts = {"list": os.listdir, "read": lambda path: open(path, "rb").read(), "create": append, "remove": os.unlink,
        "connect": connect, "memory": memory, "ptrace": ptrace, "kill": lambda pid: os.kill(int(pid), 0)}
said = []
for act, what in attempts:
    try:
        acts[act](what)
        said.append("done")
    except PermissionError:
        said.append("refused")
    except OSError as error:
        said.append(str(error))
print(json.dumps(said))
"""


class Federation:
    """A federation that root has started, held after its first round."""

    def __init__(self, folder: Path) -> None:
        self.place, self.go = folder / "place", folder / "go"
        self.bin = environment(folder / "environment")
        if self.bin is None:
            pytest.skip("no Python on this machine can be run by all users")
        (folder / "config.toml").write_text(CONFIG)
        words = [
            str(self.bin / "python"),
            "-c",
            DRIVER,
            str(folder / "config.toml"),
            str(self.place),
            str(self.go),
        ]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.said = folder / "said"
        with self.said.open("wb") as output:
            self.driver = subprocess.Popen(
                words, stdout=output, stderr=subprocess.STDOUT, env=variables, cwd=folder
            )
        deadline = time.monotonic() + 240
        while not (self.place / "round").exists():
            assert self.driver.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, "the first round did not end"
            time.sleep(0.2)

    def processes(self, word: str) -> list[psutil.Process]:
        """The processes of guards or nodes, in the order of their start."""
        found = psutil.Process(self.driver.pid).children()
        return [each for each in found if f" {word} " in f" {' '.join(each.cmdline())} "]

    def probe(self, user: int, *attempts: tuple[str, object]) -> list[str]:
        """What became of attempts that a process of a user made."""
        words = [
            str(self.bin / "python"),
            "-c",
            PROBE,
            json.dumps([[act, str(what)] for act, what in attempts]),
        ]
        who = {"user": user, "group": user, "extra_groups": []}
        done = subprocess.run(words, capture_output=True, check=True, cwd="/", env={"HOME": "/"}, **who)
        return json.loads(done.stdout)

    def end(self) -> dict:
        self.go.touch()
        self.driver.wait(240)
        return json.loads(self.said.read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def federation():
    with open_folder() as folder:
        made = Federation(folder)
        try:
            yield made
        finally:
            if made.driver.poll() is None:
                made.go.touch()
                made.driver.wait(240)


def test_every_guard_and_node_has_a_user_of_its_own(federation):
    parts = [*federation.processes("guard"), *federation.processes("node")]
    users = [process.uids().real for process in parts]
    assert len(set(users)) == len(users) == 6
    assert 0 not in users
    for process in parts:
        assert {child.uids() for child in process.children()} <= {process.uids()}
        assert not set(os.getgrouplist("root", 0)) & set(process.gids())


def secrets_of(federation, k: int) -> list[tuple[str, object]]:
    """Everything about a silo's guard that only its own user may do."""
    guard, folder = federation.processes("guard")[k], federation.place / "guards" / f"silo-{k}"
    ledger = next((folder / "ledger").glob("*.sqlite"))
    files = [("read", folder / name) for name in ("data.npz", "policy.toml", "guard.sqlite", "log.txt")]
    key = next((folder / "keys").glob("*.key"))
    process = [
        ("read", f"/proc/{guard.pid}/environ"),
        ("memory", guard.pid),
        ("ptrace", guard.pid),
        ("kill", guard.pid),
    ]
    return [("list", folder), ("read", ledger), ("read", key), ("create", folder / "new"), *files, *process]


def test_a_node_reaches_nothing_of_its_guard_but_the_socket(federation):
    guards, nodes = federation.processes("guard"), federation.processes("node")
    attempts = secrets_of(federation, 0)
    assert set(federation.probe(nodes[0].uids().real, *attempts)) == {"refused"}
    own = federation.probe(guards[0].uids().real, *[each for each in attempts if each[0] != "create"])
    assert set(own) == {"done"}, own  # the probe can succeed: only the user makes the difference
    sockets = federation.place / "sockets" / "silo-0"
    said = federation.probe(
        nodes[0].uids().real,
        ("connect", sockets / "guard.sock"),
        ("create", sockets / "other.sock"),
        ("remove", sockets / "guard.sock"),
    )
    assert said == ["done", "refused", "refused"]


def test_a_node_reaches_nothing_of_other_silos_or_of_the_coordinator(federation):
    kits, nodes = federation.place / "kits", federation.processes("node")
    attempts = [
        *secrets_of(federation, 1),
        ("connect", federation.place / "sockets" / "silo-1" / "guard.sock"),
        ("list", kits / "silo-1"),
        ("read", kits / "silo-1" / "startup" / "client.key"),
        ("read", kits / "authority" / "rootCA.key"),
        ("read", kits / "coordinator" / "startup" / "client.key"),
        ("read", f"/proc/{nodes[1].pid}/environ"),
        ("memory", nodes[1].pid),
        ("list", next((federation.place / "coordinator").iterdir())),
    ]
    assert set(federation.probe(nodes[0].uids().real, *attempts)) == {"refused"}
    assert federation.probe(nodes[0].uids().real, ("read", kits / "silo-0" / "startup" / "client.key")) == [
        "done"
    ]


def test_the_training_ends_and_nothing_stays_behind(federation):
    parts = psutil.Process(federation.driver.pid).children(recursive=True)
    said = federation.end()
    assert federation.driver.returncode == 0
    assert said["notes"] == []
    assert said["missing"] == []
    assert len(said["reports"]) == 3
    assert not [process for process in parts if process.is_running()]
