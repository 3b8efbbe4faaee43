"""Tables of results and plans, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..experiment.experiment import Experiment
from ..experiment.result import Result, RunRecord, label_of
from ..experiment.summaries import led_by
from ..guard.coverage import Coverage
from ..planning.plan import Plan, SiloPlan
from ..privacy.accountant import shown, shown_spent
from ..protocol.doors import ALLOCATION
from .terminal import MOST_SILOS, compact, number, size

MOST_METHODS = 5
SHORT = 9  # letters of a method's name above a column


def summary_table(result: Result) -> Table:
    """Return a table with a row for each method and setting."""
    higher = result.task.higher_is_better
    arrow = "higher is better" if higher else "lower is better"
    if led_by(result)[1] != higher:
        arrow = f"{arrow} for {result.task.metric}, {'lower' if higher else 'higher'} for {result.leading}"
    led = "" if result.leading == result.task.metric else f"; bold: the best {result.leading}"
    measured = f"{result.leading} and {result.task.metric}" if led else result.task.metric
    table = compact(escape(f"Test {measured} over all silos ({arrow}{led})"))
    table.add_column("method")
    means = (result.leading, result.task.metric) if led else ("mean",)
    for name in (*map(escape, means), "± std", "seeds", "epsilon ≤", "bytes up", "seconds"):
        table.add_column(name, justify="right")
    best = result.best()
    for row in result.summary:
        style = "bold" if row == best or (not led and row["mean"] == best["mean"]) else ""
        table.add_row(
            label_of(row["method"], row["settings"]),
            *([f"{mean_of(row, result.leading):.4f}"] if led else []),
            f"{row['mean']:.4f}",
            f"{row['std']:.4f}" if row["seeds"] > 1 else "-",
            str(row["seeds"]),
            shown_spent(row["epsilon"]),
            size(row["bytes_up"]),
            f"{row['seconds']:.1f}",
            style=style,
        )
    return table


def coverage_table(coverage: Sequence[Coverage]) -> Table:
    """Return a table with a row per silo: what its ledger has left, and what a training would charge."""
    table = compact("Each silo's ledger, in epsilon: what is left, and what this training would charge")
    table.add_column("silo", no_wrap=True)
    for name in ("budget", "spent ≤", "left", "asked ≤", "rounds", "covered"):
        table.add_column(name, justify="right")
    for each in sorted(coverage, key=lambda each: each.is_covered)[:MOST_SILOS]:
        budget = "-" if each.budget is None else f"{each.budget[0]:g}{' (new)' if each.is_new else ''}"
        numbers = shown(each.spent[0]), f"{each.left[0]:.4g}", shown(each.asked[0])
        rounds = f"{each.covers} of {each.rounds}"
        table.add_row(escape(each.silo), budget, *numbers, rounds, "yes" if each.is_covered else "no")
    if len(coverage) > MOST_SILOS:
        table.caption = f"{len(coverage) - MOST_SILOS} more silos: see --json"
    return table


def silo_table(
    result: Result, budgets: Sequence[Sequence[float | None]], sizes: Sequence[int], unit: str = "example"
) -> Table:
    """Return a table with a row per silo: its budgets, its spending, and its scores with the best methods.

    Sizes count persons if these are the `unit`.
    """
    firsts = {run.label: run for run in reversed(result.runs)}
    led, higher = led_by(result)
    pick = max if higher else min
    means = {label_of(row["method"], row["settings"]): mean_of(row, led) for row in result.summary}
    sign = -1 if pick is max else 1
    best = sorted(means, key=lambda label: (math.isnan(means[label]), sign * means[label]))[:MOST_METHODS]
    labels = [label for label in dict.fromkeys(run.label for run in result.runs) if label in best]
    table = compact(f"Each silo: budget, spending, test {led} (first seed)")
    table.add_column("silo", no_wrap=True)
    for name in (_counted(unit), "budget", "spent", "noise"):
        table.add_column(name, justify="right")
    too_long = any(len(label) > SHORT for label in labels)
    letters = dict(zip(labels, "abcdefghij", strict=False)) if too_long else {}
    for name in labels:
        table.add_column(escape(letters.get(name, name)), justify="right", no_wrap=True)
    for k, name in enumerate(result.names[:MOST_SILOS]):
        records = [run.silos[name] for run in firsts.values()]
        scores = [score_of(firsts[label], name, led) for label in labels]
        top = pick((s for s in scores if s is not None and not math.isnan(s)), default=None)
        texts = ["-" if s is None else f"{s:.3f}" for s in scores]
        marked = [
            f"[bold]{text}[/]" if s is not None and s == top else text
            for s, text in zip(scores, texts, strict=True)
        ]
        noise = _range([record.noise for record in records], lambda value: f"{value:.2f}")
        spent = _range([record.epsilon for record in records], shown)
        given = [budget for budget in budgets[k] if budget is not None]
        row = (escape(name), str(sizes[k]), _range(given, number) if given else "none", spent, noise)
        table.add_row(*row, *marked)
    more = {"silos": len(result.names) - MOST_SILOS, "methods": len(firsts) - len(labels)}
    hidden = [f"{count} more {what}" for what, count in more.items() if count > 0]
    captions = [f"{' and '.join(hidden)}: see result.json."] if hidden else []
    if more["methods"] > 0:
        captions.append(f"The methods shown are the {len(labels)} with the best means.")
    key = [f"{letter}: {name}" for name, letter in letters.items()]
    table.caption = escape("\n".join([*captions, *key])) or None
    table.caption_justify = "left"
    return table


def _counted(unit: str) -> str:
    """Return the name of the column with the sizes of silos, which count what is protected."""
    return "persons" if unit == "person" else "size"


def mean_of(row: dict[str, Any], measure: str) -> float:
    """Return the mean of a measure in a row of the summary."""
    return float(row["mean"] if measure == row["metric"] else row["measures"][measure]["mean"])


def score_of(run: RunRecord, silo: str, measure: str) -> float | None:
    """Return a silo's value of a measure in a run; None where it is undefined."""
    if measure == run.metric:
        return run.silos[silo].score
    measured = run.measures[measure]
    return None if silo in measured.undefined else measured.silos[silo].value


def _range(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return the smallest and the largest number as text, or one of them if they look the same."""
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def plan_tables(experiments: Sequence[Experiment], plans: Sequence[Plan]) -> list[Table]:
    """Return tables of what each silo will do and spend with the first seed.

    Methods and settings with the same plan share a table, even if they send different numbers of bytes.
    """
    alike: dict[Any, list[PlannedLabel]] = {}
    for experiment, plan in zip(experiments, plans, strict=True):
        for planned in _planned(experiment, plan):
            alike.setdefault(planned.key, []).append(planned)
    return [_plan_table(group) for group in alike.values()]


@dataclass(frozen=True)
class PlannedLabel:
    """A method with its settings and its plan for one seed; `differs` if other seeds have other plans."""

    label: str
    silos: tuple[SiloPlan, ...]
    seed: int
    differs: bool
    unit: str

    @property
    def traffic(self) -> tuple[int, int] | None:
        """The bytes up and down, if they are the same for all silos."""
        each = {(silo.bytes_up, silo.bytes_down) for silo in self.silos}
        return each.pop() if len(each) == 1 else None

    @property
    def key(self) -> Any:
        """What the plans in one table share: everything except bytes that are equal for all silos."""
        rows = self.silos
        if self.traffic is not None:
            rows = tuple(replace(silo, bytes_up=0, bytes_down=0) for silo in rows)
        return rows, self.traffic is None, self.differs and self.seed


def _planned(experiment: Experiment, plan: Plan) -> list[PlannedLabel]:
    """Return the plan of each variant of an experiment, for the first seed."""
    by_key = dict(zip(experiment.keys, plan.silos, strict=True))
    seed = experiment.keys[0][0]
    differs = any(by_key[key] != by_key[seed, key[1]] for key in experiment.keys)
    variants = dict.fromkeys(variant for _, variant in experiment.keys)
    unit = experiment.privacy.unit
    return [PlannedLabel(experiment.labels[v], by_key[seed, v], seed, differs, unit) for v in variants]


def _plan_table(group: Sequence[PlannedLabel]) -> Table:
    """Return the table of a plan that several methods and settings share."""
    silos = group[0].silos
    table = compact(escape(f"Plan: {listed([planned.label for planned in group])}"))
    table.add_column("silo", no_wrap=True)
    released = ("share", "merges") if silos[0].merges is not None else ("rate", "steps")
    bytes_agree = len({planned.traffic for planned in group}) == 1
    traffic = ("up", "down") if bytes_agree else ()
    for name in (_counted(group[0].unit), *released, "noise", "budget", "epsilon", "delta", *traffic):
        table.add_column(name, justify="right", no_wrap=True)
    for silo in silos[:MOST_SILOS]:
        row = (
            escape(silo.name),
            str(silo.work.size),
            f"{silo.rate:.3g}",
            str(silo.steps),
            f"{silo.noise:.3f}",
            "none" if silo.limit is None else number(silo.limit),
            shown(silo.epsilon),
            f"{silo.delta:g}",
        )
        table.add_row(*row, *((size(silo.bytes_up), size(silo.bytes_down)) if bytes_agree else ()))
    captions = []
    if silos[0].sampler == ALLOCATION:
        captions.append("In each pass, every example is in exactly one of 1 / rate steps, drawn at random.")
    if len(silos) > MOST_SILOS:
        captions.append(f"{len(silos) - MOST_SILOS} more silos: --json shows all.")
    if not bytes_agree:
        captions.append(f"Bytes per silo: {_traffic(group)}.")
    if group[0].differs:
        captions.append(f"This is seed {group[0].seed}. Other seeds draw other cohorts: --json shows all.")
    table.caption = escape("\n".join(captions)) or None
    table.caption_justify = "left"
    return table


def _traffic(group: Sequence[PlannedLabel]) -> str:
    """Return how many bytes a silo sends and receives, by method, as text."""
    labels: dict[str, list[str]] = {}
    for planned in group:
        up, down = planned.traffic or (0, 0)
        each = f"{size(up)} up, {size(down)} down" if up or down else "none"
        labels.setdefault(each, []).append(planned.label)
    return "; ".join(f"{each} ({listed(names)})" for each, names in labels.items())


def listed(labels: Sequence[str]) -> str:
    """Return labels as text; those that differ only in the value of their last setting are combined.

    >>> listed(["local", "mr-mtl lam=0.1", "mr-mtl lam=1"])
    'local, mr-mtl lam={0.1, 1}'
    """
    values: dict[str, list[str]] = {}
    for label in labels:
        start, equals, value = label.rpartition("=")
        values.setdefault(start + equals if equals else label, []).append(value)
    return ", ".join(
        start + ("" if start[-1] != "=" else own[0] if len(own) == 1 else f"{{{', '.join(own)}}}")
        for start, own in values.items()
    )
