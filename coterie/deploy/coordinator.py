"""The coordinator: it runs a method's `broadcast` and `merge` for silos that only its messages reach.

It keeps a checkpoint after each round, so the same call resumes a training after a crash of anything: guards
answer a repeated request with the bytes they stored (`coterie.deploy.messenger`). It sees no personal model,
and a score only with the noise that the plan pays for.
If uploads are masked, it sees no upload either, only their sum (`coterie.deploy.secure_rounds`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
from ..protocol.messages import addressed, pack
from ..protocol.state import State
from ..protocol.tree import Tree
from ..secure_sum import Missing, Terms
from .calls import read_tree
from .masking import BEFORE_UPLOAD
from .messenger import PRESENCE, Clock, Messenger, SystemClock
from .plan_file import PlanFile, plan_of, read_plan
from .scores import shared_scores
from .secure_rounds import load_point, sum_uploads
from .sum_terms import is_masked, sum_terms


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

    `on_round` is called with the number of rounds done and the names of the silos whose uploads were merged,
    `on_note` with a sentence about each silo that is waited for.
    With `skip_round`, a secure sum that was begun and cannot be finished is given up: the next round follows.
    """

    plan: PlanFile
    folder: Path
    key: Key
    transport: Transport
    clock: Clock = field(default_factory=SystemClock)
    on_round: Callable[[int, tuple[str, ...]], None] | None = None
    streams: Any = field(default_factory=FreshStreams)
    skip_round: bool = False
    on_note: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        if self.key.public.public != self.plan.coordinator.public:
            raise Problem("the plan names another key of the coordinator than this one")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(exist_ok=True, mode=0o700)
        kept = self.folder / "plan.json"
        if kept.exists() and read_plan(kept).hash != self.plan.hash:
            raise Problem(f"'{self.folder}' holds another training: choose another folder")
        self.plan.save(kept)
        known = (self.plan, self.folder, self.key, self.transport, self.clock)
        self.messenger = Messenger(*known, self.on_note)
        self.experiment: Experiment = self.plan.blank
        self.planned: Plan = plan_of(self.experiment, self.plan)

    @property
    def refusals(self) -> dict[str, str]:
        """Why silos did not answer the last time, by name."""
        return self.messenger.refusals

    def run(self) -> Outcome:
        """Train to the end, from the last checkpoint if there is one; return how it ended."""
        path, side = self.folder / "checkpoint", self._side()
        point = checkpoint.load(path, self.plan.hash)
        self._begin()
        state = first = side.begin() if point is None else point.state
        if self.skip_round:
            state = first = self._skipped(side, first)
            checkpoint.save(path, self.plan.hash, Checkpoint(state, [], []))
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
        self.messenger.exchange("hello", 0, dict.fromkeys(self.plan.names, b""))
        body = self.plan.text.encode()
        accepted = self.messenger.exchange("plan", 0, dict.fromkeys(self.plan.names, body), patient=True)
        if len(accepted) < self.plan.fewest:
            raise Problem(
                f"{len(accepted)} of {len(self.plan.names)} silos accepted the plan, and it needs"
                f" {self.plan.fewest}; {self.messenger.why(self.plan.names, accepted)}"
            )

    def _ask(self, number: int, parts: Mapping[int, Tree]) -> dict[int, Tree]:
        """Send silos their parts of a round, and return the uploads."""
        names = self.plan.names
        bodies = {names[k]: pack(tree) for k, tree in parts.items()}
        there = self.messenger.there(number, list(bodies), min(self.plan.fewest, len(bodies)))
        answers = self.messenger.exchange("round", number, {name: bodies[name] for name in there})
        if len(answers) < min(self.plan.fewest, len(bodies)):
            raise Problem(
                f"round {number}: {len(answers)} of {len(bodies)} silos answered, and the plan needs"
                f" {min(self.plan.fewest, len(bodies))}; {self.messenger.why(bodies, answers)}"
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
                there = self.messenger.there(number, list(messages), terms.least)
                messages = {name: messages[name] for name in there}
                facts = {name: {"terms": terms.digest} for name in messages}
            if step == "upload":
                facts = {name: {"boxes": len(message)} for name, message in messages.items()}
                messages = {name: message + trees[name] for name, message in messages.items()}
            again = step not in BEFORE_UPLOAD and self.messenger.silent.issuperset(messages)
            seconds = min(PRESENCE, self.plan.seconds) if again else None  # they had the plan's time before
            answers = self.messenger.exchange(step, number, messages, facts=facts, seconds=seconds)
            return {name: bytes(answer.body) for name, answer in answers.items()}

        try:
            total, names = sum_uploads(terms, ask, self.folder / "sum")
        except Missing as problem:
            raise Problem(self._lost(terms, problem)) from problem
        return torch.from_numpy(total), [self.plan.names.index(name) for name in names]

    def _lost(self, terms: Terms, problem: Missing) -> str:
        """Return a sentence that says which silos a secure sum misses, and what to do."""
        reasons = (f"{name} ({self.refusals.get(name, why)})" for name, why in problem.silos.items())
        begun = load_point(self.folder / "sum", terms) is not None
        give_up = (
            " if their answers to this round are lost for good, add --skip-round to train on without it (what"
            " was charged for it stays charged);"
        )
        return (
            f"round {terms.round}: its secure sum needs {terms.least} uploads and the shares of"
            f" {terms.threshold} of {len(terms.members)} silos, and it misses {', '.join(reasons)}: repeat"
            f" the command when they are back;{give_up if begun else ''} if more than {terms.dropouts}"
            " silo(s) are lost for good, propose a plan without them"
        )

    def _skipped(self, side: ServerSide, state: State) -> State:
        """Return the state after a round whose sum is given up; raise `Problem` if it has not begun.

        Guards allow it to any coordinator: a round may be left out, and answering a later round closes its
        sum. So the masks of the uploads stay on for ever, and the charge for them stays.
        """
        begun = state.round < self.experiment.training.rounds and is_masked(self.planned, state.round)
        if begun:
            terms = sum_terms(self.plan, self.planned, state.round)
            begun = load_point(self.folder / "sum", terms) is not None
        if not begun:
            raise Problem(
                f"--skip-round: no secure sum of round {state.round} was begun, so nothing is lost: repeat"
                " the command without it"
            )
        return side.skipped(state)

    def _finish(self, side: ServerSide, state: State) -> Outcome:
        """Send every silo the last shared state, so that it can make its own model at home."""
        sent, count = side.method.broadcast(state.shared), len(self.plan.names)
        bodies = {name: pack(addressed(sent, k, count)) for k, name in enumerate(self.plan.names)}
        answers = self.messenger.exchange("finish", state.round, bodies)
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
