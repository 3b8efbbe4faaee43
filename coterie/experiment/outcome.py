"""From what a training leaves behind to the records of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from ..guard.checkpoint import History
from ..planning.plan import Plan
from .measures import Measures
from .result import Result, RunRecord, SiloRecord

if TYPE_CHECKING:
    from .experiment import Experiment


class Outcome(NamedTuple):
    """The scores `[runs, silos]` and vectors `[runs, silos, P]` that a training ended with, and its history.

    `spent[k][run]` is what silo k's ledger charged, if there is one.
    """

    scores: Tensor
    vectors: Tensor
    history: History
    seconds: float
    spent: list[list[tuple[float, float]]] | None
    measures: Measures


def make_result(experiment: Experiment, plan: Plan, outcome: Outcome, notes: list[str]) -> Result:
    """Return the result of a training."""
    federation, history, keys = experiment.federation, outcome.history, experiment.keys
    runs = []
    for r, (seed, variant) in enumerate(keys):
        silos = {}
        for k, silo in enumerate(plan.silos[r]):
            charged = (silo.epsilon, silo.delta) if outcome.spent is None else outcome.spent[k][r]
            silos[silo.name] = SiloRecord(float(outcome.scores[r, k]), *charged, silo.noise)
        runs.append(
            RunRecord(
                method=experiment.method.title,
                settings=experiment.variants[variant].shown,
                seed=seed,
                metric=experiment.task.metric,
                score=history[-1].totals[r],
                silos=silos,
                seconds=outcome.seconds / len(keys),
                bytes_up=sum(silo.bytes_up for silo in plan.silos[r]),
                bytes_down=sum(silo.bytes_down for silo in plan.silos[r]),
                history=[(point.round, point.totals[r]) for point in history],
                curves=_curves([point.scores[r] for point in history], federation.names),
                losses=_curves([point.losses[r] for point in history], federation.names),
                measures=outcome.measures.runs[r],
                constant=outcome.measures.constant,
                no_better=outcome.measures.no_better[r],
            )
        )
    kept = {r: outcome.vectors[r] for r in range(len(runs))}
    return Result(experiment.task, federation.names, runs, kept, notes, preparation=federation.preparation)


def _curves(rows: Sequence[Sequence[float] | None], names: Sequence[str]) -> dict[str, list[float]]:
    """Return the numbers of each silo, one for each row `[silos]`; none if a row is not known."""
    known = [row for row in rows if row is not None]
    return (
        {name: [row[k] for row in known] for k, name in enumerate(names)} if len(known) == len(rows) else {}
    )
