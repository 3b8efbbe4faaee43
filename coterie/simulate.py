"""Engine 1: all silos and all runs in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from .tree import Tree


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
    method: Method, cohort: Cohort, plan: Plan, roster: Roster, seeds: Sequence[int], streams: Streams
) -> Iterator[State]:
    """Train; give the state before the first round and after each."""
    shared, own = method.init(SeededStart(cohort.task, seeds, cohort.device), len(roster))
    yield State(0, shared, own)
    for number, calls in enumerate(plan.counts.calls):
        oracle = CohortOracle(cohort, streams, number, calls)
        uploads, own = method.local(method.broadcast(shared), own, oracle)
        shared = method.merge(shared, uploads, roster)
        yield State(number + 1, shared, own)


def personal_vectors(method: Method, state: State, silos: int) -> Tensor:
    """Give the vectors that silos predict with: `[runs, silos, P]`."""
    return method.personal(method.broadcast(state.shared), state.own).expand(-1, silos, -1)
