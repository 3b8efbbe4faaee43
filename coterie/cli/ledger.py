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
from ..privacy.ledger.absent import known_elsewhere, no_witness
from ..privacy.ledger.place import (
    adopt_ledgers,
    check_ledgers,
    ledger_rows,
    raise_all,
    read_ledgers,
    recover_ledgers,
    rekey_ledgers,
    release_runs,
    set_budget,
)
from ..privacy.ledger.verify import Report, check_ledger
from ..privacy.ledger.witness import find_witness
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
        "runs": report.runs, "uncommitted": report.uncommitted, "rechecked": dict(report.rechecked),
        "sequence": report.sequence, "key": report.key, "keys": report.keys, "witnessed": report.witnessed,
        "carried": report.carried, "notes": list(report.notes),
        "held": [dict(zip(("run", "label", "first", "last"), each, strict=True)) for each in report.held],
        "unfinished": [
            dict(zip(("run", "label", "reserved", "rounds"), each, strict=True)) for each in report.unfinished
        ],
    }  # fmt: skip


def show_ledgers(place: Path, witness: str | None, as_json: bool) -> None:
    """Print the budgets and totals of ledgers, after checking each of them."""
    reports = read_ledgers(place, witness=witness)
    warnings = [*filter(None, [no_witness(reports)]), *_absent(place, reports, witness)]
    if as_json:
        facts = {"ledgers": [report_facts(report) for report in reports], "warnings": warnings}
        print(json.dumps(finite(facts), indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    title = "Upper bound on the epsilon each data set has spent, per adversary"
    table = Table(title=title, box=None, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
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
            runs = f"{report.runs} + lost" if report.carried else str(report.runs)
            table.add_row(name, str(owner.size), *limits, *spent, f"{lost:g}", runs)
    Console().print(table)
    if any(_above(e, epsilon) for r in reports for u, (epsilon, _) in r.budgets.items()
           for e, _ in r.totals[u].values()):  # fmt: skip
        say("!: more than the budget, which was lowered after it was spent; no further run is allowed")
    if any(report.carried for report in reports):
        say("lost: what the witness knew of runs whose rows were lost; a recovery charged it")
    everything = [e for r in reports for totals in r.totals.values() for e, _ in totals.values()]
    if math.inf in everything:
        say("none: there is no guarantee against this adversary, who saw raw uploads, or no bound is known")
    if any("silo" in report.budgets for report in reports):
        say(
            "Runs under the unit 'silo' also count toward the unit 'example'. Runs under 'example' do not"
            " protect whole silos."
        )
    if any("person" in report.budgets for report in reports):
        say(
            "Runs under the unit 'person' also count toward the unit 'example'. Runs under 'example' protect"
            " a person's rows only one at a time."
        )
    for line in (f"{report.identity.silo}: {note}" for report in reports for note in report.notes):
        say(line)
    for report in reports:
        for run, label, first, last in report.held:
            say(
                f"{report.identity.silo}: run {run} ({label}) holds rounds {first} to {last}, not reserved so"
                f" far; if it was abandoned: coterie ledger release {report.path} {run} --reason WHY"
            )
    for report in reports:
        free = {run for run, *_ in report.held}
        for run, label, reserved, rounds in (each for each in report.unfinished if each[0] not in free):
            say(
                f"{report.identity.silo}: run {run} ({label}) is not finished: it reserved rounds up to"
                f" {reserved} of {rounds}, and stays charged; if it was interrupted, the same command with"
                " --out FOLDER resumes it"
            )
    for line in warnings:
        say(f"warning: {line}")


def _absent(place: Path, reports: list[Report], witness: str | None) -> list[str]:
    """Return a warning if the witness knows ledgers of the same data that a folder does not have."""
    return known_elsewhere(place, reports, find_witness(witness)) if place.is_dir() else []


def _above(spent: float, budget: float) -> bool:
    """Return whether more than the budget was spent; an infinite epsilon (no guarantee) does not count."""
    return budget * (1 + 1e-6) < spent < math.inf


def verify_ledgers(place: Path, witness: str | None, as_json: bool) -> None:
    """Check all ledgers and print what was checked; raise one Problem with all that is wrong."""
    reports, problems = check_ledgers(place, independently=True, witness=witness)
    warnings = _absent(place, reports, witness)
    if (unknown := no_witness(reports)) is not None:
        problems.append(unknown if problems else f"all rows are right, but {unknown}")
    if as_json:
        told = {"problems": problems, "warnings": warnings}
        print(json.dumps(finite({"ledgers": [report_facts(report) for report in reports], **told}), indent=2))
    for report in [] if as_json else reports:
        who = f"{report.identity.silo} ({report.path})"
        seen = (
            "no witness knows it" if report.witnessed is None else f"its witness has seen {report.witnessed}"
        )
        signed = f"{_changes(report)}, {seen}"
        rows = f"{report.rows} rows, every epsilon recomputed{_by_whom(report)}"
        say(f"{who}: {rows}, head {report.head}; {signed}")
        for note in report.notes:
            say(f"  {note}")
    for line in [] if as_json else warnings:
        say(f"warning: {line}")
    if not as_json and not problems:
        say(f"All {len(reports)} ledgers are right." if len(reports) > 1 else "The ledger is right.")
    raise_all(place, problems)


def _changes(report: Report) -> str:
    """Say how many changes there were, and which key signed them."""
    if report.keys == 1:
        return f"{report.sequence} changes signed with key {report.key}"
    last = f"the last one signed with key {report.key}"
    return f"{report.sequence} changes, {last}; {report.keys} keys so far"


def _by_whom(report: Report) -> str:
    """Say how many epsilons dp-accounting confirms."""
    confirmed, ours = (report.rechecked.get(verdict, 0) for verdict in ("confirmed", "undecided"))
    if not confirmed and not ours:
        return ""
    rest = f"; {ours} recomputed with Coterie's own accountant only" if ours else ""
    return f" ({confirmed} confirmed by dp-accounting{rest})"


def export_ledgers(place: Path) -> None:
    """Print every row of the ledgers as one line of JSON."""
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
        say(
            f"{who.silo} ({path}): budget ({budget[0]:g}, {budget[1]:g}) in the unit '{unit}'"
            f"{_overspent(path, unit, witness)}"
        )


def _overspent(path: Path, unit: str, witness: str | None) -> str:
    """Say that a budget is below what is spent; "" if it is not."""
    report = check_ledger(path, find_witness(witness))
    epsilon, delta = report.budgets[unit]
    spent = [amount for amount in report.totals[unit].values() if math.inf not in amount] or [(0.0, 0.0)]
    most, lost = (max(column) for column in zip(*spent, strict=True))
    if not (_above(most, epsilon) or _above(lost, delta)):
        return ""
    return (
        f"; ({shown(most)}, {lost:g}) is spent already, so all further runs are refused until the budget is"
        " raised again"
    )


def adopt(place: Path, reason: str, keys: str | None, witness: str | None) -> None:
    """Sign ledgers of an older version, and print whose they are."""
    for path, who in adopt_ledgers(place, reason, keys=keys, witness=witness):
        say(f"{who.silo} ({path}): signed from now on; the rows before never were")


def recover(place: Path, reason: str, keys: str | None, witness: str | None, new_key: bool = False) -> None:
    """Recover ledgers, and print what is spent now and which key signs."""
    for path, who in recover_ledgers(place, reason, keys=keys, witness=witness, new_key=new_key):
        report = check_ledger(path, find_witness(witness))
        most = max(e for totals in report.totals.values() for e, _ in totals.values())
        spent = f"recovered; at most epsilon {shown(most)} is spent now"
        say(f"{who.silo} ({path}): {spent}; signed with key {report.key} from now on")


def release(place: Path, run: str, reason: str, keys: str | None, witness: str | None) -> None:
    """Release abandoned runs, and print which rounds each has given back."""
    row = int(run) if run.isdecimal() else run
    for each in release_runs(place, row, reason, keys=keys, witness=witness):
        report = check_ledger(each.path, find_witness(witness))
        most = max(e for totals in report.totals.values() for e, _ in totals.values())
        say(
            f"{each.identity.silo} ({each.path}): run {each.run} gave back rounds {each.first} to"
            f" {each.last}; at most epsilon {shown(most)} is spent now"
        )


def rekey(
    place: Path, reason: str, keys: str, old: str | None, witness: str | None, old_key_lost: bool = False
) -> None:
    """Change the keys of ledgers, and print whose they are."""
    how = {"old": old, "old_key_lost": old_key_lost, "witness": witness}
    for path, who in rekey_ledgers(place, reason, keys, **how):  # type: ignore[arg-type]
        report = check_ledger(path, find_witness(witness))
        about = [note for note in report.notes if note.startswith(f"a new key at row {report.rows},")]
        vouched = "; the old key vouches for it" if not about else f" ({about[0]})"
        say(f"{who.silo} ({path}): signed with key {report.key} from now on{vouched}")


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
    from ..privacy.budget import loose_deltas

    if config.privacy.ledger is None:
        raise Problem("privacy.ledger: no folder for the ledgers; set this key or give --ledger")
    unit = unit or config.privacy.unit
    federation = study_of(config, data_dir).experiments[0].federation
    folder = config.privacy.ledger
    keys, witness = config.privacy.keys, config.privacy.witness
    how = {"unit": unit, "filter": filter, "another": another, "keys": keys, "witness": witness}
    reports = api.open_ledgers(folder, federation, *budget, **how)  # type: ignore[arg-type]
    where = "" if unit == "example" else f" in the unit '{unit}'"
    each = f"each may spend epsilon {budget[0]:g} at delta {budget[1]:g}{where}"
    say(f"{len(reports)} ledgers in {folder}: {each}")
    sizes = [len(federation)] * len(federation) if unit == "silo" else federation.protected_sizes(unit)
    for note in loose_deltas([budget[1]] * len(sizes), sizes, federation.names, unit, "--delta"):
        say(f"note: {note}")
