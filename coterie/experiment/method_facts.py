"""What is known about each method, from its class and from dry runs; nothing is trained."""

from __future__ import annotations

import inspect
import math
from dataclasses import MISSING, Field
from typing import Any

import torch

from ..errors import Problem, Refused, nearest, plainly
from ..methods import METHODS
from ..planning.dry_run import dry_run
from ..protocol.doors import CHOICE, SAMPLES, WHOLE
from ..protocol.method import Method
from ..protocol.roster import Roster
from ..protocol.settings import settings_of
from ..protocol.units import EXAMPLE, UNITS

ROUNDS = 10
FEW_ROUNDS = 4  # of dry runs that only ask whether a method is sound
LAYERS = (60, 7, 35, 5, 24)
MODEL = 4 * sum(LAYERS)  # bytes
BUDGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 7.0, 8.0, 9.0)  # of two kinds, for methods that divide silos by them
HOW = (
    f"Numbers are from a dry run of {ROUNDS} rounds with {len(BUDGETS)} made-up silos and default settings:"
    " nothing is trained and no examples are read."
)


@plainly
def list_methods(name: str = "") -> list[dict[str, Any]]:
    """Return what every method (or only the named one) does, costs and sends, its units and its settings."""
    if name and name not in METHODS:
        raise Problem(f"unknown method '{name}'; {nearest(name, METHODS)}")
    return [method_facts(kind) for kind in METHODS.values() if name in ("", kind.name)]


def made_up_roster() -> Roster:
    """Return silos of differing sizes and budgets."""
    sizes = torch.arange(20, 20 + 5 * len(BUDGETS), 5, dtype=torch.float64)
    names = tuple(f"silo-{k}" for k in range(len(BUDGETS)))
    return Roster(names, sizes, torch.tensor([BUDGETS], dtype=torch.float64))


def refusals(method: Method) -> dict[str, str]:
    """Return why the method is refused in each unit in which it is not sound; in 'example', all are."""
    refused = {}
    for name, unit in UNITS.items():
        if unit == EXAMPLE:
            continue
        try:
            dry_run(method, made_up_roster(), LAYERS, FEW_ROUNDS, unit)
        except Refused as refusal:
            refused[name] = str(refusal)
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
    """Return the facts about a method as plain data; `dry_run` has the bytes of each silo in all rounds."""
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
            "passes": [sum(call.kind in (SAMPLES, WHOLE) for call in calls) for calls in counts.calls],
            "choices": [sum(call.kind == CHOICE for call in calls) for calls in counts.calls],
        },
    }
