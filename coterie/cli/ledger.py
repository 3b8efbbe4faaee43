"""What `coterie ledger` prints; only `ledger open` imports torch."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._json import finite
from ..errors import Problem
from ..privacy.accountant import shown
from ..privacy.adversaries import ADVERSARIES
from ..privacy.ledger.place import ledger_rows, read_ledgers, set_budget
from ..privacy.ledger.verify import Report
from .output import say

if TYPE_CHECKING:
    from ..experiment.config.schema import Config


def report_facts(report: Report) -> dict[str, Any]:
    """Return a checked ledger as plain data."""
    totals = {
        unit: {name: {"epsilon": e, "delta": d} for name, (e, d) in spent.items()}
        for unit, spent in report.totals.items()
    }
    budgets = {unit: {"epsilon": e, "delta": d} for unit, (e, d) in report.budgets.items()}
    return {
        "file": str(report.path), "identity": asdict(report.identity), "rows": report.rows,
        "head": report.head, "filter": report.filter, "budgets": budgets, "totals": totals,
        "runs": report.runs, "uncommitted": report.uncommitted,
    }  # fmt: skip


def show_ledgers(place: Path, as_json: bool) -> None:
    """Print the budgets and totals of ledgers, after checking each of them."""
    reports = read_ledgers(place)
    if as_json:
        print(json.dumps(finite({"ledgers": [report_facts(report) for report in reports]}), indent=2))
        return
    from rich.console import Console
    from rich.markup import escape

    from ..report.terminal import compact

    table = compact("Upper bound on the epsilon each data set has spent, per adversary")
    longest = max(len(report.identity.silo) for report in reports)
    table.add_column("silo", overflow="fold", min_width=min(longest, 12))
    for name in ("size", "budget", "delta", *ADVERSARIES, "spent\ndelta", "runs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.caption, table.caption_justify = "size: all examples of a silo, including test examples", "left"
    for report in reports:
        owner = report.identity
        for unit, totals in report.totals.items():
            epsilon, delta = report.budgets.get(unit, (math.inf, math.inf))
            spent = [shown(e) + ("!" if _above(e, epsilon) else "") for e, _ in totals.values()]
            lost = max((d for _, d in totals.values() if math.isfinite(d)), default=0.0)
            name = escape(owner.silo if unit == "example" else f"{owner.silo} ({unit})")
            limits = [f"{limit:g}" if math.isfinite(limit) else "-" for limit in (epsilon, delta)]
            table.add_row(name, str(owner.size), *limits, *spent, f"{lost:g}", str(report.runs))
    Console().print(table)
    if any(_above(e, epsilon) for r in reports for u, (epsilon, _) in r.budgets.items()
           for e, _ in r.totals[u].values()):  # fmt: skip
        say("!: more than the budget, which was lowered after it was spent; no further run is allowed")
    everything = [e for r in reports for totals in r.totals.values() for e, _ in totals.values()]
    if math.inf in everything:
        say("none: there is no guarantee against this adversary, who saw raw uploads, or no bound is known")
    if any("silo" in report.budgets for report in reports):
        say(
            "Runs under the unit 'silo' also count toward the unit 'example'. Runs under 'example' do not"
            " protect whole silos."
        )


def _above(spent: float, budget: float) -> bool:
    """Return whether more than the budget was spent; an infinite epsilon (no guarantee) does not count."""
    return budget * (1 + 1e-6) < spent < math.inf


def verify_ledgers(place: Path, as_json: bool) -> None:
    """Check ledgers and print what was checked; raise a Problem for the first that fails."""
    reports = read_ledgers(place)
    if as_json:
        print(json.dumps(finite({"ledgers": [report_facts(report) for report in reports]}), indent=2))
        return
    for report in reports:
        who = f"{report.identity.silo} ({report.path})"
        say(f"{who}: {report.rows} rows, every epsilon recomputed, head {report.head}")


def export_ledgers(place: Path) -> None:
    """Print every row of the ledgers as one line of JSON."""
    for row in ledger_rows(place):
        print(json.dumps(row, sort_keys=True))


def set_budgets(place: Path, unit: str, epsilon: float, delta: float, reason: str, higher: bool) -> None:
    """Set the budget of ledgers, and print whose budgets were set."""
    for path, who in set_budget(place, epsilon, delta, unit=unit, reason=reason, higher=higher):
        say(f"{who.silo} ({path}): budget ({epsilon:g}, {delta:g}) in the unit '{unit}'")


def open_config(
    config: Config,
    budget: tuple[float, float],
    filter: str,
    data_dir: str | None,
    unit: str | None = None,
    another: bool = False,
) -> None:
    """Create ledgers for all silos of a configuration, each with the same budget, in the unit it protects."""
    from .. import api
    from ..experiment.from_config import study_of

    if config.privacy.ledger is None:
        raise Problem("privacy.ledger: no folder for the ledgers; set this key or give --ledger")
    unit = unit or config.privacy.unit
    federation = study_of(config, data_dir).experiments[0].federation
    folder = config.privacy.ledger
    reports = api.open_ledgers(folder, federation, *budget, unit=unit, filter=filter, another=another)
    where = "" if unit == "example" else f" in the unit '{unit}'"
    each = f"each may spend epsilon {budget[0]:g} at delta {budget[1]:g}{where}"
    say(f"{len(reports)} ledgers in {folder}: {each}")
