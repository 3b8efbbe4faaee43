"""The coordinator's letters: it asks silos until they answer, and records who answered what.

As a witness it keeps the newest head of each silo's ledger, and tells the silo with every request. Every
answer becomes a line of the signed transcript.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..errors import Problem
from ..network.transport import Transport
from ..privacy.keys import Key
from ..privacy.ledger.heads import SignedHead
from ..privacy.ledger.witness import FolderWitness
from ..protocol.envelope import Envelope, Unreadable, seal, unseal
from .calls import CALLS, COORDINATOR
from .plan_file import PlanFile
from .transcript import Transcript

PRESENCE = 30.0  # seconds in which a silo that was silent must say that it is there again
PAUSE, LONGEST = 0.2, 5.0  # seconds before silos that did not answer are asked again: at first, and at most


class Clock(Protocol):
    """What a coordinator waits by."""

    def time(self) -> float:
        """Return the seconds since some moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The computer's clock, which nobody can set back."""

    def time(self) -> float:
        """Return the seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclass(eq=False)
class Messenger:
    """How a coordinator talks to the silos of a plan; `refusals` says why a silo's last answer is missing.

    `on_note` is told once about each reason for which a silo is waited for.
    """

    plan: PlanFile
    folder: Path
    key: Key
    transport: Transport
    clock: Clock
    on_note: Callable[[str], None] = lambda line: None
    refusals: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        (self.folder / "witness").mkdir(exist_ok=True)
        self.witness = FolderWitness(self.folder / "witness")
        self.transcript = Transcript(self.folder / "transcript.jsonl", self.key)
        heads = (self.witness.latest(path.stem) for path in self.witness.folder.glob("*.heads"))
        self._told: set[tuple[str, str]] = set()
        self.seen = {head.identity.silo: head for head in heads if head is not None}

    def why(self, asked: Iterable[str], answered: Iterable[str]) -> str:
        """Return why silos did not answer, one after the other."""
        missing = [name for name in asked if name not in set(answered)]
        return "; ".join(f"{name}: {self.refusals.get(name, 'no answer')}" for name in missing)

    def there(self, number: int, asked: Sequence[str], enough: int) -> list[str]:
        """Return the silos to ask: those that were silent only if they say soon that they are there again.

        A silo that is gone would cost the plan's whole time in every round. If fewer than `enough` others are
        asked, all are waited for.
        """
        away = [name for name in asked if name in self.silent]
        if not away or len(asked) - len(away) < enough:
            return list(asked)
        seconds = min(PRESENCE, self.plan.seconds)
        back = self.exchange("hello", number, dict.fromkeys(away, b""), seconds=seconds)
        return [name for name in asked if name not in away or name in back]

    def exchange(
        self,
        kind: str,
        number: int,
        bodies: Mapping[str, bytes],
        patient: bool = False,
        facts: Mapping[str, dict[str, Any]] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Envelope]:
        """Ask silos until all have answered or the time (the plan's) is over; return the sound answers.

        A silo that refuses is asked again only if the coordinator is `patient`: its owner may still approve.
        `facts` are those of the messages, by silo.
        """
        facts = facts or {}
        answers: dict[str, Envelope] = {}
        waiting, pause = dict(bodies), PAUSE
        deadline = self.clock.time() + (self.plan.seconds if seconds is None else seconds)
        while waiting:
            messages = {
                name: self._message(kind, number, name, body, facts.get(name, {}))
                for name, body in waiting.items()
            }
            left = deadline - self.clock.time()
            arrived = self.transport.exchange(messages, max(left, 0.0))
            self.refusals |= {name: why for name, why in self.transport.problems.items() if name in waiting}
            for name, message in arrived.items():
                answer = self._opened(name, kind, number, message)
                if answer is None:
                    continue
                if answer.kind != "refused":
                    answers[name] = answer
                if answer.kind != "refused" or not patient:
                    waiting.pop(name, None)
            if waiting:
                if self.clock.time() + pause >= deadline:
                    break
                self._tell(waiting)
                self.clock.sleep(pause)
                pause = min(2 * pause, LONGEST)
        self.silent = (self.silent - set(bodies)) | set(waiting)
        return answers

    def _tell(self, waiting: Iterable[str]) -> None:
        """Say which silos are asked again, and why, unless that was said before."""
        for name in waiting:
            why = self.refusals.get(name, "no answer")
            if (name, why) not in self._told:
                self._told.add((name, why))
                self.on_note(f"waiting for '{name}': {why}")

    def _message(self, kind: str, number: int, name: str, body: bytes, facts: dict[str, Any]) -> bytes:
        seen = self.seen.get(name)
        if seen is not None:
            facts = {**facts, "witnessed": {"text": seen.text, "signature": seen.signature}}
        request = Envelope(self.plan.training, number, CALLS[kind], kind, COORDINATOR, name, facts, body)
        return seal(request, self.key)

    def _opened(self, name: str, kind: str, number: int, message: bytes) -> Envelope | None:
        """Return a silo's answer if it is sound, and record it; None if it cannot be used."""
        try:
            answer = unseal(message, self.plan.keys[name], self.plan.most_bytes, COORDINATOR)
        except Unreadable as problem:
            self.refusals[name] = str(problem)
            return None
        ours = (answer.training, answer.round, answer.call) == (self.plan.training, number, CALLS[kind])
        if answer.kind in ("refused", "failed"):
            self.refusals[name] = str(answer.facts.get("why", "no reason given"))
            self.transcript.add(silo=name, round=number, asked=kind, kind=answer.kind, digest=answer.digest)
            return answer if ours and answer.kind == "refused" else None  # damaged on its way, or a failure
        if not ours:
            self.refusals[name] = "it answered another request"
            return None
        head = self._head(name, answer)
        if head is None:
            return None
        self.refusals.pop(name, None)
        self.transcript.add(
            silo=name, round=number, asked=kind, kind=answer.kind, digest=answer.digest, head=head.number
        )
        return answer

    def _head(self, name: str, answer: Envelope) -> SignedHead | None:
        """Return the head of a silo's ledger, kept as its witness; None if it cannot be used."""
        facts = answer.facts.get("head")
        try:
            head = SignedHead(facts["text"], facts["signature"])  # type: ignore[index]
            head.check()
            seen = self.witness.latest(head.identity.fingerprint)
        except (Problem, LookupError, TypeError, ValueError) as error:
            self.refusals[name] = f"the head of its ledger is not sound: {error}"
            return None
        if head.public != self.plan.keys[name].public:
            self.refusals[name] = "the head of its ledger is signed with another key"
            return None
        if seen is not None and (seen.ledger != head.ledger):
            self.refusals[name] = "its ledger is another one than before"
            return None
        if seen is None or head.number > seen.number:
            self.witness.record(head)
            seen = head
        self.seen[name] = seen
        return head
