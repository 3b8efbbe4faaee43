"""What `coterie run` prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import api
from ..experiment.config.schema import Config
from ..experiment.from_config import study_of
from ..experiment.result import SCORED, UNACCOUNTED, Result
from ..experiment.run import Stopped
from ..experiment.summaries import measure_lines
from ..report.folder import next_free
from ..report.measures_table import measure_table
from ..report.privacy_lines import against_whom, too_little
from ..report.silo_tables import gain_lines, learned_lines, silo_gain_table
from ..report.tables import silo_table, summary_table
from .progress import Bars, progress_bar, tell


def run_config(
    config: Config,
    out: Path | None,
    name: str,
    *,
    data_dir: str | None = None,
    as_json: bool = False,
    introduction: str = "",
) -> None:
    """Train what a configuration describes, and show the results."""
    errors = Console(stderr=True)
    shown = errors if as_json else Console()
    study = study_of(config, data_dir)
    if introduction:
        tell(shown, introduction)
    out = out or next_free(name)
    with progress_bar(errors) as progress:
        bars = Bars(progress)
        try:
            result = api.run(study, out=out, listener=bars.listener())
        except Stopped as stopped:
            progress.stop()
            say_stopped(errors, stopped)
    for note in result.notes:
        if note not in bars.told:
            tell(errors, f"warning: {note}", "bold red")
    if as_json:
        print((out / "result.json").read_text(), end="")
        return
    _show(shown, result)
    more = ", relations/" if (out / "relations").exists() else ""
    pictures = "".join(f", {name}" for name in ("measures.png", "silos.png") if (out / name).exists())
    files = f"result.json, summary.md, plot.png{pictures}, statements/, models/{more}, config.toml"
    tell(shown, f"Saved in {out}: {files}")


def say_stopped(errors: Console, stopped: Stopped) -> Any:
    """Print what has finished and how to resume, and exit with the code of an interrupted command."""
    if stopped.complete:
        tell(errors, f"\nStopped. All of it was finished before, and is saved in {stopped.folder}.")
        sys.exit(130)
    done = ", ".join(stopped.finished) or "nothing yet"
    tell(errors, f"\nStopped. Finished and saved in {stopped.folder}: {done}.")
    tell(errors, f"To resume, run the same command with --out {stopped.folder}")
    sys.exit(130)


def _show(console: Console, result: Result) -> None:
    """Print the tables of a result, and the adversaries its epsilons hold against."""
    experiments = [trained.experiment for trained in result.trained.values()]
    plans = [trained.plan for trained in result.trained.values()]
    console.print(summary_table(result))
    if (measures := measure_table(result)) is not None:
        console.print(measures)
    for line in measure_lines(result):
        tell(console, line)
    if (gains := silo_gain_table(result)) is not None:
        console.print(gains)
    for line in [*gain_lines(result), *learned_lines(result)]:
        tell(console, line)
    budgets = zip(*([silo.limit for silo in run] for plan in plans for run in plan.silos), strict=True)
    sizes, unit = experiments[0].sizes, experiments[0].privacy.unit
    console.print(silo_table(result, list(budgets), sizes, unit))
    for line in against_whom(experiments, plans):
        tell(console, line)
    for experiment, plan in zip(experiments, plans, strict=True):
        for line in too_little(experiment, plan):
            tell(console, line, "yellow")
    if len(result.summary) > 1:
        tell(console, UNACCOUNTED, "dim")
    tell(console, SCORED[result.kind], "dim")
