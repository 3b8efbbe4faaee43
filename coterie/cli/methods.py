"""What the command `methods` does: a table of all methods, from dry runs of each."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from .._json import finite
from ..errors import Problem, Refused, nearest
from ..methods import METHODS
from ..planning.dry_run import Counts, dry_run
from ..protocol.doors import CHOICE, SAMPLES, WHOLE
from ..protocol.merging import Merger
from ..protocol.messages import bytes_of
from ..protocol.method import Method, Start
from ..protocol.oracle import Oracle
from ..protocol.roster import Roster
from ..protocol.settings import settings_of
from ..protocol.tree import Tree
from ..protocol.units import UNITS
from ..report.tables import compact
from .progress import tell

ROUNDS = 10
FEW_ROUNDS = 4  # of dry runs that ask only whether a method is sound
LAYERS = (60, 7, 35, 5, 24)
NUMBER = 4  # bytes
BUDGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 7.0, 8.0, 9.0)  # of two kinds, for methods that divide silos by them
MADE_UP = (
    f"By a dry run of {ROUNDS} rounds with {len(BUDGETS)} made-up silos, settings at their defaults: no"
    " examples are read and nothing is trained. A pass is one noisy training on a silo's examples; Local and"
    " FedAvg need one a round."
)


@dataclass(frozen=True, kw_only=True)
class Watched(Method):
    """Another method whose uploads are weighed, round by round, as the dry run runs it."""

    name: ClassVar[str] = "watched"
    method: Method = field(metadata={"method": True})
    seen: list[list[int]] = field(default_factory=list, metadata={"method": True})

    def init(self, task: Start, silos: int) -> tuple[Tree, Tree]:
        """Start the method."""
        return self.method.init(task, silos)

    def broadcast(self, shared: Tree) -> Tree:
        """Send what the method sends."""
        return self.method.broadcast(shared)

    def local(self, sent: Tree, own: Tree, oracle: Oracle) -> tuple[Tree, Tree]:
        """Do the method's work."""
        return self.method.local(sent, own, oracle)

    def merge(self, shared: Tree, uploads: Tree, merger: Merger) -> Tree:
        """Weigh what each silo sent, then merge."""
        self.seen.append(bytes_of(uploads, len(merger.roster)))
        return self.method.merge(shared, uploads, merger)

    def personal(self, sent: Tree, own: Tree) -> Tensor:
        """Predict as the method does."""
        return self.method.personal(sent, own)


@dataclass(frozen=True)
class Tried:
    """What the dry run of a method saw: doors, and `bytes_up[round][silo]`."""

    counts: Counts
    bytes_up: list[list[int]]


def made_up_roster() -> Roster:
    """Give silos of differing sizes and budgets."""
    sizes = torch.arange(20, 20 + 5 * len(BUDGETS), 5, dtype=torch.float64)
    names = tuple(f"silo-{k}" for k in range(len(BUDGETS)))
    return Roster(names, sizes, torch.tensor([BUDGETS], dtype=torch.float64))


def try_method(method: Method) -> Tried:
    """Run a method dry under the unit 'example', in which all are sound, and weigh its uploads."""
    watched = Watched(method=method)
    counts = dry_run(watched, made_up_roster(), LAYERS, ROUNDS)
    return Tried(counts, watched.seen[:ROUNDS])


def refusals(method: Method) -> dict[str, str]:
    """Say why the method is refused in the units in which it is not sound."""
    found = {}
    for unit in UNITS:
        try:
            dry_run(method, made_up_roster(), LAYERS, FEW_ROUNDS, UNITS[unit])
        except Refused as refusal:
            found[unit] = str(refusal)
    return found


def amount(count: int) -> str:
    """Put the bytes of one upload into words, by the sizes of the model and of its layers."""
    model = NUMBER * sum(LAYERS)
    models, rest = divmod(count, model)
    parts = ["the model" if models == 1 else f"{models} models"] if models else []
    each, bytes_left = divmod(rest, NUMBER * len(LAYERS))
    if each and not bytes_left:
        parts.append(f"{each} {'number' if each == 1 else 'numbers'} a layer")
    elif not models and rest in [NUMBER * sum(LAYERS[:some]) for some in range(1, len(LAYERS))]:
        parts.append("some of the layers")
    elif rest:
        parts.append(f"{rest} bytes")
    return " and ".join(parts) or "nothing"


def sends(tried: Tried) -> str:
    """Say what a silo sends in the rounds, and whether that depends on its budget."""
    told: dict[str, list[float]] = {}
    for k, budget in enumerate(BUDGETS):
        words = [amount(sizes[k]) for sizes in tried.bytes_up]
        told.setdefault(", later ".join(word for word, _ in itertools.groupby(words)), []).append(budget)
    if len(told) == 1:
        return next(iter(told))
    ranked = sorted(told.items(), key=lambda item: -max(item[1]))
    return "; ".join(
        f"{which} budget: {text}" for (text, _), which in zip(ranked, _ranks(ranked), strict=True)
    )


def _ranks(ranked: Sequence[Any]) -> list[str]:
    return ["large", *["middle"] * (len(ranked) - 2), "small"]


def passes(tried: Tried) -> list[int]:
    """Count the noisy passes over the examples in each round."""
    return [sum(call.kind in (SAMPLES, WHOLE) for call in calls) for calls in tried.counts.calls]


def choices(tried: Tried) -> list[int]:
    """Count the private choices in each round."""
    return [sum(call.kind == CHOICE for call in calls) for calls in tried.counts.calls]


def costs(tried: Tried) -> str:
    """Say what a method costs; plain training is one pass a round."""
    counted = [number for number, _ in itertools.groupby(passes(tried))]
    text = ", later ".join(f"{number} {'pass' if number == 1 else 'passes'}" for number in counted)
    chosen = choices(tried)
    if not any(chosen):
        return text
    rounds = sum(number > 0 for number in chosen)
    return f"{text}, private choices in {rounds} of {len(chosen)} rounds"


def setting_facts(field: Field[Any]) -> dict[str, Any]:
    """Give a setting as plain data."""
    facts = field.metadata
    found = {"default": None if field.default is MISSING else field.default, "help": facts.get("help", "")}
    for key in ("minimum", "maximum"):
        if math.isfinite(facts.get(key, math.inf)):
            found[key] = facts[key]
    if facts.get("choices"):
        found["choices"] = list(facts["choices"])
    return found


def method_facts(kind: type[Method]) -> dict[str, Any]:
    """Give what is known of a method as plain data."""
    method = kind()
    tried = try_method(method)
    refused = refusals(method)
    return {
        "name": kind.name,
        "does": (kind.__doc__ or "").strip().splitlines()[0],
        "sends": sends(tried),
        "costs": costs(tried),
        "units": [unit for unit in UNITS if unit not in refused],
        "refused": refused,
        "settings": {name: setting_facts(field) for name, field in settings_of(kind).items()},
        "paper": kind.paper,
        "dry_run": {
            "model_bytes": NUMBER * sum(LAYERS),
            "bytes_up": tried.bytes_up,
            "passes": passes(tried),
            "choices": choices(tried),
        },
    }


def show_methods(as_json: bool, name: str = "") -> None:
    """Print all methods, or one."""
    if name and name not in METHODS:
        raise Problem(f"unknown method '{name}'; {nearest(name, METHODS)}")
    found = [method_facts(kind) for kind in METHODS.values() if name in ("", kind.name)]
    if as_json:
        print(json.dumps(finite({"methods": found, "budgets": BUDGETS, "how": MADE_UP}), indent=2))
        return
    out = Console()
    out.print(methods_table(found))
    out.print(settings_table(found))
    tell(out, MADE_UP, "dim")


def methods_table(found: Sequence[dict[str, Any]]) -> Table:
    """Show a row for each method."""
    table = compact("Methods")
    table.add_column("method", no_wrap=True)
    for head in ("what it does", "a silo sends each round", "costs a round", "sound in unit"):
        table.add_column(head)
    for one in found:
        paper = f" [dim]({escape(one['paper'])})[/]" if one["paper"] else ""
        units = ", ".join(one["units"]) or "none"
        table.add_row(one["name"], escape(one["does"]) + paper, one["sends"], one["costs"], units)
    return table


def settings_table(found: Sequence[dict[str, Any]]) -> Table:
    """Show a row for each setting."""
    table = compact("Settings")
    for head in ("method", "setting", "default", "meaning"):
        table.add_column(head, no_wrap=head != "meaning")
    for one in found:
        for name, facts in one["settings"].items():
            words = ", ".join(facts.get("choices", []))
            meaning = facts["help"] + (f" ({words})" if words else "")
            table.add_row(one["name"], name, str(facts["default"]), escape(meaning))
    return table
