"""Tables of results and plans, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.markup import escape
from rich.table import Table

from ..experiment.experiment import Experiment
from ..experiment.result import Result, label_of
from ..planning.plan import Plan, SiloPlan
from ..privacy.accountant import shown, shown_spent
from .terminal import MOST_SILOS, compact, number, size

MOST_METHODS = 5
SHORT = 9  # letters of a method's name above a column


def summary_table(result: Result) -> Table:
    """Show one row for each method and setting."""
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
    """Show one row for each silo: its budgets in all runs, what it spent, its score by the best methods."""
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
    letters = dict(zip(labels, "abcdefghij", strict=False)) if any(len(one) > SHORT for one in labels) else {}
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
    told = [f"{count} more {what}" for what, count in more.items() if count > 0]
    said = [f"and {' and '.join(told)}, see result.json"] if told else []
    if more["methods"] > 0:
        said.append(f"methods: the {len(labels)} best by their means")
    key = [f"{letter}: {name}" for name, letter in letters.items()]
    table.caption = escape("\n".join([*said, *key])) or None
    table.caption_justify = "left"
    return table


def _range(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Show the smallest and the largest number, once if they look the same."""
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def plan_tables(experiment: Experiment, plan: Plan) -> list[Table]:
    """Show what each silo will do and spend, of the first seed; variants that do the same share a table."""
    alike: dict[tuple[SiloPlan, ...], list[str]] = {}
    seeds = list(dict.fromkeys(seed for seed, _ in experiment.keys))
    of_seed = dict(zip(experiment.keys, plan.silos, strict=True))
    differ = any(of_seed[key] != of_seed[seeds[0], key[1]] for key in experiment.keys)
    for variant in dict.fromkeys(variant for _, variant in experiment.keys):
        alike.setdefault(of_seed[seeds[0], variant], []).append(experiment.labels[variant])
    tables = [_plan_table(silos, labels) for silos, labels in alike.items()]
    if differ:
        for table in tables:
            told = f"this is seed {seeds[0]}; other seeds draw other cohorts: --json shows all"
            table.caption = f"{table.caption}\n{told}" if table.caption else told
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
