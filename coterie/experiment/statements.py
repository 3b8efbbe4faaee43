"""Statements of what each silo spent in a run."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..guard.meter import Meter
from ..planning.accounting import Account, accounting_of
from ..planning.plan import Plan
from ..privacy.cache import Cache
from ..privacy.events import Event
from ..privacy.keys import Key, find_key
from ..privacy.ledger.filters import repeated
from ..privacy.statement.build import TEST_PART, OpenedDoor, build_statement
from ..privacy.statement.origin import Origin, data_facts, run_id
from .experiment import Experiment
from .study import Study

HOME_ALWAYS = "the silo's examples, for training and for tests"
HOME_RAW = "the silo's own model and whatever else it keeps: they carry no noise, so they must stay there"
HOME_SEALED = "the silo's dual variables, which only its own door reads"
HOME_ALL = "the silo's model: nothing was sent to the server"


@dataclass(frozen=True)
class Issue:
    """The study that statements are issued for: a digest of its configuration, and the name of its model.

    `keys` sign the statements of a simulation. Those of a metered run are signed with its ledgers' keys.
    `run` is the id of a deployed training, which all its silos share.
    """

    configuration: str | None = None
    model: str | None = None
    keys: Path | None = None
    run: str | None = None

    @classmethod
    def of(cls, study: Study) -> Issue:
        """Return how a study's statements are issued."""
        digest = hashlib.sha256(study.text.encode()).hexdigest()
        return cls(digest, study.config.model.name, study.custody.keys)

    def check(self, silos: tuple[str, ...]) -> None:
        """Raise `Problem` unless there is a key for every silo, if there are keys at all."""
        if self.keys is not None:
            for silo in silos:
                find_key(self.keys, silo)

    def key(self, silo: str, k: int, meter: Meter | None) -> Key | None:
        """Return the key that signs a statement: the ledger's, else that of the study, if it has keys."""
        if meter is not None:
            return meter.ledgers[k].key()
        return None if self.keys is None else find_key(self.keys, silo)


def published_facts(statement: dict[str, Any]) -> dict[str, Any]:
    """Return what papers' formulas report for a statement's events, and warnings where that is too low."""
    formulas = {each["paper"]: each["epsilon"] for each in statement["published"]}
    return {"epsilon": formulas, "warnings": statement["warnings"]}


def statement_of(
    experiment: Experiment,
    plan: Plan,
    run: int,
    k: int,
    meter: Meter | None = None,
    cache: Cache | None = None,
    issue: Issue | None = None,
) -> dict[str, Any]:
    """Return the statement of one silo in one run, from its ledger if the run was metered."""
    account = accounting_of(plan).account(plan, run, k) if meter is None else meter.account(k, run)
    return statement_for(experiment, plan, run, k, account, cache=cache, meter=meter, issue=issue)


def statement_for(
    experiment: Experiment,
    plan: Plan,
    run: int,
    k: int,
    account: Account,
    tuning: dict[str, Any] | None = None,
    score: float | None = None,
    seen: tuple[str, ...] | None = None,
    cache: Cache | None = None,
    meter: Meter | None = None,
    issue: Issue | None = None,
    scored: int | None = None,
) -> dict[str, Any]:
    """Return the statement of one silo from its account; `score` is the noise of scores that it releases.

    They are released in the round `scored`, or in the last one of the training if that is None.
    `seen` names the adversaries who saw what was released, if they differ from those of a single run.
    """
    silo, issue = plan.silos[run][k], issue or Issue()
    clips = clips_of(experiment, run, k, tuning is not None)
    released = accounting_of(plan).released(plan, run, k, account, clips)
    doors = list(released.doors)
    if score is not None:
        last = len(plan.counts.calls) - 1 if scored is None else scored
        happened = sum(first <= last < end for first, end in account.rounds)
        doors.append(score_door(experiment, k, score, clips.total() * happened))
    planned = account if meter is None else accounting_of(plan).account(plan, run, k)
    return build_statement(
        silo=silo.name,
        method=experiment.method.title,
        settings=experiment.variants[experiment.keys[run][1]].shown,
        size=silo.work.size,
        doors=[door for door in doors if door.calls],
        events=released.events,
        seen=released.seen if seen is None else seen,
        budget=planned.budget,
        delta=account.delta,
        not_covered=(*experiment.not_covered(run, k), *([] if score is None else [TEST_PART])),
        charged=account.epsilon,
        ledger=account.facts,
        tuning=tuning,
        cache=cache,
        merges=released.merges,
        origin=_origin(experiment, plan, run, k, meter, issue, tuning is not None),
        key=issue.key(silo.name, k, meter),
        unit=plan.unit.name,
        asked=_asked(plan, run, k, account) if plan.unit.name == "person" else None,
    )


def _asked(plan: Plan, run: int, k: int, account: Account) -> tuple[Event, ...]:
    """Return what a run was charged for: all that was planned, and each repetition of rounds."""
    claim = accounting_of(plan).claim("", plan, run, k)
    again = [event for span in repeated(account.rounds) for event in claim.events(*span)]
    return (*claim.events(0, claim.rounds), *again)


def clips_of(experiment: Experiment, run: int, k: int, swept: bool) -> Counter[float]:
    """Return the clip of silo k in a run; of a sweep, how many trials had each clip."""
    together = range(len(experiment.clip)) if swept else [run]  # the runs of a sweep are its trials
    return Counter(float(experiment.clip[trial, k]) for trial in together)


def score_door(experiment: Experiment, k: int, noise: float, calls: int) -> OpenedDoor:
    """Return the door through which silo k released noised scores."""
    tests = len(experiment.federation.silos[k].test_y)
    return OpenedDoor("score", calls, 1, "all test examples", 1.0, tests, 1.0, noise)


def _origin(
    experiment: Experiment, plan: Plan, run: int, k: int, meter: Meter | None, issue: Issue, swept: bool
) -> Origin:
    """Return on which data and model a run trained, and what stayed with silo k."""
    federation, silo, seed = experiment.federation, experiment.federation.silos[k], experiment.keys[run][0]
    identity = federation.identities[k] if federation.source else None
    if meter is not None:
        identity = meter.ledgers[k].identity
    rows = [] if meter is None else meter.rows(0 if swept else run)  # all trials of a sweep are one claim
    label = experiment.labels[experiment.keys[run][1]]
    known = issue.run or run_id(issue.configuration, federation.source, label, seed, rows)
    return Origin(
        data=data_facts(federation.name, identity, len(silo.y) + len(silo.test_y)),
        model=model_facts(experiment, issue),
        run={"id": known, "seed": seed, "rounds": experiment.training.rounds},
        configuration=issue.configuration,
        stayed_home=stayed_home(plan, run, k),
    )


def model_facts(experiment: Experiment, issue: Issue) -> dict[str, Any]:
    """Return what a statement says about its model."""
    name = issue.model or type(experiment.task.module).__name__
    start = experiment.task.start_digest
    facts = {"name": name, "parameters": experiment.task.layout.size}
    return facts | ({"start": start} if start else {})


def stayed_home(plan: Plan, run: int, k: int) -> list[str]:
    """Return what silo k never handed out in a run."""
    kept = [HOME_ALWAYS]
    if not plan.silos[run][k].bytes_up:
        kept.append(HOME_ALL)
    if not plan.unit.noise_in_doors:
        kept.append(HOME_RAW)
    if any(plan.counts.sealed):
        kept.append(HOME_SEALED)
    return kept
