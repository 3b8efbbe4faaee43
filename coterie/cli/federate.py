"""`coterie federate`: a whole deployment on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from ..deploy.federate import Listening, Training, federate
from ..experiment.config.schema import Config
from .coordinate import measure_lines, scores_line
from .progress import progress_bar, tell


def run_federate(
    config: Config, out: Path, engine: str, data_dir: str | None, seconds: float, as_json: bool
) -> None:
    """Train the methods of a configuration in a deployment on this machine, and print how they did."""
    console = Console(stderr=as_json)
    with progress_bar(console) as progress:
        tasks = {}

        def on_round(label: str, done: int, rounds: int) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=rounds, score="")
            progress.update(tasks[label], completed=done)

        listening = Listening(lambda line: tell(console, f"note: {line}", "yellow"), on_round)
        trainings = federate(
            config, out, engine=engine, data_dir=data_dir, seconds=seconds, listening=listening
        )
    if as_json:
        typer.echo(json.dumps([_facts(each) for each in trainings]))
        return
    for each in trainings:
        metric = each.plan.blank.task.metric
        mean = sum(report[metric] for report in each.reports.values()) / len(each.reports)
        tell(console, f"{each.label}: mean {metric} at home {mean:.4f} over {len(each.reports)} silos")
        if each.outcome.scores is not None:
            for line in [scores_line(each.outcome.scores), *measure_lines(each.outcome.scores)]:
                tell(console, f"{each.label}: {line}")
    tell(console, f"models, reports and signed statements are in {out}/guards/*/results")


def _facts(training: Training) -> dict[str, object]:
    return {
        "label": training.label,
        "training": training.plan.training,
        "plan": training.plan.hash,
        "finished": dict(training.outcome.finished),
        "missing": list(training.outcome.missing),
        "reports": training.reports,
        **({} if training.outcome.scores is None else {"scores": dict(training.outcome.scores)}),
    }
