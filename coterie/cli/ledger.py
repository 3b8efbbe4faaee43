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
from ..privacy.ledger.place import (
    adopt_ledgers,
    ledger_rows,
    read_ledgers,
    recover_ledgers,
    rekey_ledgers,
    set_budget,
)
from ..privacy.ledger.verify import Report, check_ledger
from ..privacy.ledger.witness import find_witness

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
        "runs": report.runs, "uncommitted": report.uncommitted, "sequence": report.sequence,
        "key": report.key, "witnessed": report.witnessed, "notes": list(report.notes),
    }  # fmt: skip


def show_ledgers(place: Path, witness: str | None, as_json: bool) -> None:
    """Print budgets and totals of ledgers, each checked first."""
    reports = read_ledgers(place, witness=witness)
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
    for line in dict.fromkeys(f"{r.identity.silo}: {note}" for r in reports for note in r.notes):
        print(line)


def _above(spent: float, budget: float) -> bool:
    """Whether more was spent than a budget; what nothing protects is not spent."""
    return budget * (1 + 1e-6) < spent < math.inf


def verify_ledgers(place: Path, witness: str | None, as_json: bool) -> None:
    """Check ledgers and say so, or refuse the first that does not fit."""
    reports = read_ledgers(place, witness=witness)
    if as_json:
        print(json.dumps(finite({"ledgers": [report_facts(report) for report in reports]}), indent=2))
        return
    for report in reports:
        who = f"{report.identity.silo} ({report.path})"
        seen = (
            "no witness knows it" if report.witnessed is None else f"its witness has seen {report.witnessed}"
        )
        signed = f"{report.sequence} changes signed with key {report.key}, {seen}"
        print(f"{who}: {report.rows} rows, every epsilon recomputed, head {report.head}; {signed}")
        for note in report.notes:
            print(f"  {note}")


def export_ledgers(place: Path) -> None:
    """Print every row of ledgers, a line each."""
    for row in ledger_rows(place):
        print(json.dumps(row, sort_keys=True))


def set_budgets(
    place: Path,
    unit: str,
    budget: tuple[float, float],
    reason: str,
    higher: bool,
    keys: str | None = None,
    witness: str | None = None,
) -> None:
    """Set the budget of ledgers, and print whose they are."""
    how = {"unit": unit, "reason": reason, "keys": keys, "witness": witness}
    for path, who in set_budget(place, *budget, higher=higher, **how):  # type: ignore[arg-type]
        print(f"{who.silo} ({path}): budget ({budget[0]:g}, {budget[1]:g}) in the unit '{unit}'")


def adopt(place: Path, reason: str, keys: str | None, witness: str | None) -> None:
    """Sign ledgers of an older version, and print whose they are."""
    for path, who in adopt_ledgers(place, reason, keys=keys, witness=witness):
        print(f"{who.silo} ({path}): signed from now on; the rows before never were")


def recover(place: Path, reason: str, keys: str | None, witness: str | None) -> None:
    """Recover ledgers, and print what is spent now."""
    for path, who in recover_ledgers(place, reason, keys=keys, witness=witness):
        report = check_ledger(path, find_witness(witness))
        most = max(e for totals in report.totals.values() for e, _ in totals.values())
        print(f"{who.silo} ({path}): recovered; at most epsilon {shown(most)} is spent now")


def rekey(place: Path, reason: str, keys: str, old: str | None, witness: str | None) -> None:
    """Change the keys of ledgers, and print whose they are."""
    for path, who in rekey_ledgers(place, reason, keys, old=old, witness=witness):
        report = check_ledger(path, find_witness(witness))
        vouched = "" if not report.notes else f" ({report.notes[-1]})"
        print(f"{who.silo} ({path}): signed with key {report.key} from now on{vouched}")


def open_config(
    config: Config, budget: tuple[float, float], filter: str, data_dir: str | None, unit: str | None = None
) -> None:
    """Make the ledgers of all silos of a configuration, with one budget for each, in the unit it protects."""
    from .. import api
    from ..experiment.from_config import study_of

    if config.privacy.ledger is None:
        raise Problem("privacy.ledger: name a folder for the ledgers, there or with --ledger")
    unit = unit or config.privacy.unit
    federation = study_of(config, data_dir).experiments[0].federation
    folder = config.privacy.ledger
    keys, witness = config.privacy.keys, config.privacy.witness
    reports = api.open_ledgers(
        folder, federation, *budget, unit=unit, filter=filter, keys=keys, witness=witness
    )
    where = "" if unit == "example" else f" in the unit '{unit}'"
    each = f"each may spend epsilon {budget[0]:g} at delta {budget[1]:g}{where}"
    print(f"{len(reports)} ledgers in {folder}: {each}")
