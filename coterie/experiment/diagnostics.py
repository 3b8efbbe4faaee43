"""Diagnostics of methods that relate silos: the learned Omega and, without privacy, duality gaps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..cohort.dp_sgd import Cohort
from ..cohort.dual.gap import duality_gap
from ..protocol.method import Method
from ..protocol.state import State
from .result import Result, RunRecord

MOST_GAPS = 1000


@dataclass
class Watch:
    """Collects the diagnostics of one training of `rounds` rounds."""

    method: Method
    cohort: Cohort
    rounds: int
    omega: Tensor | None = None
    learned: dict[str, Tensor] = field(default_factory=dict)
    gaps: list[tuple[int, list[float]]] = field(default_factory=list)

    def see(self, state: State) -> None:
        """Record the latest relations of a state, and the gap of each round, at most a thousand in all."""
        last = state.round == self.rounds
        every = -(-self.rounds // MOST_GAPS)
        bare = bool(torch.isinf(self.cohort.settings.clip).all()) and self.method.linear
        if not last and not (bare and state.round % every == 0):
            return
        if last:
            self.learned = dict(self.method.learned_silos(state.shared))
        relations = self.method.learned_relations(state.shared)
        if relations is None:
            return
        self.omega = relations.omega
        if bare and relations.lam is not None:
            gap = duality_gap(self.cohort, state.own, relations.omega, relations.lam)
            self.gaps.append((state.round, gap.tolist()))

    def add_to(self, result: Result) -> Result:
        """Return a result with the diagnostics added."""
        runs = [
            replace(
                run, gaps=[(number, each[r]) for number, each in self.gaps], learned=self._learned(run, r)
            )
            for r, run in enumerate(result.runs)
        ]
        relations = {} if self.omega is None else {r: self.omega[r].cpu() for r in range(len(runs))}
        return replace(result, runs=runs, relations=relations)

    def _learned(self, run: RunRecord, r: int) -> dict[str, dict[str, float]]:
        """Return what the server knows about each silo in one run, by name."""
        return {
            name: dict(zip(run.silos, map(float, of[r if len(of) > 1 else 0].tolist()), strict=True))
            for name, of in self.learned.items()
        }
