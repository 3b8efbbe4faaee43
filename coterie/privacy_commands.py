"""What the commands about privacy alone do; torch is not imported here."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .errors import Problem, reason
from .jsonable import finite
from .privacy.accountant import ROUNDING, Bounds, bounds, epsilon_of, shown
from .privacy.adversaries import ADVERSARIES
from .privacy.audit import Report, check_ledger
from .privacy.events import Event, grouped
from .privacy.filters import charge
from .privacy.ledger import read_ledger
from .privacy.published import published_for, warning
from .privacy.rows import State
from .privacy.statement import SEES_UPLOADS, verify
from .privacy.trials import Trials


def show_epsilon(event: Event, delta: float, adjacency: str, tight: bool, as_json: bool) -> None:
    """Print the certified epsilon of an event; tightly with its lower bound and the published formulas."""
    facts = {
        "noise": event.noise, "rate": event.rate, "steps": event.count, "sampler": event.sampler,
        "delta": delta, "adjacency": adjacency,
    }  # fmt: skip
    if not tight:
        found = epsilon_of((event,), delta, adjacency)
        print(json.dumps(finite({"epsilon": found, **facts})) if as_json else _words(found))
        return
    both = bounds((event,), delta, adjacency, tight=True)
    beside = published_for(event.noise, event.rate, event.count, delta)
    warnings = [line for line in (warning(one, both.lower) for one in beside) if line]
    if as_json:
        published = [{"paper": p.paper, "formula": p.formula, "epsilon": p.epsilon} for p in beside]
        certified = {"epsilon": both.upper, "lower": both.lower, "rdp": both.rdp, "by": both.by}
        print(json.dumps(finite({**certified, **facts, "published": published, "warnings": warnings})))
        return
    print(_sentence(both))
    for one in beside:
        print(f"  published: {_words(one.epsilon)}  {one.formula} ({one.paper})")
    for line in warnings:
        print(f"warning: {line}", file=sys.stderr)


def _words(value: float) -> str:
    return "infinite" if math.isinf(value) else shown(value, 4)


def _sentence(both: Bounds) -> str:
    least = math.floor(both.lower * 10_000) / 10_000
    source = {"exact": "closed form", "pld": "privacy-loss distribution", "rdp": "Renyi privacy"}
    return (
        f"{_words(both.upper)} at most, {least:.4f} at least"
        f" (by {source.get(both.by, 'nothing')}; Renyi privacy alone: {_words(both.rdp)})"
    )


def draw_tradeoff_figure(noises: list[float], rate: float, steps: int, out: Path, unit: str) -> None:
    """Draw trade-off curves of sampled Gaussian steps, which no attacker beats."""
    from .report.tradeoff_plot import draw_tradeoff, noise_panel

    title = f"{steps:,} steps, each with a chance of {rate:.3g}"
    _drawn(out, lambda: draw_tradeoff({title: noise_panel(noises, rate, steps)}, out, unit))


def draw_tuning_figure(epsilon: float, mean: float, out: Path) -> None:
    """Draw the cost of tuning in the model of mean estimation; print whether it pays."""
    from .report.tuning_plot import draw_tuning, tuning_figures

    made = tuning_figures(epsilon, mean)
    _drawn(out, lambda: draw_tuning(made, epsilon, mean, out))
    for name, figure in made.items():
        words = ", ".join(f"{label} {gain:+.3g}" for label, gain in figure.gains.items())
        print(f"  {name} heterogeneity, gain of tuning over the better of Local and FedAvg: {words}")


def _drawn(out: Path, draw: Callable[[], None]) -> None:
    try:
        draw()
    except OSError as error:
        raise Problem(f"--out: cannot write '{out}': {error.strerror or error}") from error
    print(f"drawn: {out}")


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


def verify_statement(file: Path, folder: Path | None, as_json: bool) -> None:
    """Recompute a statement; with a folder of ledgers also find its run there."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"statement '{file}' cannot be read: {reason(error)}") from error
    content = verify(text)
    if folder is not None:
        _find_in_ledger(content, folder)
    epsilon = content["guarantee"]["epsilon"]
    facts = {"file": str(file), "silo": content["silo"], "epsilon": epsilon, "verified": True,
             "ledger": folder is not None, "not_checked": None}  # fmt: skip
    if folder is None and epsilon and not any(content["adversaries"][who]["epsilon"] for who in SEES_UPLOADS):
        facts["not_checked"] = "that nothing was sent: its ledger would tell (--ledger)"
    words = (
        "no privacy"
        if epsilon is None
        else f"epsilon {shown(epsilon)} at delta {content['guarantee']['delta']:g}"
    )
    found = ", found in its ledger" if folder is not None else ""
    found += f"; not checked: {facts['not_checked']}" if facts["not_checked"] else ""
    print(json.dumps(facts) if as_json else f"{file}: recomputed from its events: {words}{found}")


def _find_in_ledger(content: dict[str, Any], folder: Path) -> None:
    """Compare a statement with its run, as its ledger stood at the head that it names."""
    named, said = content["ledger"], content["guarantee"]
    if named is None:
        raise Problem("statement: it names no ledger: the run was not metered")
    path = folder if folder.is_file() else folder / Path(named["file"]).name
    report = check_ledger(path)
    ledger = read_ledger(path)
    entries = ledger.entries()
    ledger.close()
    hashes = [entry.hash for entry in entries]
    if named["head"] not in hashes:
        raise Problem(
            f"statement: ledger '{path}' does not have its head {named['head'][:12]}: rows were lost, or this"
            " is another one's ledger"
        )
    state = State.of(entries[: hashes.index(named["head"]) + 1])
    run, now = named["run"], State.of(entries)
    if run not in state.runs or report.identity.silo != content["silo"]:
        raise Problem(f"statement: ledger '{path}' does not have its run {run}")
    plan = state.plan_of(run)
    released = grouped(event for span in state.reserved(run) for event in plan.events(*span))
    if grouped(Event(**event) for event in content["events"]) != released:
        raise Problem(f"statement: events: not those of run {run} in its ledger")
    if not plan.label.startswith(content["method"]):
        raise Problem(f"statement: method: run {run} of its ledger is of '{plan.label}'")
    epsilon, delta = charge(now, run)
    if not (said["epsilon"] >= epsilon * (1 - ROUNDING) and said["delta"] >= delta * (1 - ROUNDING)):
        raise Problem(f"statement: guarantee: the ledger charged ({epsilon:.6g}, {delta:.3g}) for this run")
    if said["unit"] != plan.unit or said["budget"] != state.budgets[plan.unit][0]:
        raise Problem("statement: guarantee.unit or guarantee.budget: not what its ledger says")
    examples = _totals(state, "example") if plan.unit == "silo" else None
    alike = _alike(named["total"], _totals(state, plan.unit)) and _alike(named.get("as_example"), examples)
    if not alike:
        raise Problem("statement: ledger.total or ledger.as_example: not what its ledger says")
    for name in plan.seen:
        if content["adversaries"][name]["epsilon"] == 0:
            raise Problem(f"statement: adversaries.{name}: 0 is stated, the ledger says that it saw the run")
    for name in plan.unprotected:
        if content["adversaries"][name]["epsilon"] is not None:
            raise Problem(f"statement: adversaries.{name}: the ledger says that nothing protected against it")
    _find_chosen(content, state)


def _alike(one: Any, other: Any) -> bool:
    """Compare totals, which may have been added up in another order."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return one is other is None or (
        one is not None and other is not None and math.isclose(one, other, rel_tol=ROUNDING)
    )


def _totals(state: State, unit: str) -> Any:
    """Give what all runs spent in a unit, as statements tell it."""
    both = ("epsilon", "delta")
    return finite({name: dict(zip(both, state.total(unit, name), strict=True)) for name in ADVERSARIES})


def _find_chosen(content: dict[str, Any], state: State) -> None:
    """Compare what a statement says of a sweep with the row that was charged for the chosen trial."""
    tuning, row = content["tuning"], content["ledger"]["chosen"]
    if not isinstance(tuning, dict):
        return
    plan = state.plan_of(row) if row in state.runs else None
    how = Trials(tuning["distribution"], tuning["mean"], tuning["shape"], tuning["most"])
    one = grouped(Event(**event) for event in tuning["trial"])
    if plan is None or plan.trials != how or grouped(plan.events(0, plan.rounds)) != one:
        raise Problem("statement: tuning: not what its ledger was charged for")
    if tuning["epsilon"] < plan.epsilon * (1 - ROUNDING) or tuning["delta"] != plan.delta:
        raise Problem(f"statement: tuning.epsilon is below the {plan.epsilon:.6g} that the ledger charged")
