"""Run a sweep: draw how many settings to try, train them, choose by a noisy score, and charge for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._seeds import seed_for
from ..errors import Problem
from ..guard.interrupts import InterruptsHeld
from ..guard.meter import Meter
from ..guard.session import Session
from ..planning.accounting import Account
from ..planning.plan import Plan
from ..privacy.adversaries import ADVERSARIES
from .config.schema import Tuning
from .estimate import rehearse
from .experiment import Experiment
from .files import write_json
from .listener import Listener
from .result import Result
from .run import Stopped, Store, meters_for, train_one
from .run_facts import charging_for
from .statements import Issue, statement_for
from .study import Study, without_examples
from .sweep import (
    Sweep,
    best_of,
    check_affordable,
    check_sweep,
    draw,
    generator_of,
    noised_scores,
    score_events,
    trials_of,
    tuned_plan,
)
from .trained import Trained
from .trial_scores import tuned_metric

NOTHING = (
    "{count} trials were drawn{why}, so nothing was trained or chosen. This is a valid outcome; drawing again"
    " would break the guarantee."
)


def sweep_study(study: Study, listener: Listener | None = None, store: Store | None = None) -> Result:
    """Try settings of one method, choose the best, charge for the choice, and return the result.

    `Result.tuning` says what was drawn and chosen, and what that costs.
    """
    listener = listener or Listener()
    if len(study.experiments) != 1:
        raise Problem("a sweep chooses among the settings of one method: give one method")
    experiment = study.experiments[0]
    tuning = study.config.tuning or Tuning()
    check_sweep(experiment, tuning, study.ledger is not None)
    trials = trials_of(tuning, len(experiment.variants))
    for note in study.notes:
        listener.on_note(note)
    if store is not None:
        store.open(study)
    meter: Meter | None = None
    try:
        (meter,) = meters_for(study, None)
        Issue.of(study).check(experiment.federation.names)
        seed = experiment.training.seeds[0]
        sweep = Sweep(trials, (0,), score_events(experiment, tuning), tuning.score == "public")
        plan = _first_plan(replace(experiment, picked=((seed, 0),)), sweep, listener)
        if meter is not None:
            rehearse(replace(experiment, picked=((seed, 0),)), plan)
        drawn = _drawn(experiment, sweep, plan, meter, None if store is None else store.path / "draw.json")
        sweep = replace(sweep, drawn=drawn)
        if not drawn or (trials.most is not None and len(drawn) > trials.most):
            result = _nothing(study, sweep, store, meter)
        else:
            result = _trials(study, sweep, store, meter, listener)
        result.study = study.without_examples()
        return result
    except Problem:
        if store is not None:
            store.discard()
        raise
    except KeyboardInterrupt:
        if store is None:
            raise
        raise Stopped(store.path, (), store.is_complete()) from None
    finally:
        if meter is not None:
            meter.close()


def _first_plan(experiment: Experiment, sweep: Sweep, listener: Listener) -> Plan:
    """Plan one trial, to know what to charge before the number of trials is drawn."""
    name = experiment.method.name
    listener.on_planning(name, 0, 0)
    try:
        return tuned_plan(experiment, sweep, lambda done, total: listener.on_planning(name, done, total))
    finally:
        listener.on_planned(name)


def _trials(
    study: Study, sweep: Sweep, store: Store | None, meter: Meter | None, listener: Listener
) -> Result:
    """Train the trials that were drawn, score them, choose one and save it."""
    experiment, tuning = study.experiments[0], study.config.tuning
    seed = experiment.training.seeds[0]
    keys = tuple((seed_for(seed, f"trial {t}"), v) for t, v in enumerate(sweep.drawn))
    experiment = replace(experiment, picked=keys)
    plan = tuned_plan(experiment, sweep)
    place = None if store is None else store.path / ".checkpoint-0"
    every = study.config.train.checkpoint
    issue = Issue.of(study)
    charging = charging_for(experiment, issue, sweep)
    session = Session(
        place, study.key([sweep.drawn], "" if store is None else store.examples), meter, every, charging
    )
    result = train_one(experiment, plan, session, listener, resumable=store is not None)
    with InterruptsHeld():
        metric = tuned_metric(None if tuning is None else tuning.metric, experiment.task)
        scores = noised_scores(experiment, sweep, _vectors(result), meter, metric)
        chosen = best_of(scores, metric.higher_is_better)
        silos = range(len(result.names))
        statements = [trial_statement(experiment, sweep, plan, chosen, k, meter, issue) for k in silos]
        result.tuning = {
            "accounted": True,
            "trials": sweep.trials.__dict__,
            "ran": len(sweep.drawn),
            "metric": metric.name,
            "scores": scores,
            "chosen": chosen,
            "settings": result.runs[chosen].settings,
            "epsilon": {
                "chosen": _most(s["adversaries"]["personal"]["epsilon"] for s in statements),
                "server": _most(s["guarantee"]["epsilon"] for s in statements),
            },
            "left": {} if meter is None else meter.left,
        }
        bare, metered = without_examples(experiment), meter is not None
        trained = Trained(bare, plan, metered, {chosen: statements}, chosen, issue=issue)
        result.trained, result.published = {0: trained}, trained.published()
        if store is not None:
            store.save_experiment(trained, result)
            store.save(result, complete=True)
        if meter is not None:
            meter.release_held(str(chosen))
        session.finish()
    return result


def _drawn(
    experiment: Experiment, sweep: Sweep, plan: Plan, meter: Meter | None, path: Path | None
) -> tuple[int, ...]:
    """Return the settings of the trials.

    They are drawn once, after the chosen trial is charged. They are kept in a file, and must be the same if
    a sweep is resumed.
    """
    label, settings = experiment.method.name, len(experiment.variants)
    best = [] if meter is None else [sweep.best(label, plan, k) for k in range(len(meter.ledgers))]
    kept = None if path is None or not path.exists() else _read_draw(path)
    if kept is not None and meter is not None:
        meter.take_held(best, kept[0])
    elif meter is not None:
        check_affordable(sweep, plan, meter, label)
        meter.hold(best)
    drawn = draw(sweep.trials, settings, generator_of(experiment.training.seeds[0], meter))
    if kept is not None and list(drawn) != kept[1]:
        raise Problem(f"'{path}' was changed, but trials are drawn only once; start again in another folder")
    if path is not None:
        write_json(path, {"held": [] if meter is None else meter.held, "settings": drawn}, lasting=True)
    return drawn


def _read_draw(path: Path) -> tuple[list[int], list[int]]:
    """Return the held rows and the drawn settings from a file."""
    try:
        content = json.loads(path.read_text())
        return [int(row) for row in content["held"]], [int(v) for v in content["settings"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f"'{path}' is damaged; start again in another folder ({error})") from error


def _most(values: Iterable[float | None]) -> float | None:
    """Return the largest epsilon, or None if any of them is None."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return max(known) if len(known) == len(listed) else None


def _vectors(result: Result) -> Tensor:
    return torch.stack([result.vectors[run] for run in range(len(result.runs))])


def _nothing(study: Study, sweep: Sweep, store: Store | None, meter: Meter | None) -> Result:
    """Save and return a result without a choice; it is charged anyway, since there could have been one."""
    count = len(sweep.drawn)
    if meter is not None:
        meter.release_held("nothing")
    why = "" if not count else f", more than tuning.most = {sweep.trials.most}"
    notes = [NOTHING.format(count=count, why=why)]
    experiment, public = study.experiments[0], study.without_examples()
    result = Result(experiment.task, experiment.federation.names, notes=notes, study=public)
    result.tuning = {"accounted": True, "trials": sweep.trials.__dict__, "ran": 0, "chosen": None}
    if store is not None:
        write_json(store.path / "result.json", {"complete": True, **result.to_json()})
        store.close()
    return result


def trial_statement(
    experiment: Experiment,
    sweep: Sweep,
    plan: Plan,
    run: int,
    k: int,
    meter: Meter | None,
    issue: Issue | None = None,
) -> dict[str, Any]:
    """Return silo k's statement about the chosen trial and all other trials."""
    silo = plan.silos[run][k]
    trials = sweep.asks(experiment.method.name, plan, k)[0]
    account = Account(
        trials.events(0, trials.rounds), silo.epsilon, silo.delta, silo.budget, ((0, trials.rounds),), None
    )
    if meter is not None:
        account = meter.account(k, 0)
    facts, scored = sweep.facts(plan, k), sweep.scores[k]
    about = (facts, None if scored is None else scored.noise, tuple(ADVERSARIES))
    return statement_for(experiment, plan, run, k, account, *about, meter=meter, issue=issue)
