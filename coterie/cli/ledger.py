"""What the commands about privacy alone do; torch is not imported here."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .._json import finite
from ..errors import Problem
from ..privacy.accountant import shown
from ..privacy.adversaries import ADVERSARIES
from ..privacy.ledger.ledger import read_ledger
from ..privacy.ledger.verify import Report, check_ledger


def ledger_files(place: Path) -> list[Path]:
    """List a ledger, or those of a folder."""
    if place.is_dir():
        found = sorted(place.glob("*.sqlite"))
        if not found:
            raise Problem(f"there is no ledger in '{place}'")
        return found
    if not place.exists():
        raise Problem(f"there is no ledger '{place}'")
    return [place]


def report_facts(report: Report) -> dict[str, Any]:
    """Give a checked ledger as plain data."""
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
    """Print budgets and totals of ledgers, each checked first."""
    reports = sorted((check_ledger(path) for path in ledger_files(place)), key=lambda one: one.identity.silo)
    if as_json:
        print(json.dumps(finite({"ledgers": [report_facts(report) for report in reports]}), indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    title = "Spent of each data set (size: all examples, for tests too): epsilon at most, against"
    table = Table(title=title, box=None, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("silo", "size", "budget", "delta", *ADVERSARIES, "spent delta", "runs"):
        table.add_column(name, justify="left" if name == "silo" else "right", no_wrap=True)
    for report in reports:
        who = report.identity
        for unit, totals in report.totals.items():
            epsilon, delta = report.budgets.get(unit, (math.inf, math.inf))
            spent = [shown(e) + ("!" if _above(e, epsilon) else "") for e, _ in totals.values()]
            lost = max((d for _, d in totals.values() if math.isfinite(d)), default=0.0)
            name = who.silo if unit == "example" else f"{who.silo} ({unit})"
            limits = [f"{limit:g}" if math.isfinite(limit) else "-" for limit in (epsilon, delta)]
            table.add_row(name, str(who.size), *limits, *spent, f"{lost:g}", str(report.runs))
    Console().print(table)
    if any(_above(e, epsilon) for r in reports for u, (epsilon, _) in r.budgets.items()
           for e, _ in r.totals[u].values()):  # fmt: skip
        print("! more than the budget: it was lowered after it was spent; no run is charged to it any more")
    everything = [e for r in reports for totals in r.totals.values() for e, _ in totals.values()]
    if math.inf in everything:
        print("none: nothing is left to protect against who saw the silo as it is, or no bound is known")
    if any("silo" in report.budgets for report in reports):
        print(
            "runs under the unit 'silo' count for examples too; those under 'example' protect no whole silo"
        )


def _above(spent: float, budget: float) -> bool:
    """Whether more was spent than a budget; what nothing protects is not spent."""
    return budget * (1 + 1e-6) < spent < math.inf


def verify_ledgers(place: Path, as_json: bool) -> None:
    """Check ledgers and say so, or refuse the first that does not fit."""
    reports = [check_ledger(path) for path in ledger_files(place)]
    if as_json:
        print(json.dumps(finite({"ledgers": [report_facts(report) for report in reports]}), indent=2))
        return
    for report in reports:
        who = f"{report.identity.silo} ({report.path})"
        print(f"{who}: {report.rows} rows, every epsilon recomputed, head {report.head}")


def export_ledgers(place: Path) -> None:
    """Print every row of ledgers, a line each."""
    for path in ledger_files(place):
        ledger = read_ledger(path)
        for entry in ledger.entries():
            print(json.dumps({"ledger": path.name, **asdict(entry)}, sort_keys=True))
        ledger.close()


def set_budgets(place: Path, unit: str, epsilon: float, delta: float, reason: str, higher: bool) -> None:
    """Set the budget of ledgers."""
    paths = ledger_files(place)
    if higher:
        for path in paths:
            _refuse_lowering(path, unit, epsilon, delta)
    for path in paths:
        ledger = read_ledger(path)
        ledger.set_budget(unit, epsilon, delta, reason, higher)
        print(f"{ledger.identity.silo} ({path}): budget ({epsilon:g}, {delta:g}) in the unit '{unit}'")
        ledger.close()


def _refuse_lowering(path: Path, unit: str, epsilon: float, delta: float) -> None:
    """Refuse to lower a budget by an act that says it raises it."""
    ledger = read_ledger(path)
    now, silo = ledger.state().budgets.get(unit), ledger.identity.silo
    ledger.close()
    if now is not None and (epsilon < now[0] or delta < now[1]):
        raise Problem(
            f"the budget of '{silo}' is ({now[0]:g}, {now[1]:g}), ({epsilon:g}, {delta:g}) would lower it:"
            " leave --raise out, or name the files of those to be raised"
        )
