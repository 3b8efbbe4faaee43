"""What `coterie plan` does: show what a configuration would do, spend and send; nothing is trained."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from .._json import finite
from ..experiment.config.schema import Config
from ..experiment.estimate import seconds
from ..experiment.experiment import Experiment
from ..experiment.from_config import make_experiments
from ..planning.plan import Plan, SiloPlan
from ..report.privacy_lines import adversaries_of, against_whom, published_facts, reported, too_little
from ..report.tables import plan_tables
from .run import make_plans, notes_of, progress_bar, tell


def plan_config(config: Config, *, data_dir: str | None, as_json: bool) -> None:
    """Show what a configuration would do."""
    console = Console(stderr=True)
    made = make_experiments(config, data_dir)
    if config.tuning is not None:
        made[0].notes.append("[tuning]: this is the plan of single runs; a sweep needs more noise")
    with progress_bar(console) as bars:
        plans = make_plans(made, bars)
        bar = bars.add_task("time of a step (compiled when first used)", total=None, score="")
        took = [seconds(experiment, plan) for experiment, plan in zip(made, plans, strict=True)]
        bars.remove_task(bar)
    if as_json:
        facts = [plan_facts(e, p, t) for e, p, t in zip(made, plans, took, strict=True)]
        print(json.dumps(finite({"plans": facts, "notes": notes_of(made)}), indent=2))
        return
    out = Console()
    for shown in plan_tables(made, plans):
        out.print(shown)
    for line in against_whom(made, plans):
        tell(out, line)
    for experiment, plan in zip(made, plans, strict=True):
        for line in reported(experiment, plan):
            tell(out, line)
        for line in too_little(experiment, plan):
            tell(out, line, "yellow")
    for note in notes_of(made):
        tell(out, f"note: {note}", "yellow")
    runs, much = sum(len(e.keys) for e in made), max(1, round(sum(took)))
    tell(out, f"{runs} run(s), about {much} s of training on this machine. Nothing was trained.")


def plan_facts(experiment: Experiment, plan: Plan, took: float) -> dict[str, Any]:
    """Give a plan as plain data."""
    variants = []
    known: dict[Any, dict[str, Any]] = {}
    for run, (seed, number) in enumerate(experiment.keys):
        variant, same = experiment.variants[number], (number, plan.silos[run])
        known[same] = silos = known.get(same) or {
            silo.name: _silo_facts(silo, variant.shown, plan.counts.calls[0]) for silo in plan.silos[run]
        }
        variants.append({"settings": variant.shown, "seed": seed, "silos": silos})
    return {"method": experiment.method.name, "seconds": took, "variants": variants}


def _silo_facts(silo: SiloPlan, settings: dict[str, Any], doors: tuple[str, ...]) -> dict[str, Any]:
    published, warnings = published_facts(silo, settings, doors)
    return {
        "examples": silo.work.size,
        "rate": silo.rate,
        "steps": silo.steps,
        "noise": silo.noise,
        "budget": silo.limit,
        "epsilon": silo.epsilon,
        "delta": silo.delta,
        "adversaries": adversaries_of(silo),
        "published": published,
        "warnings": warnings,
        "bytes_up": silo.bytes_up,
        "bytes_down": silo.bytes_down,
    }
