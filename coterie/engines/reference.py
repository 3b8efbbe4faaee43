"""A slow, obvious engine: one silo at a time, one example at a time, every message in bytes.

It shares only the random streams with the cohort engine, no arithmetic, and must produce the same vectors.
A silo is an object with its own state that receives and sends only bytes, as it would over a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..cohort.masks import base_of
from ..cohort.sampling import coins
from ..data.federation import Federation, Silo
from ..data.persons import rows_by_person
from ..planning.plan import Plan
from ..protocol.handles import hide_uploads, refuse_handles
from ..protocol.merging import PlainMerger
from ..protocol.messages import addressed, pack, unpack
from ..protocol.method import Method
from ..protocol.oracle import Oracle, doors_of
from ..protocol.roster import Roster, Steps
from ..protocol.settings import PerRun, for_run, per_run
from ..protocol.streams import SeededStreams
from ..protocol.tree import concatenate, map_leaves
from ..tasks.layers.dropout import keys
from ..tasks.task import Task
from .reference_duals import Members, SlowDuals, with_noise
from .reference_duals import Terms as Terms
from .reference_merging import SlowMerger
from .reference_steps import SlowSteps
from .start import SeededStart


def members_of(silo: Silo, federation: Federation, unit: str) -> Members:
    """Return who may be drawn: persons with their rows, or examples, each a row of its own."""
    each = federation.rows_each(unit)
    if each is None or silo.person is None:
        return every_row(silo)
    rows, real = rows_by_person(silo.person, each, silo.name)
    return Members([[int(row) for row in mine[mask]] for mine, mask in zip(rows, real, strict=True)], each)


def every_row(silo: Silo) -> Members:
    """Return the examples of a silo as those who may be drawn."""
    return Members([[row] for row in range(len(silo.y))], 1)


class SlowOracle(Oracle):
    """The doors of one silo in one run: plain autograd, one example at a time."""

    def __init__(
        self,
        task: Task,
        silo: Silo,
        scale: float,
        terms: Terms,
        streams: SeededStreams,
        number: int,
        rounds: int,
        steps: int | None = None,
        members: Members | None = None,
    ) -> None:
        self.steps = terms.work.steps if steps is None else steps
        self.members = every_row(silo) if members is None else members
        self.task, self.silo, self.scale, self.terms = task, silo, scale, terms
        self.streams, self.round, self.rounds, self.calls = streams, number, rounds, 0

    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
        imitate: Tensor | None = None,
    ) -> Tensor:
        """Train one example at a time and return the new vector."""
        work, terms = self.terms.work, self.terms
        name, call = self.silo.name, self.calls
        self.calls += 1
        dice = self.streams.dice(0, name, self.round, call)
        base = base_of(dice) if self.task.draws else None
        hits = coins(dice, work, work.steps)
        vector = start.reshape(-1).clone()
        lr = terms.lr * terms.optimizer.factor(self.round, self.rounds)
        if toward is not None:
            product = lr * float(per_run(strength).max())
            if product > 1 or terms.proximal:  # or the step would pull beyond its target
                lr = lr / (1 + product)
        stepping = SlowSteps(terms.optimizer, lr)
        for step in range(self.steps):
            total = torch.zeros_like(vector)
            for i in np.flatnonzero(hits[step]):
                rows = self.members.rows[i]
                gradients = [
                    self.gradient(vector, row, imitate, strength, _key(base, step, row)) for row in rows
                ]
                gradient = sum(gradients, torch.zeros_like(vector)) / len(rows)
                norm = float(gradient.norm())
                total += gradient if norm <= terms.clip else gradient * (terms.clip / norm)
            if terms.noise:
                noisy = with_noise(total.double().numpy(), terms.noise * terms.clip, dice)
                total = torch.from_numpy(noisy).float()
            pull = None
            if toward is not None:
                pull = per_run(strength).reshape(-1) * (vector - toward.reshape(-1))
            vector = stepping.step(vector, total / work.expected, pull)
        return vector.reshape(1, 1, -1)

    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Count errors one example at a time, and return the candidate with the fewest, after noise."""
        call = self.calls
        self.calls += 1
        errors = np.array([self.errors(vector) for vector in candidates[0]])
        if not self.terms.choice:
            return torch.tensor([[int(np.argmin(errors))]])
        dice = self.streams.dice(0, self.silo.name, self.round, call)
        return torch.tensor([[dice.choose(errors, self.terms.choice)]])

    def solve_dual(
        self,
        start: Tensor,
        duals: Tensor,
        *,
        stiffness: Tensor,
        xi: PerRun = 1.0,
        whole: bool = False,
        unproven: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Move duals one example at a time; return what they add, and the new duals."""
        dice = self.streams.dice(0, self.silo.name, self.round, self.calls)
        self.calls += 1
        silo = SlowDuals(self.task, self.silo, self.scale, self.terms, float(stiffness), self.members)
        share, state = float(per_run(xi)), (start.reshape(-1), duals[0, 0].double().numpy())
        if unproven is not None:
            noise = float(unproven[0]) / share, float(unproven[1])
            sums, moved = silo.unproven(*state, self.steps, dice, noise)
        else:
            sums, moved = (silo.in_turn if whole else silo.apart)(*state, self.steps, dice)
        return share * sums.reshape(1, 1, -1), duals + share * moved.reshape(duals.shape)

    def example(self, row: int) -> tuple[Tensor, Tensor]:
        """Return one example as a model gets it, and its target."""
        x, y = self.silo.x[row : row + 1], self.silo.y[row : row + 1]
        return x if self.task.ids else x.float() * self.scale, y

    def errors(self, vector: Tensor) -> float:
        """Return the sum of errors: of each example its own, of each person the mean of all rows."""
        return sum(sum(self.error(vector, row) for row in rows) / len(rows) for rows in self.members.rows)

    def error(self, vector: Tensor, row: int) -> float:
        """Return the error of one example, in [0, 1]."""
        x, y = self.example(row)
        value = float(self.task.scores(self.task.layout.unflatten(vector), x, y))
        return 1 - value if self.task.higher_is_better else min(max(value, 0.0), 1.0)

    def gradient(
        self,
        vector: Tensor,
        row: int,
        imitate: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        key: Tensor | None = None,
    ) -> Tensor:
        """Return the gradient of one example; with a `key`, as in training."""
        leaf = vector.clone().requires_grad_(True)
        x, y = self.example(row)
        loss = self.task.losses(self.task.layout.unflatten(leaf), x, y, key).sum()
        if imitate is not None:
            ours, theirs = (
                torch.softmax(self.task.predict(self.task.layout.unflatten(model), x, own)[0], 0)
                for model, own in ((leaf, key), (imitate.reshape(-1), None))
            )
            divergence = (theirs * (theirs / ours).log()).sum() + (ours * (ours / theirs).log()).sum()
            loss = loss + float(per_run(strength)) * divergence / 2
        return torch.autograd.grad(loss, leaf)[0]

    def fisher(self, vectors: Tensor) -> Tensor:
        """Return the mean of squared gradients, one example at a time."""
        self.calls += 1
        vector, count = vectors.reshape(-1), len(self.silo.y)
        squares = sum(self.gradient(vector, row).square() for row in range(count))
        return torch.as_tensor(squares).reshape(1, 1, -1) / count


def _key(base: int | None, step: int, row: int) -> Tensor | None:
    """Return the key by which an example drops numbers in one step."""
    return None if base is None else keys(torch.tensor(base), step, torch.tensor(row))


class ReferenceSilo:
    """One silo: its examples, its own state, and a mailbox for bytes."""

    def __init__(
        self,
        method: Method,
        task: Task,
        silo: Silo,
        scale: float,
        terms: Terms,
        streams: SeededStreams,
        start: SeededStart,
        members: Members,
    ) -> None:
        self.members = members
        self.method, self.task, self.silo, self.scale = method, task, silo, scale
        self.terms, self.streams = terms, streams
        self.rounds = start.rounds
        self.own = pack(method.init(start, 1)[1])

    def answer(self, message: bytes, number: int, steps: int | None = None) -> bytes:
        """Do one round's work, or only its first `steps` steps, and return the upload."""
        oracle = SlowOracle(
            self.task,
            self.silo,
            self.scale,
            self.terms,
            self.streams,
            number,
            self.rounds,
            steps,
            self.members,
        )
        upload, own = self.method.local(unpack(message), unpack(self.own), doors_of(oracle))
        self.own = pack(own)
        return pack(upload)

    def shape(self, message: bytes, number: int) -> bytes:
        """Return what an upload would look like, without changing the silo's state."""
        kept, answer = self.own, self.answer(message, number)
        self.own = kept
        return answer

    def personal(self, message: bytes) -> Tensor:
        """Return the vector that this silo predicts with."""
        return self.method.personal(unpack(message), unpack(self.own)).reshape(-1)


def _steps(terms: Sequence[Terms]) -> Steps:
    """Return how the silos step."""
    noises = [term.noise * term.clip / term.work.expected if term.noise else 0.0 for term in terms]
    columns = (
        [float(term.work.steps) for term in terms],
        [term.lr for term in terms],
        [term.clip for term in terms],
        noises,
    )
    return Steps(*(torch.tensor([column]) for column in columns))


def run_reference(
    method: Method,
    task: Task,
    federation: Federation,
    plan: Plan,
    roster: Roster,
    terms: Sequence[Terms],
    seed: int,
    streams: SeededStreams,
    run: int = 0,
) -> Tensor:
    """Train one run, silo by silo, and return the personal vectors `[silos, P]`."""
    single, rounds = for_run(method, run), len(plan.counts.calls)
    roster = replace(roster, epsilon=roster.epsilon[run : run + 1], steps=_steps(terms), rounds=rounds)
    start = SeededStart(task, [seed], roster, rounds)
    count = len(federation.silos)
    silos = [
        ReferenceSilo(
            single,
            task,
            silo,
            federation.scale,
            term,
            streams.for_run(run),
            start,
            members_of(silo, federation, plan.unit.name),
        )
        for silo, term in zip(federation.silos, terms, strict=True)
    ]
    shared, _ = single.init(start, count)
    for number in range(rounds):
        sent = single.broadcast(shared)
        taking_part = [True] * count if plan.present is None else plan.present[number, run].tolist()
        steps = [None] * count if plan.steps is None else plan.steps[number, run].tolist()
        answers = [
            silo.answer(pack(addressed(sent, k, count)), number, steps[k])
            for k, silo in enumerate(silos)
            if taking_part[k]
        ]
        received = iter(unpack(answer) for answer in answers)
        shape = unpack(answers[0] if answers else silos[0].shape(pack(addressed(sent, 0, count)), number))
        nothing = map_leaves(torch.zeros_like, shape)
        uploads = concatenate([next(received) if flag else nothing for flag in taking_part], dim=1)
        present = None if all(taking_part) else torch.tensor([taking_part])
        facts = replace(roster, round=number, present=present)
        if plan.merge is None:
            shared = single.merge(shared, uploads, PlainMerger(facts))
        else:
            merger = SlowMerger.of(facts, plan.merge, streams, run)
            shared = single.merge(shared, *hide_uploads(merger, uploads))
            refuse_handles(shared)
    sent = single.broadcast(shared)
    return torch.stack([silo.personal(pack(addressed(sent, k, count))) for k, silo in enumerate(silos)])
