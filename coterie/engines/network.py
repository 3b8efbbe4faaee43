"""The network engine: the server's half of a round in one process, each silo's half in another.

A coordinator runs `broadcast` and `merge`, and a silo runs `local`; between them travel trees of tensors. The
method is the same as in the other engines. A deployed training has one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..cohort.dp_sgd import Cohort
from ..cohort.merging import MergeStreams, PrivateMerger, clipped_sum
from ..cohort.oracle import CohortOracle
from ..errors import Problem
from ..planning.plan import Plan
from ..protocol.handles import hide_uploads, refuse_handles
from ..protocol.merging import MergeRule, PlainMerger
from ..protocol.messages import Only, addressed
from ..protocol.method import Method
from ..protocol.oracle import Oracle, doors_of
from ..protocol.roster import Roster
from ..protocol.settings import PerRun
from ..protocol.state import State
from ..protocol.streams import Streams
from ..protocol.tree import Tree, concatenate, leaves, map_leaves
from .start import SeededStart

Ask = Callable[[int, Mapping[int, Tree]], Mapping[int, Tree]]


@dataclass(frozen=True, eq=False)
class SiloSide:
    """One silo's half of a training: `cohort` holds this silo alone, `place` is its index among all silos."""

    method: Method
    cohort: Cohort
    plan: Plan
    place: int
    start: SeededStart

    def begin(self) -> Tree:
        """Return the state that the silo keeps before the first round."""
        return self.method.init(self.start, 1)[1]

    def work(self, number: int, sent: Tree, own: Tree, streams: Streams) -> tuple[Tree, Tree]:
        """Do the local work of a round; return the upload and the silo's new state.

        Under the unit 'silo', an upload that is noised at home is clipped and noised here.
        """
        steps = self.plan.steps_at(number)
        own_steps = None if steps is None else steps[:, [self.place]]
        oracle = CohortOracle(
            self.cohort,
            streams,
            number,
            self.plan.counts.calls[number],
            self.start.rounds,
            None,
            self.plan.unit,
            own_steps,
        )
        upload, own = self.method.local(sent, own, doors_of(oracle))
        merge = self.plan.merge
        if merge is not None and merge.where != "server" and self.plan.counts.merged[number]:
            upload = self._noised(number, upload, streams)
        return upload, own

    def _noised(self, number: int, upload: Tree, streams: Streams) -> Tree:
        """Return the one vector of an upload, clipped and noised, in float64."""
        rule, (vector, *others) = self.plan.merge, list(leaves(upload))
        assert rule is not None
        if others:
            raise Problem("under the unit 'silo' with noise from the silos, an upload must be one vector")
        name = self.start.roster.names[self.place]
        limits = rule.limits(vector)  # one number for all silos, or one for each
        limit = limits[:, [self.place if limits.shape[1] > 1 else 0]]
        total = clipped_sum(vector, limit, None)
        deviation = rule.scale * float(rule.noise[0]) * float(rule.clip[0])
        noisy = streams.merging(0, name, number).noisy(total.numpy(), deviation)
        return map_leaves(lambda _: torch.as_tensor(noisy), upload)

    def personal(self, sent: Tree, own: Tree) -> Tensor:
        """Return the vector that the silo predicts with, `[P]`."""
        return self.method.personal(sent, own).reshape(-1)


@dataclass(frozen=True, eq=False)
class ServerSide:
    """The server's half of a training: `ask` sends each silo its tree and returns the uploads that came.

    `fewest` silos must answer a round in which more are planned, or the training stops with a problem.
    """

    method: Method
    plan: Plan
    start: SeededStart
    streams: MergeStreams
    ask: Ask
    fewest: int = 1

    @property
    def roster(self) -> Roster:
        """The public facts about the silos."""
        return self.start.roster

    def begin(self) -> State:
        """Return the state before the first round; of what silos keep it has the shapes only."""
        shared = self.method.init(self.start, len(self.roster))[0]
        return State(0, shared, self.method.init(self.start, 1)[1])

    def rounds(self, state: State) -> Iterator[tuple[State, tuple[int, ...]]]:
        """Yield the state after each further round, and the places of the silos whose uploads it merged."""
        for number in range(state.round, self.start.rounds):
            sent, planned = self.method.broadcast(state.shared), self._planned(number)
            parts = {k: addressed(sent, k, len(self.roster)) for k in planned}
            uploads = dict(self.ask(number, parts))
            doors = doors_of(_Blank(number, self.start.rounds))
            like, own = self.method.local(addressed(sent, 0, len(self.roster)), state.own, doors)
            for k, upload in uploads.items():
                check_like(upload, like, f"the upload of '{self.roster.names[k]}'")
            if len(uploads) < min(self.fewest, len(planned)):
                missing = ", ".join(self.roster.names[k] for k in planned if k not in uploads)
                raise Problem(
                    f"round {number}: {len(uploads)} of {len(planned)} silos answered, and the plan needs"
                    f" {min(self.fewest, len(planned))}; no answer from {missing}"
                )
            state = State(number + 1, self._merge(number, state.shared, uploads, like), own)
            yield state, tuple(sorted(uploads))

    def _planned(self, number: int) -> list[int]:
        present = self.plan.present_at(number, 1, None)
        return [k for k in range(len(self.roster)) if present is None or bool(present[0, k])]

    def _merge(self, number: int, shared: Tree, uploads: Mapping[int, Tree], like: Tree) -> Tree:
        """Return the server's new state."""
        count = len(self.roster)
        nothing = map_leaves(torch.zeros_like, like)
        whole = concatenate([uploads.get(k, nothing) for k in range(count)], dim=1)
        present = None if len(uploads) == count else torch.tensor([[k in uploads for k in range(count)]])
        roster = replace(self.roster, round=number, rounds=self.start.rounds, present=present)
        rule = self.plan.merge
        if rule is None:
            return self.method.merge(shared, whole, PlainMerger(roster))
        kind = PrivateMerger
        if rule.where != "server":
            rule, kind = MergeRule(torch.zeros(1), torch.full((1,), torch.inf), rule.cohort), _Noised
        merger = kind.of(roster, rule, self.streams, whole, self.plan.counts.merged[number])
        merged = self.method.merge(shared, *hide_uploads(merger, whole))
        refuse_handles(merged)
        return merged


class _Noised(PrivateMerger):
    """Adds up what silos have clipped and noised in float64; a mean has the type of a model."""

    def mean(self, uploads: Tensor, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Return the mean, `[runs, 1, ...]`."""
        return super().mean(uploads, weights, everybody).float()


class _Blank(Oracle):
    """Doors that return what they were given, or zeros."""

    def __init__(self, number: int, rounds: int) -> None:
        self.round, self.rounds = number, rounds

    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
        imitate: Tensor | None = None,
    ) -> Tensor:
        """Return the start."""
        return start.clone()

    def fisher(self, vectors: Tensor) -> Tensor:
        """Return ones."""
        return torch.ones_like(vectors)

    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Choose the first."""
        return torch.zeros(1, 1, dtype=torch.int64)

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
        """Move nothing."""
        return torch.zeros_like(start), duals


def check_like(tree: Tree, like: Tree, what: str) -> None:
    """Raise `Problem` unless a tree has the shapes and types of another, and only finite numbers."""
    if isinstance(like, Only) and isinstance(tree, Only):
        tree, like = (tree.sends, tree.value), (like.sends, like.value)
    if isinstance(like, Tensor):
        if not isinstance(tree, Tensor) or tree.shape != like.shape:
            raise Problem(f"{what}: expected numbers of shape {tuple(like.shape)}, got {_shape(tree)}")
        same = tree.dtype == like.dtype or (tree.is_floating_point() and like.is_floating_point())
        if not same:
            raise Problem(f"{what}: expected numbers of type {like.dtype}, got {tree.dtype}")
        if tree.is_floating_point() and not bool(torch.isfinite(tree).all()):
            raise Problem(f"{what}: some numbers are not finite")
        return
    if type(tree) is not type(like) or (like is not None and len(tree) != len(like)):
        raise Problem(f"{what}: it does not have the parts that the method sends")
    if isinstance(like, dict):
        if set(tree) != set(like):
            raise Problem(f"{what}: it does not have the parts that the method sends")
        tree, like = [tree[key] for key in sorted(like)], [like[key] for key in sorted(like)]
    for part, other in zip(tree or (), like or (), strict=True):
        check_like(part, other, what)


def _shape(tree: Tree) -> str:
    return str(tuple(tree.shape)) if isinstance(tree, Tensor) else type(tree).__name__
