"""What the command `methods` does: a table of all methods, or all about one, from dry runs."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Sequence
from dataclasses import MISSING, Field
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._json import finite
from ..errors import Problem, Refused, nearest
from ..methods import METHODS
from ..planning.dry_run import dry_run
from ..privacy.budget import UNITS
from ..protocol.doors import DUAL_WHOLE, SAMPLED
from ..protocol.method import Method
from ..protocol.roster import Roster
from ..protocol.settings import settings_of
from ..report.terminal import compact
from .run import tell

ROUNDS = 10
FEW_ROUNDS = 4  # of dry runs that only ask whether a method is sound
LAYERS = (60, 7, 35, 5, 24)
MODEL = 4 * sum(LAYERS)  # bytes
PASSES = (*SAMPLED, DUAL_WHOLE)
BUDGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 7.0, 8.0, 9.0)  # of two kinds, for methods that divide silos by them
HOW = (
    f"Numbers are from a dry run of {ROUNDS} rounds with {len(BUDGETS)} made-up silos and default settings:"
    " nothing is trained and no examples are read."
)
LEGEND = (
    "passes: noisy passes over a silo's examples per round",
    "sends:  what a silo uploads per round, in sizes of the model",
    "silo:   whether the unit 'silo' can be protected; the unit 'example' always can",
    "`coterie methods NAME` shows a method's paper, settings and refusals.",
)


def made_up_roster() -> Roster:
    """Return silos of differing sizes and budgets."""
    sizes = torch.arange(20, 20 + 5 * len(BUDGETS), 5, dtype=torch.float64)
    names = tuple(f"silo-{k}" for k in range(len(BUDGETS)))
    return Roster(names, sizes, torch.tensor([BUDGETS], dtype=torch.float64))


def refusals(method: Method) -> dict[str, str]:
    """Return why the method is refused in each unit in which it is not sound; in 'example', all are."""
    refused = {}
    for unit in UNITS[1:]:
        try:
            dry_run(method, made_up_roster(), LAYERS, FEW_ROUNDS, unit)
        except Refused as refusal:
            refused[unit] = str(refusal)
    return refused


def setting_facts(field: Field[Any]) -> dict[str, Any]:
    """Return a setting as plain data."""
    metadata = field.metadata
    facts = {"default": None if field.default is MISSING else field.default, "help": metadata.get("help", "")}
    for key in ("minimum", "maximum"):
        if math.isfinite(metadata.get(key, math.inf)):
            facts[key] = metadata[key]
    if metadata.get("choices"):
        facts["choices"] = list(metadata["choices"])
    return facts


def method_facts(kind: type[Method]) -> dict[str, Any]:
    """Return what is known of a method as plain data; `dry_run` has the bytes of each silo in all rounds."""
    method = kind()
    counts = dry_run(method, made_up_roster(), LAYERS, ROUNDS)
    refused = refusals(method)
    about = inspect.cleandoc(kind.__doc__ or "")
    return {
        "name": kind.name,
        "does": about.partition("\n")[0],
        "about": about,
        "paper": kind.paper,
        "units": [unit for unit in UNITS if unit not in refused],
        "refused": refused,
        "settings": {name: setting_facts(field) for name, field in settings_of(kind).items()},
        "dry_run": {
            "rounds": ROUNDS,
            "model_bytes": MODEL,
            "bytes_up": list(counts.bytes_up),
            "passes": [sum(call in PASSES for call in calls) for calls in counts.calls],
            "choices": [sum(call.startswith("select") for call in calls) for calls in counts.calls],
        },
    }


def show_methods(as_json: bool, name: str = "") -> None:
    """Print all methods, or one."""
    if name and name not in METHODS:
        raise Problem(f"unknown method '{name}'; {nearest(name, METHODS)}")
    facts = [method_facts(kind) for kind in METHODS.values() if name in ("", kind.name)]
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
    """Print all that is known of one method."""
    paper = f" ({facts['paper']})" if facts["paper"] else ""
    tell(out, f"{facts['name']}{paper}", "bold")
    for paragraph in facts["about"].split("\n\n"):
        tell(out, " ".join(paragraph.split()) + "\n")
    out.print(costs_table(facts))
    if facts["settings"]:
        out.print(settings_table(facts["settings"]))
    tell(out, HOW, "dim")


def costs_table(facts: dict[str, Any]) -> Table:
    """Return a table of what a method protects, costs and sends."""
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
