"""A federation under a seeded scheduler: messages are lost, doubled, delayed, damaged; parties are killed.

Coordinator, guards, disks and network live in one process. Every decision comes from one seed, so a seed replays.
Guards and the coordinator are killed, and their writes fail, before or right after anything is on the disk. After
every answer the promises of a deployment are checked:
- nothing left a guard without a reservation on its disk;
- no call was answered in two ways;
- no ledger is behind what the coordinator, its witness, has seen of it.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

from coterie.deploy import coordinator as coordinators
from coterie.deploy import store
from coterie.deploy.coordinator import Coordinator, checkpoint
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import GuardFolder
from coterie.deploy.masking import SUM_CALLS
from coterie.deploy.plan_file import plan_of
from coterie.errors import Problem
from coterie.privacy.ledger.heads import SignedHead
from coterie.privacy.ledger.ledger import Ledger, read_ledger
from coterie.protocol.envelope import unseal
from tests.federations import Small

MOST = 2**26
MEMORY = Path("/dev/shm")  # a disk that need not spin: kills here are of processes, not of machines
KEPT = ("ledger", "witness", "guard.sqlite")  # what a backup of a guard's folder holds


class Killed(BaseException):
    """A process was killed: no handler of the product sees it."""


class TestClock:
    """Time that passes only when somebody waits."""

    __test__ = False

    def __init__(self):
        self.now = 0.0

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class World:
    """One seed's federation: a transport for the coordinator, and the promises.

    With `restores`, a guard may come back with its first ledger, witness and memory, as from a backup of its machine.
    """

    def __init__(
        self, small: Small, folder: Path, seed: int, trouble: float = 0.15, restores: bool = False
    ) -> None:
        self.small, self.folder, self.trouble, self.restores = small, folder, trouble, restores
        self.dice, self.clock = random.Random(seed), TestClock()
        for name in small.federation.names:
            shutil.copytree(small.folder / name, folder / name)
        self.guards: dict[str, Guard] = {}
        self.late: list[tuple[str, bytes]] = []
        self.left: dict[tuple[str, str, int, int], set[bytes]] = {}
        self.seen: dict[str, SignedHead] = {}
        self.events: list[tuple[str, str]] = []
        self.answers = 0
        self.complaints: list[str] = []
        self.problems: dict[str, str] = {}  # as a transport: it knows no reasons

    def count(self, what: str) -> int:
        return sum(event == what for event, _ in self.events)

    def trouble_now(self) -> bool:
        return self.dice.random() < self.trouble

    def ledger(self, name: str) -> Ledger:
        return read_ledger(next((self.folder / name / "ledger").glob("*.sqlite")), only_read=True)

    def guard(self, name: str) -> Guard:
        """The guard of a silo; a killed one starts again from its disk."""
        if name not in self.guards:
            guard = Guard(GuardFolder(self.folder / name))
            guard._prepared = self.small.cache.setdefault(name, {})
            for owner, method in ((guard.store, "answer"), (guard.store, "begin"), (guard.store, "update"),
                                  (guard.ledger, "reserve"), (guard.ledger, "commit"),
                                  (guard.ledger, "claim")):  # fmt: skip
                object.__setattr__(owner, method, self.unsafe(getattr(owner, method), name))
            self.guards[name] = guard
        return self.guards[name]

    def unsafe(self, real, name: str):
        """Let a step that writes be a process's last, or fail: before anything is written, or right after."""

        def step(*given, **named):
            self.fault(name)
            result = real(*given, **named)
            self.fault(name)
            return result

        return step

    def fault(self, name: str) -> None:
        if not self.trouble_now():
            return
        what = self.dice.choice(("killed", "failed"))
        self.events.append((what, name))
        if what == "killed":
            raise Killed
        raise OSError(28, "No space left on device")

    def answer(self, name: str, message: bytes) -> bytes | None:
        """Deliver a message to a guard; None if it was killed over it."""
        if self.restores:
            self.restore(name)
        guard = self.guard(name)
        try:
            answer = guard.answer(message)
        except Killed:
            self.guards.pop(name).close()
            return None
        self.note(name, answer)
        return answer

    def restore(self, name: str) -> None:
        """Perhaps set a guard back to its first day, if the coordinator has seen all that is lost."""
        ledger, now, first = self.ledger(name), self.folder / name, self.small.folder / name
        latest = ledger.signed_head
        ledger.close()
        if latest != self.seen.get(name) or self.dice.random() > 0.2:
            return
        self.events.append(("restored", name))
        if name in self.guards:
            self.guards.pop(name).close()
        for part in KEPT:
            if (now / part).is_dir():
                shutil.rmtree(now / part)
                shutil.copytree(first / part, now / part)
            else:
                (now / part).unlink(missing_ok=True)

    def note(self, name: str, answer: bytes) -> None:
        """Remember what left a guard, and check the promises."""
        reply = unseal(answer, self.small.plan.keys[name], MOST)
        self.events.append((reply.kind, name))
        if reply.kind != "upload" and reply.kind not in SUM_CALLS:
            return
        call = (name, reply.training, reply.round, reply.call)
        self.left.setdefault(call, set()).add(answer)
        ledger = self.ledger(name)
        state, seen = ledger.state(), self.seen.get(name)
        why = None if seen is None else ledger.why_refused(seen)
        ledger.close()
        assert why is None, f"the ledger of {name} is behind its witness, which {why}"
        assert len(self.left[call]) == 1, f"{call} was answered in two ways"
        if reply.kind != "upload":
            return  # a step of a secure sum that tells nothing about examples
        self.answers += 1
        spans = [span for run in state.runs for span in state.reserved(run)]
        assert any(first <= reply.round < last for first, last in spans), f"{call} left without a charge"

    def exchange(self, messages, seconds):
        """Carry messages, badly."""
        self.clock.now += 0.01
        queue = [(name, message) for name, message in messages.items() for _ in range(1 + self.trouble_now())]
        old, self.late = self.late, []
        queue += old
        self.dice.shuffle(queue)
        answers = {}
        for name, message in queue:
            if self.trouble_now():
                continue
            if self.trouble_now():
                self.late.append((name, message))
                continue
            if self.trouble_now():
                place = self.dice.randrange(len(message))
                message = (
                    message[:place]
                    + bytes([message[place] ^ 1 << self.dice.randrange(8)])
                    + message[place + 1 :]
                )
            answer = self.answer(name, message)
            if answer is None or self.trouble_now():
                continue
            if self.trouble_now():
                answer = answer[: self.dice.randrange(len(answer))]
            answers[name] = answer
        return answers

    def close(self):
        for guard in self.guards.values():
            guard.close()
        self.guards = {}

    def behind(self) -> list[str]:
        """The silos whose ledgers are behind what the coordinator has seen."""
        found = []
        for name, seen in self.coordinator().messenger.seen.items():
            ledger = self.ledger(name)
            if ledger.why_refused(seen) is not None:
                found.append(name)
            ledger.close()
        return found

    def coordinator(self) -> Coordinator:
        """The coordinator, which starts from its disk; its writes fail too, and it may be killed at each."""
        plan, place = self.small.plan, self.folder / "coordinator"
        with patch.object(coordinators, "plan_of", self.planned):
            made = Coordinator(plan, place, self.small.key, self, self.clock)
        for owner, method in ((made.messenger.transcript, "add"), (made.messenger.witness, "record")):
            object.__setattr__(owner, method, self.unsafe(getattr(owner, method), "coordinator"))
        self.seen = made.messenger.seen
        return made

    def planned(self, experiment, file):
        """The plan, made once for all seeds: what it is does not depend on them."""
        if "plan" not in self.small.cache:
            self.small.cache["plan"] = plan_of(experiment, file)
        return self.small.cache["plan"]

    def run(self, attempts: int = 60) -> bool:
        """Train with coordinators that are killed too; return whether the training ended."""
        save = self.unsafe(checkpoint.save, "coordinator")
        with patch.object(checkpoint, "save", save), patch.object(store, "KEPT", 1):
            for _ in range(attempts):
                try:
                    outcome = self.coordinator().run()
                except (Killed, OSError):
                    continue
                except Problem as problem:
                    self.complaints.append(str(problem))
                    continue
                if not outcome.missing:
                    return True
        return False


class SecureWorld(World):
    """A federation with masked uploads, in which each round one silo cannot be reached from some step on."""

    def __init__(self, small: Small, folder: Path, seed: int, trouble: float = 0.15):
        super().__init__(small, folder, seed, trouble)
        rounds = range(small.config.train.rounds)
        names, steps = small.federation.names, list(SUM_CALLS)
        self.outages = {
            number: (self.dice.choice(names), steps[self.dice.randrange(len(steps)) :]) for number in rounds
        }

    def exchange(self, messages, seconds):
        """Carry messages, badly, except those of the round's outage."""
        reached = {}
        for name, message in messages.items():
            asked = unseal(message, self.small.key.public, MOST)
            silo, steps = self.outages.get(asked.round, (None, []))
            if name != silo or asked.kind not in steps:
                reached[name] = message
        return super().exchange(reached, seconds)


def tried(small: Small, folder: Path, seed: int, kind=World, **options) -> World:
    """A world after its training, without its files."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        world = kind(small, Path(name), seed, **options)
        try:
            world.ended = world.run(4 if world.restores else 60)  # a restored guard never answers again
            world.late_ledgers = world.behind()
            ledgers = [world.ledger(silo) for silo in small.federation.names]
            world.states = [ledger.state() for ledger in ledgers]
            for ledger in ledgers:
                ledger.close()
        finally:
            world.close()
    return world
