"""The door of noised scores: after the last round, each silo tells how well its own model does at home.

A silo adds up the scores of its test examples: 1 for each right answer or, for numbers, the squared error, at
most 1. It adds Gaussian noise, rounded to a public grid, and only the noisy sum leaves. If the plan asks for
the release "histogram", it counts its test examples by class and score instead, and adds noise to each count
(`histograms`). The plan says what this may cost, the owner approves it with the plan, and the ledger is
charged before anything is computed.

Formal guarantee: replacing one test example by a null one, which scores 0, moves the sum by at most 1,
whatever model is scored. So the sum with noise of deviation `noise` is one Gaussian release at rate 1. So are
all counts together, since a null example is not counted and any other is counted once.

**Which examples it is about.** The sum reads test examples. The model that is scored read training examples
through doors with noise, so the score tells nothing more about these. A ledger's data set has both parts, and
its unit 'example' is any example of either. Each example is in one part only, but every example is charged
for the training and for the score, as if it were in both. That is more than one training needs. It stays
true if another training divides the examples otherwise.

A whole silo decides its own score, so under the unit 'silo' no noise could hide the silo and leave a score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..cohort.examples import stack
from ..cohort.score import bounded_total
from ..errors import Problem
from ..experiment.config.schema import Scores
from ..experiment.measures import facts_of
from ..experiment.run_facts import facts_for
from ..measures.histogram import shape_of
from ..measures.private import balances
from ..planning.accounting import accounting_of
from ..planning.plan import Plan, SiloPlan
from ..privacy.adversaries import ADVERSARIES, table
from ..privacy.calibration import Target, noise_for
from ..privacy.events import Event
from ..privacy.ledger.claim import Claim
from ..privacy.statement.run_facts import digests_of
from ..protocol.streams import Streams
from .histograms import RELEASE, edges_of, measures_of_counts, own_counts, read_counts

if TYPE_CHECKING:
    from .plan_file import PlanFile
    from .prepared import Prepared

LIKELY = 0.95  # of the intervals
UNIT = (
    "scores: allowed only with unit = 'example', because a whole silo decides its own score and no noise"
    " could hide the silo; and one person may change many counts"
)


def score_event(scores: Scores | None, silo: SiloPlan, tests: int) -> Event | None:
    """Return the release of a silo's score; None if the plan asks for none or there are no test examples."""
    if scores is None or not tests:
        return None
    return Event("gaussian", noise_for(Target(scores.epsilon, silo.delta, 1.0, 1)).noise)


def with_score(claim: Claim, event: Event | None) -> Claim:
    """Return a claim that also pays for a score, in a round after the last; everybody may see the score."""
    if event is None:
        return claim
    more = replace(claim, stages=(*claim.stages, (1, (event,))), seen=tuple(ADVERSARIES))
    return replace(more, epsilon=more.certified(0, more.rounds))


def scored_plan(plan: Plan, scores: Scores, tests: list[int]) -> Plan:
    """Return a plan whose epsilons include the silos' scores."""
    if plan.unit.name != "example":
        raise Problem(UNIT)
    silos = []
    for k, silo in enumerate(plan.silos[0]):
        event = score_event(scores, silo, tests[k])
        if event is not None and math.isfinite(silo.epsilon):
            spent = with_score(accounting_of(plan).claim("", plan, 0, k), event).epsilon
            silo = replace(silo, epsilon=spent, budget=max(spent, silo.budget + scores.epsilon))
        silos.append(silo)
    return replace(plan, silos=(tuple(silos),))


def score_of(prepared: Prepared) -> Event | None:
    """Return the release of the score of a guard's silo."""
    k = prepared.place
    return score_event(prepared.file.scores, prepared.plan.silos[0][k], prepared.file.tests[k])


def claim_of(prepared: Prepared, label: str) -> Claim:
    """Return the claim of a training on a guard's ledger, with the score that it may release."""
    experiment, plan, k = prepared.experiment, prepared.plan, prepared.place
    score = score_of(prepared)
    claim = with_score(accounting_of(plan).claim(label, plan, 0, k), score)
    facts = facts_for(experiment, plan, 0, k, prepared.issue, score=score)
    return replace(claim, facts=digests_of(facts))


def against(prepared: Prepared) -> dict[str, float | None]:
    """Return epsilon against each adversary: None without protection, 0 if it sees nothing."""
    silo = prepared.plan.silos[0][prepared.place]
    if score_of(prepared) is not None:
        return table(silo.epsilon, tuple(ADVERSARIES))
    return accounting_of(prepared.plan).adversaries(silo)


def noised_score(prepared: Prepared, vector: Tensor, event: Event, streams: Streams) -> float | list[float]:
    """Return the noisy sum of the test examples' scores with a silo's own model, or its noisy counts."""
    experiment, name, scores = prepared.experiment, prepared.file.names[prepared.place], prepared.file.scores
    assert scores is not None
    test = stack(experiment.federation.pick([name]), "test", experiment.training.device)
    dice, memory = streams.dice(0, name, experiment.training.rounds, 0), experiment.training.memory
    if scores.release == RELEASE:
        counts = own_counts(scores, experiment.task, test, vector, memory)
        return [float(count) for count in dice.noisy(counts.reshape(-1), event.noise)]
    total = bounded_total(experiment.task, test, vector.reshape(1, 1, -1), memory)
    return float(dice.noisy(total.reshape(()).cpu().numpy(), event.noise))


def shared_scores(
    file: PlanFile, plan: Plan, facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the silos' noised scores, and that of all together, each with an interval; None without a door.

    `facts` are what silos said when they finished. An interval is about the noise: with a chance of 95 % it
    holds the score that the silo has at home.
    """
    if file.scores is None:
        return None
    if file.scores.release == RELEASE:
        return _shared_counts(file, file.scores, plan, facts)
    silos, total, count, variance = {}, 0.0, 0, 0.0
    for k, name in enumerate(file.names):
        event, said = (
            score_event(file.scores, plan.silos[0][k], file.tests[k]),
            facts.get(name, {}).get("score"),
        )
        if event is None or not isinstance(said, float) or not math.isfinite(said):
            continue
        silos[name] = _interval(said, file.tests[k], event.noise)
        total, count, variance = total + said, count + file.tests[k], variance + event.noise**2
    every = _interval(total, count, math.sqrt(variance)) if count else None
    return {"metric": file.blank.task.metric, "chance": LIKELY, "silos": silos, "all": every}


def _shared_counts(
    file: PlanFile, scores: Scores, plan: Plan, facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the same from noisy counts, with the measures that follow from them."""
    task = file.blank.task
    edges = edges_of(scores, task)
    shape = shape_of(facts_of(task).kind, task.classes, edges or ())
    tables: dict[str, tuple[np.ndarray, float]] = {}
    silos, hits, tests, variance = {}, 0.0, 0, 0.0
    for k, name in enumerate(file.names):
        event = score_event(scores, plan.silos[0][k], file.tests[k])
        table = read_counts(facts.get(name, {}).get("score"), shape)
        if event is None or table is None:
            continue
        tables[name] = table, event.noise
        right = balances(table, event.noise, edges)["accuracy"].part
        cells = table.size // 2 if edges is not None else len(table)
        silos[name] = _interval(right, file.tests[k], event.noise * math.sqrt(cells))
        hits, tests, variance = hits + right, tests + file.tests[k], variance + event.noise**2 * cells
    each, all_of_them = measures_of_counts(scores, task, tables)
    every = {**_interval(hits, tests, math.sqrt(variance)), **all_of_them} if tests else None
    known = {name: {**own, **each[name]} for name, own in silos.items()}
    about = {"metric": task.metric, "chance": LIKELY, "release": RELEASE, "edges": edges and list(edges)}
    return {**about, "silos": known, "all": every}


def _interval(total: float, tests: int, deviation: float) -> dict[str, float]:
    """Return a noisy mean, forced into [0, 1], with the interval that the noise leaves."""
    reach = NormalDist().inv_cdf((1 + LIKELY) / 2) * deviation
    value, low, high = (min(max((total + way * reach) / tests, 0.0), 1.0) for way in (0, -1, 1))
    return {"value": value, "low": low, "high": high, "tests": tests, "deviation": deviation / tests}
