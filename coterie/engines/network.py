"""The network engine: the server's half of a round in one process, each silo's half in another.

A coordinator runs `broadcast` and `merge`, and a silo runs `local`; between them travel trees of tensors. The
method is the same as in the other engines. A deployed training has one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
AskSum = Callable[[int, Mapping[int, Tree]], tuple[Tensor, Sequence[int]]]


def vector_of(upload: Tree) -> Tensor:
    """Return the one vector of an upload under the unit 'silo'."""
    vector, *others = leaves(upload)
    if others:
        raise Problem("under the unit 'silo' with noise from the silos, an upload must be one vector")
    return vector


def spread_sum(total: Tensor, like: Tree, places: Sequence[int]) -> dict[int, Tree]:
    """Return a sum of the uploads of silos at `places` as uploads that have this sum.

    The merge of uploads that silos noised at home asks for nothing but their sum, so the first may have it
    all, and the others zeros.
    """
    whole = map_leaves(lambda leaf: total.reshape(leaf.shape), like)
    zeros = map_leaves(torch.zeros_like, whole)
    return {k: whole if k == places[0] else zeros for k in places}


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

    def check(self, number: int, sent: Tree, own: Tree) -> None:
        """Raise `Problem` unless a round's local work can begin with what was sent: no door is opened."""
        doors = doors_of(_Shaped(number, self.start.rounds, self.cohort.task.layout.size))
        try:
            self.method.local(sent, own, doors)
        except Problem:
            raise
        except Exception as error:  # whatever a method raises for a tree that it did not send
            raise Problem(
                f"round {number}: the message does not have the form that the method sends"
            ) from error

    def train(
        self, number: int, sent: Tree, own: Tree, streams: Streams, drawn: bool = True
    ) -> tuple[Tree, Tree]:
        """Do the local work of a round; return the upload as it is, and the silo's new state.

        A silo that was not `drawn` works too, so that its time does not tell. It uploads zeros and keeps its
        state.
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
        upload, after = self.method.local(sent, own, doors_of(oracle))
        return (upload, after) if drawn else (map_leaves(torch.zeros_like, upload), own)

    def work(
        self, number: int, sent: Tree, own: Tree, streams: Streams, drawn: bool = True
    ) -> tuple[Tree, Tree]:
        """Do the local work of a round; return what may leave the silo, and the silo's new state.

        Under the unit 'silo', an upload that is noised at home is clipped and noised here, and an upload that
        nobody merges does not leave at all. One for a secure sum leaves only masked, so it is refused.
        """
        merge = self.plan.merge
        merged = merge is not None and self.plan.counts.merged[number]
        if merged and merge is not None and merge.where == "secure":
            raise Problem(f"round {number}: uploads of this plan leave a silo only with masks")
        upload, own = self.train(number, sent, own, streams, drawn)
        if merge is not None and not merged:
            return map_leaves(torch.zeros_like, upload), own
        if merge is not None and merge.where == "silos":
            upload = self._noised(number, upload, streams)
        return upload, own

    @property
    def own_clip(self) -> float:
        """The length that the silo's uploads to a merge are clipped to."""
        rule = self.plan.merge
        assert rule is not None
        share = 1.0 if rule.share is None else float(rule.share[0, self.place])
        return float(rule.clip[0]) * share

    def _noised(self, number: int, upload: Tree, streams: Streams) -> Tree:
        """Return the one vector of an upload, clipped and noised, in float64."""
        rule, vector = self.plan.merge, vector_of(upload)
        assert rule is not None
        total = clipped_sum(vector, torch.tensor([[self.own_clip]], dtype=torch.float64), None)
        deviation = rule.scale * float(rule.noise[0]) * float(rule.clip[0])
        dice = streams.merging(0, self.start.roster.names[self.place], number)
        noisy = dice.noisy(total.numpy(), deviation)
        return map_leaves(lambda _: torch.as_tensor(noisy), upload)

    def checked_personal(self, sent: Tree, own: Tree) -> Tensor:
        """Return the vector that the silo predicts with; raise `Problem` if it is no model."""
        try:
            vector = self.personal(sent, own)
        except Exception as error:  # whatever a method raises for a tree that it did not send
            raise Problem("the last message does not have the form that the method sends") from error
        check_model(vector, self.cohort.task.layout.size)
        return vector

    def personal(self, sent: Tree, own: Tree) -> Tensor:
        """Return the vector that the silo predicts with, `[P]`."""
        return self.method.personal(sent, own).reshape(-1)


@dataclass(frozen=True, eq=False)
class ServerSide:
    """The server's half of a training: `ask` sends each silo its tree and returns the uploads that came.

    In rounds with a secure sum, `ask_sum` returns the sum alone, and the places of the silos that are in it.
    `fewest` silos must answer another round in which more are planned, or the training stops with a problem.
    """

    method: Method
    plan: Plan
    start: SeededStart
    streams: MergeStreams
    ask: Ask
    fewest: int = 1
    ask_sum: AskSum | None = None

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
            sent, planned = self.method.broadcast(state.shared), self.plan.asked_at(number)
            parts = {k: addressed(sent, k, len(self.roster)) for k in planned}
            doors = doors_of(_Blank(number, self.start.rounds))
            like, own = self.method.local(addressed(sent, 0, len(self.roster)), state.own, doors)
            uploads = self._uploads(number, parts, like)
            state = State(number + 1, self._merge(number, state.shared, uploads, like), own)
            yield state, tuple(sorted(uploads))

    def skipped(self, state: State) -> State:
        """Return the state after a round whose uploads are lost: their sum counts as zero."""
        number, sent = state.round, self.method.broadcast(state.shared)
        doors = doors_of(_Blank(number, self.start.rounds))
        like, own = self.method.local(addressed(sent, 0, len(self.roster)), state.own, doors)
        zeros = map_leaves(torch.zeros_like, like)
        nothing = dict.fromkeys(self.plan.asked_at(number), zeros)
        return State(number + 1, self._merge(number, state.shared, nothing, like), own)

    def _uploads(self, number: int, parts: Mapping[int, Tree], like: Tree) -> dict[int, Tree]:
        """Return the uploads of a round, checked; those of a secure sum have its sum, and no more."""
        rule = self.plan.merge
        if rule is not None and rule.where == "secure" and self.plan.counts.merged[number]:
            if self.ask_sum is None:
                raise Problem("the plan's uploads are masked, and nothing here adds them up")
            total, places = self.ask_sum(number, parts)
            return spread_sum(total, like, places)
        uploads = dict(self.ask(number, parts))
        for k, upload in uploads.items():
            check_like(upload, like, f"the upload of '{self.roster.names[k]}'")
        if len(uploads) < min(self.fewest, len(parts)):
            missing = ", ".join(self.roster.names[k] for k in parts if k not in uploads)
            raise Problem(
                f"round {number}: {len(uploads)} of {len(parts)} silos answered, and the plan needs"
                f" {min(self.fewest, len(parts))}; no answer from {missing}"
            )
        return uploads

    def _merge(self, number: int, shared: Tree, uploads: Mapping[int, Tree], like: Tree) -> Tree:
        """Return the server's new state."""
        count = len(self.roster)
        nothing = map_leaves(torch.zeros_like, like)
        whole = concatenate([uploads.get(k, nothing) for k in range(count)], dim=1)
        whole = map_leaves(lambda leaf, other: leaf.to(other.dtype), whole, like)  # noised ones are float64
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


class _Shaped(_Blank):
    """Blank doors that take only models of the right size, of one silo in one run."""

    def __init__(self, number: int, rounds: int, size: int) -> None:
        super().__init__(number, rounds)
        self.size = size

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
        for vector in (start, toward, imitate):
            if vector is not None:
                self._check(vector)
        return start.clone()

    def fisher(self, vectors: Tensor) -> Tensor:
        """Return ones."""
        self._check(vectors)
        return torch.ones_like(vectors)

    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Choose the first."""
        self._check(candidates[..., :1, :])
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
        self._check(start)
        if stiffness.numel() != 1:
            raise Problem("expected one stiffness")
        return torch.zeros_like(start), duals

    def _check(self, vector: Tensor) -> None:
        check_model(vector, self.size)


def check_model(vector: Tensor, size: int) -> None:
    """Raise `Problem` unless a vector is one model, in float32."""
    if vector.shape[-1] != size or vector.numel() != size:
        raise Problem(f"expected a model of {size:,} numbers, got numbers of shape {tuple(vector.shape)}")
    if vector.dtype != torch.float32:
        raise Problem(f"expected a model of type float32, got {str(vector.dtype).removeprefix('torch.')}")


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
