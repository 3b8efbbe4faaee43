"""The coordinator: it runs a method's `broadcast` and `merge` for silos that only its messages reach.

It keeps a checkpoint after each round, so the same call resumes a training after a crash of anything: guards
answer a repeated request with the bytes they stored. As a witness it records the heads of the silos' ledgers,
and in a signed transcript who answered what. It sees no personal model, and a score only with the noise that
the plan pays for.
If uploads are masked, it sees no upload either, only their sum (`coterie.deploy.secure_rounds`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..engines.network import ServerSide
from ..engines.simulation import steps_of
from ..engines.start import SeededStart
from ..errors import Problem
from ..experiment.experiment import Experiment
from ..experiment.files import write_json
from ..guard import checkpoint
from ..guard.checkpoint import Checkpoint
from ..network.transport import Transport
from ..noise.dice import KeyedDice
from ..planning.plan import Plan
from ..privacy.keys import Key
from ..privacy.ledger.heads import SignedHead
from ..privacy.ledger.witness import FolderWitness
from ..protocol.envelope import Envelope, Unreadable, seal, unseal
from ..protocol.messages import addressed, pack
from ..protocol.state import State
from ..protocol.tree import Tree
from ..secure_sum import Missing
from .guard import CALLS, COORDINATOR, read_tree
from .plan_file import PlanFile, plan_of, read_plan
from .scores import shared_scores
from .secure_rounds import sum_uploads
from .sum_terms import sum_terms
from .transcript import Transcript

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


@dataclass(frozen=True)
class FreshStreams:
    """Noise of merges, keyed anew by the system's entropy: a merge that a crash forgot was never sent."""

    def merging(self, run: int, silo: str, round_: int) -> KeyedDice:
        """Return dice that nobody has seen."""
        return KeyedDice(os.urandom(32))


@dataclass(frozen=True)
class Outcome:
    """How a training ended: the silos that finished it, what each of them reported, and noised scores."""

    training: str
    rounds: int
    finished: Mapping[str, Mapping[str, Any]]
    missing: tuple[str, ...]
    folder: Path
    scores: Mapping[str, Any] | None = None


@dataclass(eq=False)
class Coordinator:
    """A training at its coordinator, in a folder that holds all it needs to resume.

    `on_round` is called with the number of rounds done and the names of the silos whose uploads were merged.
    """

    plan: PlanFile
    folder: Path
    key: Key
    transport: Transport
    clock: Clock = field(default_factory=SystemClock)
    on_round: Callable[[int, tuple[str, ...]], None] | None = None
    streams: Any = field(default_factory=FreshStreams)

    def __post_init__(self) -> None:
        if self.key.public.public != self.plan.coordinator.public:
            raise Problem("the plan names another key of the coordinator than this one")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(exist_ok=True, mode=0o700)
        kept = self.folder / "plan.json"
        if kept.exists() and read_plan(kept).hash != self.plan.hash:
            raise Problem(f"'{self.folder}' holds another training: choose another folder")
        self.plan.save(kept)
        (self.folder / "witness").mkdir(exist_ok=True)
        self.witness = FolderWitness(self.folder / "witness")
        self.transcript = Transcript(self.folder / "transcript.jsonl", self.key)
        self.experiment: Experiment = self.plan.blank
        self.planned: Plan = plan_of(self.experiment, self.plan)
        heads = (self.witness.latest(path.stem) for path in self.witness.folder.glob("*.heads"))
        self._seen = {head.identity.silo: head for head in heads if head is not None}
        self.refusals: dict[str, str] = {}

    def run(self) -> Outcome:
        """Train to the end, from the last checkpoint if there is one; return how it ended."""
        path, side = self.folder / "checkpoint", self._side()
        point = checkpoint.load(path, self.plan.hash)
        self._begin()
        state = first = side.begin() if point is None else point.state
        for state, places in side.rounds(first):
            checkpoint.save(path, self.plan.hash, Checkpoint(state, [], []))
            if self.on_round is not None:
                self.on_round(state.round, tuple(self.plan.names[k] for k in places))
        return self._finish(side, state)

    def _side(self) -> ServerSide:
        experiment, settings = self.experiment, self.experiment.settings(self.planned)
        rounds = experiment.training.rounds
        roster = replace(experiment.roster, steps=steps_of(experiment.work, settings), rounds=rounds)
        start = SeededStart(experiment.task, [experiment.keys[0][0]], roster, rounds)
        known = (experiment.running, self.planned, start, self.streams)
        return ServerSide(*known, self._ask, self.plan.fewest, self._ask_sum)

    def _begin(self) -> None:
        """Tell every silo what was seen of its ledger, and send the plan; wait until enough accepted it."""
        self._exchange("hello", 0, dict.fromkeys(self.plan.names, b""))
        body = self.plan.text.encode()
        accepted = self._exchange("plan", 0, dict.fromkeys(self.plan.names, body), patient=True)
        if len(accepted) < self.plan.fewest:
            raise Problem(
                f"{len(accepted)} of {len(self.plan.names)} silos accepted the plan, and it needs"
                f" {self.plan.fewest}; {self._why(self.plan.names, accepted)}"
            )

    def _why(self, asked: Any, answered: Any) -> str:
        """Return why silos did not answer, one after the other."""
        reasons = (
            f"{name}: {self.refusals.get(name, 'no answer')}" for name in asked if name not in answered
        )
        return "; ".join(reasons)

    def _ask(self, number: int, parts: Mapping[int, Tree]) -> dict[int, Tree]:
        """Send silos their parts of a round, and return the uploads."""
        names = self.plan.names
        bodies = {names[k]: pack(tree) for k, tree in parts.items()}
        answers = self._exchange("round", number, bodies)
        if len(answers) < min(self.plan.fewest, len(bodies)):
            raise Problem(
                f"round {number}: {len(answers)} of {len(bodies)} silos answered, and the plan needs"
                f" {min(self.plan.fewest, len(bodies))}; {self._why(bodies, answers)}"
            )
        uploads = {}
        for name, answer in answers.items():
            try:
                uploads[names.index(name)] = read_tree(answer.body, self.plan.most_bytes)
            except Problem as problem:
                self.refusals[name] = f"its upload cannot be used: {problem}"
        return uploads

    def _ask_sum(self, number: int, parts: Mapping[int, Tree]) -> tuple[Tensor, list[int]]:
        """Add up the uploads of a round without seeing one; return the sum, and whose uploads are in it."""
        terms = sum_terms(self.plan, self.planned, number)
        trees = {self.plan.names[k]: pack(tree) for k, tree in parts.items()}

        def ask(step: str, messages: Mapping[str, bytes]) -> dict[str, bytes]:
            facts: dict[str, dict[str, Any]] = {}
            if step == "keys":
                facts = {name: {"terms": terms.digest} for name in messages}
            if step == "upload":
                facts = {name: {"boxes": len(message)} for name, message in messages.items()}
                messages = {name: message + trees[name] for name, message in messages.items()}
            answers = self._exchange(step, number, messages, facts=facts)
            return {name: answer.body for name, answer in answers.items()}

        try:
            total, names = sum_uploads(terms, ask, self.folder / "sum")
        except Missing as problem:
            reasons = (f"{name}: {self.refusals.get(name, why)}" for name, why in problem.silos.items())
            raise Problem(
                f"round {number}: too few of {len(terms.members)} silos are left for its secure sum, which"
                f" needs {terms.least} uploads and {terms.threshold} confirmations ({'; '.join(reasons)});"
                " its uploads stay masked: repeat the command when they are back"
            ) from problem
        return torch.from_numpy(total), [self.plan.names.index(name) for name in names]

    def _finish(self, side: ServerSide, state: State) -> Outcome:
        """Send every silo the last shared state, so that it can make its own model at home."""
        sent, count = side.method.broadcast(state.shared), len(self.plan.names)
        bodies = {name: pack(addressed(sent, k, count)) for k, name in enumerate(self.plan.names)}
        answers = self._exchange("finish", state.round, bodies)
        finished = {
            name: {"statement": answer.facts.get("statement")} for name, answer in sorted(answers.items())
        }
        missing = tuple(name for name in self.plan.names if name not in finished)
        facts = {"training": self.plan.training, "plan": self.plan.hash, "rounds": state.round}
        ended: dict[str, Any] = {**facts, "finished": finished, "missing": list(missing)}
        scores = shared_scores(
            self.plan, self.planned, {name: answer.facts for name, answer in answers.items()}
        )
        write_json(self.folder / "outcome.json", ended if scores is None else {**ended, "scores": scores})
        return Outcome(self.plan.training, state.round, finished, missing, self.folder, scores)

    def _exchange(
        self,
        kind: str,
        number: int,
        bodies: Mapping[str, bytes],
        patient: bool = False,
        facts: Mapping[str, dict[str, Any]] | None = None,
    ) -> dict[str, Envelope]:
        """Ask silos until all have answered or the plan's time is over; return the answers that are sound.

        A silo that refuses is asked again only if the coordinator is `patient`: its owner may still approve.
        `facts` are those of the messages, by silo.
        """
        facts = facts or {}
        answers: dict[str, Envelope] = {}
        waiting, deadline, pause = dict(bodies), self.clock.time() + self.plan.seconds, PAUSE
        while waiting:
            messages = {
                name: self._message(kind, number, name, body, facts.get(name, {}))
                for name, body in waiting.items()
            }
            left = deadline - self.clock.time()
            for name, message in self.transport.exchange(messages, max(left, 0.0)).items():
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
                self.clock.sleep(pause)
                pause = min(2 * pause, LONGEST)
        return answers

    def _message(self, kind: str, number: int, name: str, body: bytes, facts: dict[str, Any]) -> bytes:
        seen = self._seen.get(name)
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
        self._seen[name] = seen
        return head
