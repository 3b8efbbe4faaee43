"""Train the methods of a study: with ledgers all of them, or none if they cannot pay for all.

A `Store` keeps a training in a folder, so that it can be interrupted and resumed; a `Listener` follows
its progress.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ..errors import Problem, first_line
from ..guard.interrupts import InterruptAfterRound, InterruptsHeld
from ..guard.meter import Meter, make_meter
from ..guard.session import Pace, Session
from ..guard.waiting import cancel_unreserved, cancel_waiting, claim_together
from ..planning.plan import Plan
from .estimate import rehearse
from .experiment import Experiment
from .ledger_coverage import new_budgets
from .listener import Listener
from .result import Result, RunRecord
from .run_facts import charging_for
from .statements import Issue
from .study import Study, StudyPlan, plan_study
from .trained import Trained

WAITING = ".claims"  # the file of a folder that keeps the claims of trainings that have not begun


class Store(Protocol):
    """Where a training is kept: a folder with its result, statements, models and checkpoints."""

    @property
    def path(self) -> Path:
        """The folder."""
        ...

    def open(self, study: Study) -> list[RunRecord]:
        """Create the folder, or find an interrupted study in it; return the runs that have finished."""
        ...

    @property
    def examples(self) -> str:
        """A digest of what the study works on, from when it is opened until it is complete."""
        ...

    def has(self, trained: Trained, runs: list[RunRecord]) -> bool:
        """Whether an experiment is finished in the folder."""
        ...

    def read(self, trained: Trained) -> tuple[Trained, dict[int, Tensor]]:
        """Return a finished experiment with its statements, and the models `[silos, P]` of runs."""
        ...

    def save_experiment(self, trained: Trained, result: Result) -> None:
        """Write the statements and models of the first run of each variant."""
        ...

    def save(self, result: Result, complete: bool) -> None:
        """Write the result as a whole."""
        ...

    def is_complete(self) -> bool:
        """Return whether the whole result is saved."""
        ...

    def close(self) -> None:
        """Forget what a complete study worked on."""
        ...

    def discard(self) -> None:
        """Remove a folder in which nothing was trained yet."""
        ...


class Stopped(KeyboardInterrupt):
    """Ctrl-C ended a training whose folder can be resumed, unless it is `complete`."""

    def __init__(self, folder: Path, finished: Sequence[str], complete: bool = False) -> None:
        done = ", ".join(finished) or "nothing yet"
        how = f"stopped; finished and saved in '{folder}': {done}; run it again to resume"
        super().__init__(f"stopped after all was finished and saved in '{folder}'" if complete else how)
        self.folder, self.finished, self.complete = folder, tuple(finished), complete


def train_study(
    study: Study,
    plan: StudyPlan | None = None,
    listener: Listener | None = None,
    store: Store | None = None,
) -> Result:
    """Plan a study unless it has a plan, train it and return the result.

    With ledgers nothing is trained unless they pay for all methods. In a folder without ledgers, a single run
    makes them, each with the budget of the run.
    """
    listener = listener or Listener()
    experiments = study.experiments
    public = study.without_examples()
    result = Result(experiments[0].task, experiments[0].federation.names, notes=study.notes, study=public)
    for note in study.notes:
        listener.on_note(note)
    finished = [] if store is None else store.open(study)
    examples = "" if store is None else store.examples
    meters: list[Meter | None] = []
    waiting = None if store is None else store.path / WAITING
    pace = Pace()
    try:
        planned = plan or plan_study(study, listener)
        plans = planned.plans
        for note in planned.notes:
            if note not in result.notes:
                result.notes.append(note)
                listener.on_note(note)
        issue = Issue.of(study)
        meters = meters_for(study, plans[0] if study.alone else None)
        issue.check(experiments[0].federation.names)
        places = [None if store is None else store.path / f".checkpoint-{n}" for n in range(len(plans))]
        known = [
            Trained(experiment, own, meter is not None, folders=names, issue=issue)
            for experiment, own, meter, names in zip(
                public.experiments, plans, meters, study.folders, strict=True
            )
        ]
        done = [store is not None and store.has(trained, finished) for trained in known]
        begun = [
            is_done or (at is not None and at.exists()) for is_done, at in zip(done, places, strict=True)
        ]
        for experiment, own, meter, is_done in zip(experiments, plans, meters, done, strict=True):
            if meter is not None and not is_done:
                rehearse(experiment, own)
        _claim_all(study, plans, meters, begun, waiting, issue)
        for number, (experiment, own, meter) in enumerate(zip(experiments, plans, meters, strict=True)):
            trained = known[number]
            if store is not None and done[number]:
                runs = [run for run in finished if run.label in experiment.labels]
                result.add(_read_back(store, trained, runs, result))
                continue
            session = Session(
                places[number],
                study.key([number, experiment.labels], examples),
                meter,
                study.config.train.checkpoint,
                charging_for(experiment, issue),
                partial=study.alone,
                pace=pace,
            )
            new = train_one(experiment, own, session, listener, resumable=store is not None)
            with InterruptsHeld():
                if store is not None or meter is not None:
                    trained = trained.stated(meter)
                new.trained, new.published = {0: trained}, trained.published()
                if store is not None:
                    store.save_experiment(trained, new)
                result.add(new)
                if store is not None:
                    store.save(result, complete=False)
                session.finish()
        if store is not None:
            with InterruptsHeld():
                store.save(result, complete=True)
    except Problem:
        if store is not None:
            store.discard()
        raise
    except KeyboardInterrupt:
        if store is None:
            raise
        labels = list(dict.fromkeys(run.label for run in result.runs))
        raise Stopped(store.path, labels, store.is_complete()) from None
    finally:
        if meters and meters[0] is not None:
            cancel_waiting(meters, waiting)
            meters[0].close()
    return result


def train_one(
    experiment: Experiment, plan: Plan, session: Session, listener: Listener, resumable: bool
) -> Result:
    """Train one experiment; if it can be resumed, Ctrl-C lets the round finish first.

    If anything but a `Problem` is raised after the ledgers were charged, raise one that says so.
    """

    def hear(number: int, score: float | None) -> None:
        try:
            listener.on_round(experiment, number, score)
        except Exception as error:
            failed = f"on_round failed after round {number} of '{experiment.method.title}'"
            if (problem := _charged(session, failed, error)) is None:
                raise
            raise problem from error

    with contextlib.ExitStack() as held:
        if resumable:
            stopping = held.enter_context(InterruptAfterRound(listener.on_stopping))
            session = replace(session, stopping=stopping)
        try:
            return experiment.train(plan, hear, session)
        except Problem:
            if session.meter is not None and (session.path is None or not session.path.exists()):
                # With a checkpoint the claims are taken up again.
                cancel_unreserved(session.meter, session.meter.claims)
            raise
        except Exception as error:
            failed = f"training '{experiment.method.title}' failed"
            if (problem := _charged(session, failed, error)) is None:
                raise
            raise problem from error


def _charged(session: Session, failed: str, error: Exception) -> Problem | None:
    """Return a problem that says what stays charged and how to resume; None if nothing was charged."""
    meter = session.meter
    if meter is None or not meter.claims:
        return None
    most = max(sum(epsilon for epsilon, _ in meter.charged(k)) for k in range(len(meter.ledgers)))
    how = "it cannot be resumed, because no folder was given (out)"
    if session.path is not None and session.path.exists():
        how = "run the same again with the same folder (out) to resume it from its last checkpoint"
    return Problem(
        f"{failed} ({first_line(error)}); the run stays charged, with an epsilon of at most {most:.4g} per"
        f" silo: correct the error; {how}"
    )


def _read_back(store: Store, trained: Trained, runs: list[RunRecord], whole: Result) -> Result:
    """Return the result of an experiment that was finished before."""
    trained, vectors = store.read(trained)
    before = Result(whole.task, whole.names, runs, vectors, published=trained.published())
    before.trained, before.preparation = {0: trained}, trained.experiment.federation.preparation
    return before


def meters_for(study: Study, alone: Plan | None) -> list[Meter | None]:
    """Open the ledgers of a study; if the study is a single run, create missing ones with its budgets."""
    if study.ledger is None:
        return [None] * len(study.experiments)
    for experiment in study.experiments:
        experiment.check_metered()
    federation, unit = study.experiments[0].federation, study.config.privacy.unit
    budgets = new_budgets(study, alone)
    first = make_meter(study.ledger, federation, budgets, unit, study.custody)
    return [first.another() for _ in study.experiments]


def _claim_all(
    study: Study,
    plans: Sequence[Plan],
    meters: Sequence[Meter | None],
    begun: Sequence[bool],
    path: Path | None,
    issue: Issue,
) -> None:
    """Claim all that is still to be trained before anything is; a single run claims what it can pay for."""
    if study.alone:
        return
    waiting = {
        number: meter
        for number, (meter, is_begun) in enumerate(zip(meters, begun, strict=True))
        if meter is not None and not is_begun
    }
    asked = {}
    for number, meter in waiting.items():
        experiment, silos = study.experiments[number], range(len(meter.ledgers))
        claims = charging_for(experiment, issue).claims
        asked[number] = [claims(experiment.method.title, plans[number], k) for k in silos]
    if waiting:
        claim_together(waiting, asked, path)
