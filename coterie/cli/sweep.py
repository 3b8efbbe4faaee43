"""What `coterie sweep` prints."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from .. import api
from ..experiment.config.schema import Config, Tuning
from ..experiment.from_config import study_of
from ..experiment.result import UNACCOUNTED, WHAT, Result, label_of
from ..experiment.run import Stopped
from ..privacy.accountant import shown
from ..report.folder import next_free
from ..report.tables import summary_table
from .progress import Bars, progress_bar, tell
from .run import run_config, say_stopped


def sweep_config(
    config: Config, out: Path | None, name: str, data_dir: str | None = None, as_json: bool = False
) -> None:
    """Try settings, choose the best, charge for the choice, and show the results."""
    errors = Console(stderr=True)
    if (config.tuning or Tuning()).trials == "all":
        run_config(config, out, name, data_dir=data_dir, as_json=as_json)
        tell(errors, UNACCOUNTED, "yellow")
        return
    study = study_of(config, data_dir)
    out = out or next_free(f"{name}-sweep")
    with progress_bar(errors) as progress:
        try:
            result = api.sweep(study, out=out, listener=Bars(progress).listener())
        except Stopped as stopped:
            progress.stop()
            say_stopped(errors, stopped)
    for note in result.notes:
        tell(errors, f"warning: {note}", "bold red")
    if as_json:
        print((out / "result.json").read_text(), end="")
        return
    _show(result, out)


def _show(result: Result, out: Path) -> None:
    console, tuning = Console(), result.tuning or {}
    if tuning["chosen"] is None:
        tell(console, f"Saved in {out}: result.json")
        return
    console.print(summary_table(result))
    run = result.runs[tuning["chosen"]]
    epsilon = tuning["epsilon"]
    best, all_trials = ("none" if e is None else shown(e) for e in (epsilon["chosen"], epsilon["server"]))
    tell(
        console,
        f"Chosen from {tuning['ran']} trials, with a score ({tuning['metric']}) of"
        f" {tuning['scores'][tuning['chosen']]:.4f}:"
        f" {label_of(run.method, run.settings)}",
        "bold",
    )
    tell(
        console,
        f"epsilon is at most {best} against anyone who sees only the chosen models, and {all_trials} against"
        " the server and the other silos, which saw all trials. (The first bound covers every number of"
        " trials that could have been drawn, the second only the trials that were.)",
    )
    for silo, why in tuning["left"].items():
        tell(console, f"'{silo}' left early: {why}", "yellow")
    tell(
        console,
        f"The means above are scores of a {WHAT[result.kind]} on test examples, without noise: do not share"
        " them.",
        "dim",
    )
    tell(console, f"Saved in {out}: result.json, plot.png, statements/, models/, config.toml")
