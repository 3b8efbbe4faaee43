"""What `coterie plan` prints: what a configuration would do, spend and send; nothing is trained."""

from __future__ import annotations

import json

from rich.console import Console

from .._json import finite
from ..errors import Problem
from ..experiment.config.schema import Config
from ..experiment.from_config import study_of
from ..experiment.ledger_coverage import covered
from ..experiment.overlaps import person_totals
from ..experiment.study import StudyPlan, plan_study
from ..report.plan_facts import plan_facts
from ..report.privacy_lines import against_whom, reported, too_little
from ..report.tables import coverage_table, plan_tables
from .progress import Bars, progress_bar, tell


def plan_config(
    config: Config,
    *,
    data_dir: str | None,
    as_json: bool,
    published: bool = False,
    overlaps: str | None = None,
) -> None:
    """Show what a configuration would do; with `published`, also the formulas that papers would use.

    `overlaps` is a file of the silos that may share a person.
    """
    study = study_of(config, data_dir)
    with progress_bar(Console(stderr=True)) as progress:
        planned = covered(plan_study(study, Bars(progress).listener()))
        bar = progress.add_task("timing a step (compiles on first use)", total=None, score="")
        seconds = sum(planned.seconds)
        progress.remove_task(bar)
    totals = [] if overlaps is None else person_totals(planned, overlaps)
    if as_json:
        more = {"person_totals": [total.to_json() for total in totals]} if totals else {}
        print(json.dumps(finite({**plan_facts(planned), **more}), indent=2))
        _raise_refusal(planned)
        return
    out = Console()
    for shown in plan_tables(study.experiments, planned.plans):
        out.print(shown)
    for line in against_whom(study.experiments, planned.plans):
        tell(out, line)
    for experiment, plan in planned.pairs():
        for line in reported(experiment, plan, published):
            tell(out, line)
        for line in too_little(experiment, plan, published):
            tell(out, line, "yellow")
    for total in totals:
        tell(out, str(total))
    if planned.coverage:
        out.print(coverage_table(planned.coverage))
    for note in planned.notes:
        if note == planned.refusal:
            continue
        tell(out, f"note: {note}", "yellow")
    runs, whole = sum(len(experiment.keys) for experiment in study.experiments), max(1, round(seconds))
    tell(out, f"{runs} run(s), about {whole} s of training on this machine. Nothing was trained.")
    _raise_refusal(planned)


def _raise_refusal(planned: StudyPlan) -> None:
    """Raise `Problem` if the ledgers would refuse this training."""
    if planned.refusal is not None:
        raise Problem(planned.refusal)
