"""What the commands `run` and `plan` do."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from ..data.federation import Federation
from ..errors import Problem
from ..experiment.config.schema import Config
from ..experiment.experiment import Experiment
from ..experiment.from_config import make_experiments
from ..experiment.result import SIMULATED, UNACCOUNTED, Result
from ..guard.checkpoint import key_of
from ..guard.claims import certify, run_plans
from ..guard.interrupts import after_the_round, undisturbed
from ..guard.meter import Meter, identities, make_meter, open_ledgers
from ..guard.session import Keeper
from ..planning.plan import Plan
from ..privacy.ledger.filters import Spent
from ..report.folder import Folder, next_free
from ..report.privacy_lines import against_whom, too_little
from ..report.tables import silo_table, summary_table


def progress_bar(console: Console) -> Progress:
    """Make a bar with rounds, time left and the current score."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[score]}"),
        console=console,
    )


def make_plans(made: list[Experiment], bars: Progress) -> list[Plan]:
    """Plan every experiment, with a bar while noise is calibrated; tell all that cannot be planned."""
    plans: list[Plan] = []
    problems: list[Problem] = []
    for experiment in made:
        bar = bars.add_task(f"noise for {experiment.method.name}", total=None, score="")

        def hear(done: int, total: int, bar: Any = bar) -> None:
            bars.update(bar, completed=done, total=total)

        try:
            plans.append(experiment.plan(hear))
        except Problem as problem:
            problems.append(problem)
            if len(made) > 1:
                problems[-1] = type(problem)(f"{experiment.labels[0]}: {problem}")
        bars.remove_task(bar)
    if len(problems) > 1:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise Problem(f"{len(problems)} of {len(made)} methods cannot run:{lines}")
    if problems:
        raise problems[0]
    return plans


def tell(console: Console, text: str, style: str = "") -> None:
    """Print a line; a terminal gets it wrapped between words, a file or a pipe in one piece."""
    console.print(text, style=style, soft_wrap=not console.is_terminal, highlight=False, markup=False)


def notes_of(made: Sequence[Experiment]) -> list[str]:
    """Collect the notes of experiments, each once."""
    return list(dict.fromkeys(note for experiment in made for note in experiment.notes))


def federation_facts(federation: Federation) -> dict[str, Any]:
    """Give a federation's public facts as plain data."""
    return {
        "name": federation.name,
        "shape": federation.shape,
        "classes": federation.classes,
        "silos": {s.name: {"train": len(s.y), "test": len(s.test_y)} for s in federation.silos},
    }


def run_config(
    config: Config,
    out: Path | None,
    name: str,
    *,
    data_dir: str | None = None,
    as_json: bool = False,
    introduction: str = "",
) -> None:
    """Train, save after each method, show."""
    errors = Console(stderr=True)
    shown = errors if as_json else Console()
    if config.tuning is not None and config.tuning.trials != "all":
        raise Problem("the configuration has a [tuning] table: use `coterie sweep`, or remove it")
    made = make_experiments(config, data_dir)
    if introduction:
        tell(shown, introduction)
    said = _tell_notes(errors, made, [])
    result = Result(made[0].task, made[0].federation.names, notes=notes_of(made))
    folder = Folder(out or next_free(name))
    with progress_bar(errors) as bars:
        kept = folder.open(config)
        meters: list[Meter | None] = []
        pace: float | None = None
        try:
            plans = make_plans(made, bars)
            said += _tell_notes(errors, made, said)
            alone = sum(len(each.keys) for each in made) == 1
            meters = meters_for(config, made, plans[0] if alone else None)
            places = [folder.path / f".checkpoint-{number}" for number in range(len(made))]
            _check_together(made, plans, meters, [
                folder.has(experiment, plan, kept, metered=True) or place.exists()
                for experiment, plan, place in zip(made, plans, places, strict=True)
            ])  # fmt: skip
            for number, (experiment, plan, meter) in enumerate(zip(made, plans, meters, strict=True)):
                if folder.has(experiment, plan, kept, metered=meter is not None):
                    result.runs += [run for run in kept if run.label in experiment.labels]
                    continue
                keeper = Keeper(
                    places[number],
                    key_of([config.to_toml(), number, experiment.labels]),
                    meter,
                    config.train.checkpoint,
                    partial=alone,
                    pace=pace,
                )
                found, pace = train_one(experiment, plan, bars, keeper), keeper.pace
                with undisturbed():
                    folder.save_experiment(experiment, plan, found, meter)
                    result.add(found)
                    folder.save(result, complete=False)
                    keeper.finish()
            with undisturbed():
                folder.save(result, complete=True)
        except Problem:
            folder.discard()
            raise
        except KeyboardInterrupt:
            bars.stop()
            done = ", ".join(dict.fromkeys(run.label for run in result.runs)) or "nothing yet"
            tell(errors, f"\nStopped. Finished and saved in {folder.path}: {done}.")
            tell(errors, f"To go on, give the same command with --out {folder.path}")
            sys.exit(130)
        finally:
            if meters and meters[0] is not None:
                meters[0].close()
    for note in result.notes:
        if note not in said:
            tell(errors, f"warning: {note}", "bold red")
    if as_json:
        print((folder.path / "result.json").read_text(), end="")
        return
    shown.print(summary_table(result))
    budgets = zip(*([silo.limit for silo in run] for plan in plans for run in plan.silos), strict=True)
    shown.print(silo_table(result, list(budgets), made[0].federation.sizes))
    for line in against_whom(made, plans):
        tell(shown, line)
    for experiment, plan in zip(made, plans, strict=True):
        for line in too_little(experiment, plan):
            tell(shown, line, "yellow")
    if len(result.summary) > 1:
        tell(shown, UNACCOUNTED, "dim")
    tell(shown, SIMULATED, "dim")
    more = ", relations/" if (folder.path / "relations").exists() else ""
    files = f"result.json, summary.md, plot.png, statements/, models/{more}, config.toml"
    tell(shown, f"Saved in {folder.path}: {files}")


def _tell_notes(errors: Console, made: Sequence[Experiment], said: list[str]) -> list[str]:
    """Tell what is to be known before training, unless it was said; give what was told."""
    notes = [note for note in notes_of(made) if note not in said]
    for note in notes:
        tell(errors, f"note: {note}", "yellow")
    return notes


def meters_for(config: Config, made: Sequence[Experiment], alone: Plan | None) -> list[Meter | None]:
    """Open the ledgers that a configuration asks for; new ones get the budgets of a run that is `alone`."""
    if config.privacy.ledger is None:
        return [None] * len(made)
    for experiment in made:
        experiment.check_metered()
    federation, unit = made[0].federation, config.privacy.unit
    budgets: Sequence[tuple[float, float] | None] = [None] * len(federation)
    if alone is not None:
        most = max(silo.budget for silo in alone.silos[0])
        given = config.privacy.noise is not None  # then a budget is what a silo spends, by how often it comes
        budgets = [(most if given else silo.budget, silo.delta) for silo in alone.silos[0]]
    source = source_of(config, federation)
    first = make_meter(Path(config.privacy.ledger), federation, source, budgets, unit)
    return [first.another() for _ in made]


def _check_together(
    made: Sequence[Experiment], plans: Sequence[Plan], meters: Sequence[Meter | None], begun: Sequence[bool]
) -> None:
    """Refuse before anything is trained if the ledgers do not pay for all that is still to be trained."""
    todo = [(e, plan) for e, plan, done in zip(made, plans, begun, strict=True) if not done]
    if meters[0] is None or len(todo) < 2:
        return
    asked = [
        [each for experiment, plan in todo for each in run_plans(experiment.method.title, plan, k)]
        for k in range(len(meters[0].ledgers))
    ]
    certify(plan for own in asked for plan in own)
    for k, (ledger, own) in enumerate(zip(meters[0].ledgers, asked, strict=True)):
        try:
            ledger.check_all(own)
        except Spent as problem:
            raise meters[0].refusal(k, problem, len(own)) from None


def source_of(config: Config, federation: Federation) -> str:
    """Name where silos come from; silos cut at random are other data sets with another cut."""
    data = config.data
    if data.partition is None and data.rows is None and data.source != "digits":
        return federation.name
    cut = [
        data.partition,
        data.rows,
        data.silos,
        data.shards,
        data.alpha,
        data.rotations,
        data.mask,
        data.seed,
    ]
    return f"{federation.name} cut by {json.dumps(cut)}"


def train_one(experiment: Experiment, plan: Plan, bars: Progress, keeper: Keeper) -> Result:
    """Train one experiment with a bar."""
    runs = len(experiment.keys)
    name = experiment.method.title.split()[0]
    title = name + (f" ({runs} runs)" if runs > 1 else "")
    bar = bars.add_task(title, total=experiment.training.rounds, score="")

    def hear(number: int, score: float | None) -> None:
        bars.update(bar, completed=number)
        if score is not None:
            bars.update(bar, score=f"{experiment.task.metric} {score:.4f}")

    def told() -> None:
        tell(bars.console, "Stopping when this round has ended (Ctrl-C again: at once)")

    with after_the_round(told) as keeper.stopping:
        return experiment.train(plan, hear, keeper)


def open_config(
    config: Config, budget: tuple[float, float], filter: str, data_dir: str | None, unit: str | None = None
) -> None:
    """Make the ledgers of all silos of a configuration, with one budget for each, in the unit it protects."""
    unit = unit or config.privacy.unit
    if config.privacy.ledger is None:
        raise Problem("privacy.ledger: name a folder for the ledgers, there or with --ledger")
    made = make_experiments(config, data_dir)[0]
    federation, folder = made.federation, Path(config.privacy.ledger)
    source = source_of(config, federation)
    there = [
        who.silo for who in identities(federation, source) if (folder / f"{who.fingerprint}.sqlite").exists()
    ]
    if there:
        raise Problem(
            f"there are ledgers already, as of '{there[0]}': `coterie ledger show` shows them,"
            " `coterie ledger budget` changes their budget"
        )
    ledgers = open_ledgers(folder, federation, source, [budget] * len(federation), filter, unit)
    for ledger in ledgers:
        ledger.close()
    where = "" if unit == "example" else f" in the unit '{unit}'"
    each = f"each may spend epsilon {budget[0]:g} at delta {budget[1]:g}{where}"
    print(f"{len(ledgers)} ledgers in {folder}: {each}")
