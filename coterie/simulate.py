"""Engine 1: all silos and all runs in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .cohort.descend import Cohort
from .method import Method
from .oracle import CohortOracle
from .plan import Plan
from .roster import Roster
from .streams import Streams, seed_for
from .task import Task
from .tree import Tree, map_leaves


@dataclass(frozen=True, eq=False)
class State:
    """Where a training stands after `round` rounds."""

    round: int
    shared: Tree
    own: Tree


@dataclass(frozen=True)
class SeededStart:
    """Initial vectors: one for each run's seed."""

    task: Task
    seeds: Sequence[int]
    device: str = "cpu"

    def initial(self, index: int = 0) -> Tensor:
        """Give the initial vector of every run: `[runs, 1, P]`."""
        vectors = [self.task.initial(seed_for(seed, f"initial/{index}")) for seed in self.seeds]
        return torch.stack(vectors).unsqueeze(1).to(self.device)


def simulate(
    method: Method,
    cohort: Cohort,
    plan: Plan,
    roster: Roster,
    seeds: Sequence[int],
    streams: Streams,
    start: State | None = None,
    before: Callable[[int], Sequence[int]] | None = None,
) -> Iterator[State]:
    """Train; give the state before the first round (or `start`, to go on from it) and after each.

    `before` is asked before each round which silos take part in it, by their places; silos that
    do not keep their state, and `merge` sees only those that do.
    """
    state = start
    if state is None:
        state = State(0, *method.init(SeededStart(cohort.task, seeds, cohort.device), len(roster)))
    yield state
    everyone = list(range(len(roster)))
    for number in range(state.round, len(plan.counts.calls)):
        places = everyone if before is None else list(before(number))
        state = _round(method, cohort, plan.counts.calls[number], roster, streams, state, places)
        yield state


def _round(
    method: Method,
    cohort: Cohort,
    calls: tuple[str, ...],
    roster: Roster,
    streams: Streams,
    state: State,
    places: list[int],
) -> State:
    shared, own = state.shared, state.own
    if not places:
        return State(state.round + 1, shared, own)
    some = places != list(range(len(roster)))
    if some:
        cohort, roster = cohort.pick(tuple(places)), roster.pick(places)
        own = map_leaves(lambda leaf: leaf[:, places], own)
    oracle = CohortOracle(cohort, streams, state.round, calls)
    uploads, own = method.local(method.broadcast(shared), own, oracle)
    shared = method.merge(shared, uploads, roster)
    if some:
        index = torch.tensor(places, device=cohort.device)
        own = map_leaves(lambda all_, part: all_.index_copy(1, index, part), state.own, own)
    return State(state.round + 1, shared, own)


def personal_vectors(method: Method, state: State, silos: int) -> Tensor:
    """Give the vectors that silos predict with: `[runs, silos, P]`."""
    return method.personal(method.broadcast(state.shared), state.own).expand(-1, silos, -1)
