"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from ..data.federation import Federation
from ..data.sources.catalogue import Entry
from ..experiment.experiment import Experiment
from ..experiment.result import Result, label_of
from ..planning.plan import Plan, SiloPlan
from ..privacy.accountant import shown, shown_spent

MOST_SILOS = 20
MOST_METHODS = 5
SHORT = 9  # letters of a method's name above a column
SHADES = " ░▒▓█"


def number(value: float, digits: int = 4) -> str:
    """Return a number as short text; "none" if it is infinite."""
    return "none" if math.isinf(value) else f"{value:.{digits}g}"


def size(count: float) -> str:
    """Return a number of bytes as text with a unit.

    >>> size(2048)
    '2.0 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def compact(title: str) -> Table:
    """Return an empty table that is no wider than it needs to be."""
    return Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")


def summary_table(result: Result) -> Table:
    """Return a table with one row for each method and setting."""
    arrow = "higher is better" if result.task.higher_is_better else "lower is better"
    table = compact(f"Test {result.task.metric} over all silos ({arrow})")
    table.add_column("method")
    for name in ("mean", "± std", "seeds", "epsilon ≤", "bytes up", "seconds"):
        table.add_column(name, justify="right")
    best = result.best()["mean"]
    for row in result.summary:
        style = "bold" if row["mean"] == best else ""
        table.add_row(
            label_of(row["method"], row["settings"]),
            f"{row['mean']:.4f}",
            f"{row['std']:.4f}" if row["seeds"] > 1 else "-",
            str(row["seeds"]),
            shown_spent(row["epsilon"]),
            size(row["bytes_up"]),
            f"{row['seconds']:.1f}",
            style=style,
        )
    return table


def silo_table(result: Result, budgets: Sequence[Sequence[float | None]], sizes: Sequence[int]) -> Table:
    """Return a table with one row per silo: its budgets, spending, and scores with the best methods."""
    firsts = {run.label: run for run in reversed(result.runs)}
    pick = max if result.task.higher_is_better else min
    means = {label_of(row["method"], row["settings"]): row["mean"] for row in result.summary}
    sign = -1 if pick is max else 1
    best = sorted(means, key=lambda label: (math.isnan(means[label]), sign * means[label]))[:MOST_METHODS]
    labels = [label for label in dict.fromkeys(run.label for run in result.runs) if label in best]
    table = compact(f"Each silo: budget, spending, test {result.task.metric} (first seed)")
    table.add_column("silo", no_wrap=True)
    for name in ("size", "budget", "spent", "noise"):
        table.add_column(name, justify="right")
    letters = (
        dict(zip(labels, "abcdefghij", strict=False)) if any(len(label) > SHORT for label in labels) else {}
    )
    for name in labels:
        table.add_column(escape(letters.get(name, name)), justify="right", no_wrap=True)
    for k, name in enumerate(result.names[:MOST_SILOS]):
        records = [run.silos[name] for run in firsts.values()]
        scores = [firsts[label].silos[name].score for label in labels]
        top = pick((s for s in scores if not math.isnan(s)), default=None)
        marked = [f"[bold]{s:.3f}[/]" if s == top else f"{s:.3f}" for s in scores]
        noise = _range([record.noise for record in records], lambda value: f"{value:.2f}")
        spent = _range([record.epsilon for record in records], shown)
        given = [budget for budget in budgets[k] if budget is not None]
        row = (escape(name), str(sizes[k]), _range(given, number) if given else "none", spent, noise)
        table.add_row(*row, *marked)
    more = {"silos": len(result.names) - MOST_SILOS, "methods": len(firsts) - len(labels)}
    hidden = [f"{count} more {what}" for what, count in more.items() if count > 0]
    lines = [f"and {' and '.join(hidden)}, see result.json"] if hidden else []
    if more["methods"] > 0:
        lines.append(f"methods: the {len(labels)} with the best mean")
    key = [f"{letter}: {name}" for name, letter in letters.items()]
    table.caption = escape("\n".join([*lines, *key])) or None
    table.caption_justify = "left"
    return table


def _range(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return the smallest and the largest number as text, or one of them if they look the same."""
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def plan_tables(experiment: Experiment, plan: Plan) -> list[Table]:
    """Return tables of what each silo will do and spend with the first seed; equal variants share a table."""
    alike: dict[tuple[SiloPlan, ...], list[str]] = {}
    seeds = list(dict.fromkeys(seed for seed, _ in experiment.keys))
    of_seed = dict(zip(experiment.keys, plan.silos, strict=True))
    differ = any(of_seed[key] != of_seed[seeds[0], key[1]] for key in experiment.keys)
    for variant in dict.fromkeys(variant for _, variant in experiment.keys):
        alike.setdefault(of_seed[seeds[0], variant], []).append(experiment.labels[variant])
    tables = [_plan_table(silos, labels) for silos, labels in alike.items()]
    if differ:
        for table in tables:
            note = f"shown for seed {seeds[0]}; other seeds draw other cohorts (--json shows all)"
            table.caption = f"{table.caption}\n{note}" if table.caption else note
    return tables


def _plan_table(silos: tuple[SiloPlan, ...], labels: list[str]) -> Table:
    table = compact("Plan: " + ", ".join(labels))
    table.add_column("silo", no_wrap=True)
    released = ("share", "merges") if silos[0].merges is not None else ("rate", "steps")
    for name in ("size", *released, "noise", "budget", "epsilon", "delta", "up", "down"):
        table.add_column(name, justify="right", no_wrap=True)
    for silo in silos[:MOST_SILOS]:
        table.add_row(
            escape(silo.name),
            str(silo.work.size),
            f"{silo.rate:.3g}",
            str(silo.steps),
            f"{silo.noise:.3f}",
            "none" if silo.limit is None else number(silo.limit),
            shown(silo.epsilon),
            f"{silo.delta:g}",
            size(silo.bytes_up),
            size(silo.bytes_down),
        )
    if len(silos) > MOST_SILOS:
        table.caption = f"and {len(silos) - MOST_SILOS} more silos; --json shows all"
    return table


def data_table(entries: Sequence[Entry]) -> Table:
    """Return a table of the data that can be loaded."""
    table = compact("Data")
    for name in ("name", "format", "rows", "silos", "where"):
        table.add_column(name, justify="right" if name in ("rows", "silos") else "left")
    for entry in entries:
        rows = "" if entry.rows is None else f"{entry.rows:,}"
        silos = "" if entry.silos is None else (str(entry.silos) if entry.silos else "by partition")
        table.add_row(entry.name, entry.form, rows, silos, entry.place)
    return table


def federation_table(federation: Federation) -> Table:
    """Return a table of silos with their sizes and, as shades, how often each label occurs."""
    shape = " x ".join(map(str, federation.shape))
    kind = f"{len(federation.classes)} classes" if federation.classes else "numeric target"
    table = compact(f"{federation.name}: {len(federation)} silos, examples of {shape}, {kind}")
    table.add_column("silo", no_wrap=True)
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    table.add_column("size")
    table.add_column("labels " + ("".join(_short(c) for c in federation.classes) if _fits(federation) else "")
                     if federation.classes else "target: mean (deviation)")  # fmt: skip
    largest = max(federation.sizes)
    for silo in federation.silos[: 2 * MOST_SILOS]:
        bar = "█" * max(1, round(20 * len(silo.y) / largest))
        if federation.classes:
            counts = [int((silo.y == c).sum()) for c in range(len(federation.classes))]
            top = max(counts)
            picture = "".join(SHADES[min(4, math.ceil(4 * c / top))] for c in counts)
            label = " " * len("labels ") + picture if _fits(federation) else picture
        else:
            label = f"{float(silo.y.mean()):.3f} ({float(silo.y.std()) if len(silo.y) > 1 else 0:.3f})"
        table.add_row(escape(silo.name), str(len(silo.y)), str(len(silo.test_y)), bar, label)
    if len(federation) > 2 * MOST_SILOS:
        table.caption = f"and {len(federation) - 2 * MOST_SILOS} more silos"
    return table


def _fits(federation: Federation) -> bool:
    return all(len(c) == 1 for c in federation.classes)


def _short(label: str) -> str:
    return label[:1]
