"""What `coterie methods` prints: a table of all methods, or everything about one, from dry runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._json import finite
from ..experiment.method_facts import BUDGETS, HOW, MODEL, ROUNDS, list_methods
from ..report.terminal import compact
from .progress import tell

LEGEND = (
    "passes: noisy passes over a silo's examples per round",
    "sends:  what a silo uploads per round, in multiples of the model's size",
    "silo:   whether the unit 'silo' can be protected; the unit 'example' always can",
    "`coterie methods NAME` shows a method's paper, settings and refusals.",
)


def show_methods(as_json: bool, name: str = "") -> None:
    """Print a table of all methods, or everything about one."""
    facts = list_methods(name)
    if as_json:
        print(json.dumps(finite({"methods": facts, "budgets": BUDGETS, "how": HOW}), indent=2))
        return
    out = Console()
    if name:
        show_method(out, facts[0])
        return
    out.print(methods_table(facts))
    for line in (*LEGEND, HOW):
        tell(out, line, "dim")


def methods_table(methods: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row for each method."""
    table = compact("Methods")
    table.add_column("method", no_wrap=True)
    table.add_column("what it does")
    for head in ("passes", "sends", "silo"):
        table.add_column(head, justify="right", no_wrap=True)
    for facts in methods:
        numbers = (f"{passes(facts):.2g}", f"{sends(facts):.2g}", "yes" if "silo" in facts["units"] else "no")
        table.add_row(facts["name"], escape(facts["does"]), *numbers)
    return table


def passes(facts: dict[str, Any]) -> float:
    """Return how many noisy passes over its examples a silo makes per round."""
    return float(sum(facts["dry_run"]["passes"])) / ROUNDS


def sends(facts: dict[str, Any]) -> float:
    """Return how many models a silo uploads per round, on average."""
    each = facts["dry_run"]["bytes_up"]
    return float(sum(each)) / len(each) / ROUNDS / MODEL


def show_method(out: Console, facts: dict[str, Any]) -> None:
    """Print everything that is known about one method."""
    paper = f" ({facts['paper']})" if facts["paper"] else ""
    tell(out, f"{facts['name']}{paper}", "bold")
    for paragraph in facts["about"].split("\n\n"):
        tell(out, " ".join(paragraph.split()) + "\n")
    out.print(costs_table(facts))
    if facts["settings"]:
        out.print(settings_table(facts["settings"]))
    tell(out, HOW, "dim")


def costs_table(facts: dict[str, Any]) -> Table:
    """Return a table that says what a method protects, costs and sends."""
    table = Table.grid(padding=(0, 2, 0, 0))
    refused = [f"not '{unit}': {why}" for unit, why in facts["refused"].items()]
    table.add_row("protects", escape("; ".join([", ".join(facts["units"]), *refused])))
    chosen = sum(facts["dry_run"]["choices"])
    more = f", and {chosen} private choice(s) in {ROUNDS} rounds" if chosen else ""
    table.add_row("passes", f"{passes(facts):.2g} over a silo's examples per round{more}")
    low, high = (f"{extreme(facts['dry_run']['bytes_up']) / ROUNDS / MODEL:.2g}" for extreme in (min, max))
    table.add_row("sends", f"{low if low == high else f'{low} to {high}'} model(s) per silo and round")
    table.add_row("")
    return table


def settings_table(settings: dict[str, dict[str, Any]]) -> Table:
    """Return a table with a row for each setting."""
    table = compact("Settings")
    for head in ("setting", "default", "meaning"):
        table.add_column(head, no_wrap=head != "meaning")
    for name, facts in settings.items():
        words = ", ".join(facts.get("choices", []))
        meaning = facts["help"] + (f" ({words})" if words else "")
        table.add_row(name, str(facts["default"]), escape(meaning))
    return table
