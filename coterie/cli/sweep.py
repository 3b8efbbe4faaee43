"""What the command `sweep` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from .._seeds import seed_for
from ..errors import Problem
from ..experiment.config.schema import Config, Tuning
from ..experiment.experiment import Experiment
from ..experiment.from_config import make_experiments
from ..experiment.result import UNACCOUNTED, Result, file_names, label_of
from ..experiment.statements import published_facts, statement_for
from ..experiment.sweep import (
    Sweep,
    best_of,
    check_affordable,
    check_sweep,
    draw,
    entropy_of,
    noised_scores,
    score_events,
    trials_of,
    tuned_plan,
)
from ..guard.checkpoint import key_of
from ..guard.interrupts import undisturbed
from ..guard.meter import Meter
from ..guard.session import Charging, Session
from ..planning.accounting import Account
from ..planning.plan import Plan
from ..privacy.accountant import shown
from ..privacy.adversaries import ADVERSARIES
from ..privacy.trials import Trials
from ..report.folder import Folder, next_free, write_json
from ..report.tables import summary_table
from .run import meters_for, notes_of, progress_bar, run_config, tell, train_one

NOTHING = (
    "{count} trials were drawn{why}: nothing is trained and nothing chosen; that is an outcome, do not draw"
    " again"
)


def sweep_config(
    config: Config, out: Path | None, name: str, data_dir: str | None = None, as_json: bool = False
) -> None:
    """Try settings, choose the best, and bill it."""
    tuning = config.tuning or Tuning()
    if tuning.trials == "all":
        run_config(config, out, name, data_dir=data_dir, as_json=as_json)
        tell(Console(stderr=True), UNACCOUNTED, "yellow")
        return
    errors = Console(stderr=True)
    made = make_experiments(config, data_dir)
    if len(made) != 1:
        raise Problem("a sweep chooses among the settings of one method: give one [[method]] table")
    experiment = made[0]
    metered = config.privacy.ledger is not None
    check_sweep(experiment, tuning, metered)
    trials = trials_of(tuning, len(experiment.variants))
    folder = Folder(out or next_free(f"{name}-sweep"))
    for note in notes_of(made):
        tell(errors, f"note: {note}", "yellow")
    with progress_bar(errors) as bars:
        folder.open(config)
        meter: Meter | None = None
        try:
            (meter,) = meters_for(config, [experiment], None)
            result = _sweep(experiment, config, tuning, trials, folder, meter, bars)
        except Problem:
            folder.discard()
            raise
        except KeyboardInterrupt:
            bars.stop()
            tell(errors, f"\nStopped. To go on, give the same command with --out {folder.path}")
            sys.exit(130)
        finally:
            if meter is not None:
                meter.close()
    for note in result.notes:
        tell(errors, f"warning: {note}", "bold red")
    if as_json:
        print((folder.path / "result.json").read_text(), end="")
        return
    _tell(result, folder)


def _sweep(
    experiment: Experiment,
    config: Config,
    tuning: Tuning,
    trials: Trials,
    folder: Folder,
    meter: Meter | None,
    bars: Progress,
) -> Result:
    """Plan, draw, train, score, choose and save."""
    seed = experiment.training.seeds[0]
    sweep = Sweep(trials, (0,), score_events(experiment, tuning), tuning.score == "public")
    first = replace(experiment, picked=((seed, 0),))
    bar = bars.add_task("noise", total=None, score="")
    plan = tuned_plan(first, sweep, lambda done, total: bars.update(bar, completed=done, total=total))
    bars.remove_task(bar)
    sweep = replace(sweep, drawn=_drawn(experiment, sweep, plan, folder.path / "draw.json", meter))
    ran = len(sweep.drawn)
    key = key_of([config.to_toml(), sweep.drawn])
    charging = Charging(sweep.asks, together=True)
    session = Session(folder.path / ".checkpoint-0", key, meter, config.train.checkpoint, charging)
    if not ran or (trials.most is not None and ran > trials.most):
        return _nothing(experiment, sweep, folder, meter)
    keys = tuple((seed_for(seed, f"trial {t}"), v) for t, v in enumerate(sweep.drawn))
    experiment = replace(experiment, picked=keys)
    plan = tuned_plan(experiment, sweep)
    result = train_one(experiment, plan, bars, session)
    with undisturbed():
        scores = noised_scores(experiment, sweep, _vectors(result), meter)
        chosen = best_of(scores, experiment.task.higher_is_better)
        statements = [_statement(experiment, sweep, plan, chosen, k, meter) for k in range(len(result.names))]
        spent = [s["adversaries"]["personal"]["epsilon"] for s in statements]
        result.tuning = {
            "accounted": True,
            "trials": trials.__dict__,
            "ran": ran,
            "scores": scores,
            "chosen": chosen,
            "settings": result.runs[chosen].settings,
            "epsilon": {
                "chosen": _most(spent),
                "server": _most(s["guarantee"]["epsilon"] for s in statements),
            },
            "left": {} if meter is None else meter.left,
        }
        name = file_names([experiment.labels[keys[chosen][1]]])[0]
        folder.save_run(experiment, name, statements, result.vectors[chosen])
        result.published[name] = {content["silo"]: published_facts(content) for content in statements}
        folder.save(result, complete=True)
        if meter is not None:
            meter.release_held(str(chosen))
        session.finish()
    return result


def _drawn(
    experiment: Experiment, sweep: Sweep, plan: Plan, path: Path, meter: Meter | None
) -> tuple[int, ...]:
    """Give the settings of the trials: drawn once, from what was charged before; kept, and found again."""
    label, settings = experiment.method.name, len(experiment.variants)
    best = [] if meter is None else [sweep.best(label, plan, k) for k in range(len(meter.ledgers))]
    if path.exists():
        try:
            content = json.loads(path.read_text())
            held, kept = [int(row) for row in content["held"]], [int(v) for v in content["settings"]]
        except (ValueError, KeyError, TypeError) as error:
            raise Problem(f"'{path}' is damaged: begin anew in another folder ({error})") from error
        if meter is not None:
            meter.take_held(best, held)
    elif meter is not None:
        check_affordable(sweep, plan, meter, label)
        meter.hold(best)
    found = draw(sweep.trials, settings, entropy_of(experiment.training.seeds[0], meter))
    if path.exists() and list(found) != kept:
        raise Problem(f"'{path}' was changed: the trials are drawn once; begin anew in another folder")
    write_json(path, {"held": [] if meter is None else meter.held, "settings": found})
    return found


def _most(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return max(known) if len(known) == len(found) else None


def _vectors(result: Result) -> Tensor:
    return torch.stack([result.vectors[run] for run in range(len(result.runs))])


def _nothing(experiment: Experiment, sweep: Sweep, folder: Folder, meter: Meter | None) -> Result:
    """Save that nothing was chosen; the chosen model is charged all the same, it might have been one."""
    ran = len(sweep.drawn)
    if meter is not None:
        meter.release_held("nothing")
    why = "" if not ran else f", more than tuning.most = {sweep.trials.most}"
    result = Result(experiment.task, experiment.federation.names, notes=[NOTHING.format(count=ran, why=why)])
    result.tuning = {"accounted": True, "trials": sweep.trials.__dict__, "ran": 0, "chosen": None}
    write_json(folder.path / "result.json", {"complete": True, **result.to_json()})
    return result


def _statement(
    experiment: Experiment, sweep: Sweep, plan: Plan, run: int, k: int, meter: Meter | None
) -> dict[str, Any]:
    silo = plan.silos[run][k]
    trials = sweep.asks(experiment.method.name, plan, k)[0]
    account = Account(
        trials.events(0, trials.rounds), silo.epsilon, silo.delta, silo.budget, ((0, trials.rounds),), None
    )
    if meter is not None:
        account = meter.account(k, 0)
    return statement_for(
        experiment,
        plan,
        run,
        k,
        account,
        sweep.facts(plan, k),
        sweep.scores[k] is not None,
        tuple(ADVERSARIES),
    )


def _tell(result: Result, folder: Folder) -> None:
    console, tuning = Console(), result.tuning or {}
    if tuning["chosen"] is None:
        tell(console, f"Saved in {folder.path}: result.json")
        return
    console.print(summary_table(result))
    run = result.runs[tuning["chosen"]]
    epsilon = tuning["epsilon"]
    best, all_trials = ("none" if e is None else shown(e) for e in (epsilon["chosen"], epsilon["server"]))
    tell(
        console,
        f"Chosen of {tuning['ran']} trials by a score of {tuning['scores'][tuning['chosen']]:.4f}:"
        f" {label_of(run.method, run.settings)}",
        "bold",
    )
    tell(
        console,
        f"epsilon at most {best} against who sees the chosen models only, {all_trials} against"
        " the server and the other silos, who saw all trials (the first is for any number of trials that"
        " might have been drawn, the second for those that were)",
    )
    for silo, why in tuning["left"].items():
        tell(console, f"'{silo}' left early: {why}", "yellow")
    tell(
        console, "The means above are of a simulation: test examples without noise, not to be shared.", "dim"
    )
    tell(console, f"Saved in {folder.path}: result.json, plot.png, statements/, models/, config.toml")
