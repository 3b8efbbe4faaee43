"""A federation under a seeded scheduler: messages are lost, doubled, delayed, damaged; guards are killed.

Coordinator, guards, disks and network live in one process. Every decision comes from one seed, so a seed replays.
After every answer the promises of a deployment are checked:
- nothing left a guard without a reservation on its disk;
- no call was answered in two ways;
- no ledger is behind what the coordinator, its witness, has seen of it.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from coterie.deploy.coordinator import Coordinator
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import GuardFolder
from coterie.deploy.masking import SUM_CALLS
from coterie.errors import Problem
from coterie.privacy.ledger.ledger import read_ledger
from coterie.protocol.envelope import unseal
from tests.federations import Small

MOST = 2**26


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
    """One seed's federation: a transport for the coordinator, and the promises."""

    def __init__(self, small: Small, folder: Path, seed: int, trouble: float = 0.15):
        self.small, self.folder, self.trouble = small, folder, trouble
        self.dice, self.clock = random.Random(seed), TestClock()
        for name in small.federation.names:
            shutil.copytree(small.folder / name, folder / name)
        self.guards: dict[str, Guard] = {}
        self.late: list[tuple[str, bytes]] = []
        self.left: dict[tuple[str, str, int, int], set[bytes]] = {}
        self.kills = self.answers = 0
        self.problems: list[str] = []

    def trouble_now(self) -> bool:
        return self.dice.random() < self.trouble

    def guard(self, name: str) -> Guard:
        """The guard of a silo; a killed one starts again from its disk."""
        if name not in self.guards:
            guard = Guard(GuardFolder(self.folder / name))
            guard._prepared = self.small.cache.setdefault(name, {})
            for owner, method in ((guard.store, "answer"), (guard.store, "update"), (guard.ledger, "reserve"),
                                  (guard.ledger, "commit"), (guard.ledger, "claim")):  # fmt: skip
                self._mortal(owner, method)
            self.guards[name] = guard
        return self.guards[name]

    def _mortal(self, owner, method: str) -> None:
        """Let a step of a guard be its last: before it is done, or right after."""
        real = getattr(owner, method)

        def step(*given, **named):
            if self.trouble_now():
                raise Killed
            result = real(*given, **named)
            if self.trouble_now():
                raise Killed
            return result

        setattr(owner, method, step)

    def answer(self, name: str, message: bytes) -> bytes | None:
        """Deliver a message to a guard; None if it was killed over it."""
        guard = self.guard(name)
        try:
            answer = guard.answer(message)
        except Killed:
            self.kills += 1
            self.guards.pop(name).close()
            return None
        self.note(name, answer)
        return answer

    def note(self, name: str, answer: bytes) -> None:
        """Remember what left a guard, and check the promises."""
        reply = unseal(answer, self.small.plan.keys[name], MOST)
        if reply.kind != "upload" and reply.kind not in SUM_CALLS:
            return
        call = (name, reply.training, reply.round, reply.call)
        self.left.setdefault(call, set()).add(answer)
        assert len(self.left[call]) == 1, f"{call} was answered in two ways"
        if reply.kind != "upload":
            return  # a step of a secure sum that tells nothing about examples
        self.answers += 1
        ledger = read_ledger(next((self.folder / name / "ledger").glob("*.sqlite")), only_read=True)
        state = ledger.state()
        spans = [span for run in state.runs for span in state.reserved(run)]
        assert any(first <= reply.round < last for first, last in spans), f"{call} left without a charge"
        ledger.close()

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
        coordinator = self.coordinator()
        found = []
        for name, seen in coordinator._seen.items():
            ledger = read_ledger(next((self.folder / name / "ledger").glob("*.sqlite")), only_read=True)
            if ledger.signed_head.number < seen:
                found.append(name)
            ledger.close()
        return found

    def coordinator(self, on_round=None) -> Coordinator:
        plan, place = self.small.plan, self.folder / "coordinator"
        return Coordinator(plan, place, self.small.key, self, self.clock, on_round)

    def run(self) -> bool:
        """Train with coordinators that are killed too; return whether the training ended."""

        def perhaps(done, names):
            if self.trouble_now():
                raise Killed

        for _ in range(40):
            try:
                outcome = self.coordinator(perhaps).run()
            except Killed:
                continue
            except Problem as problem:
                self.problems.append(str(problem))
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
