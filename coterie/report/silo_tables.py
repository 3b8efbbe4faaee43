"""What each silo gained over training alone, and what methods learned of it, as lines and a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from ..experiment.gains import Gains, gains_of
from ..experiment.result import Result, RunRecord
from .measures_table import best_labels
from .tables import SHORT
from .terminal import MOST_SILOS, compact

MOST_METHODS = 4


def gain_lines(result: Result) -> list[str]:
    """Return a sentence for each method: how many silos gain over training alone, and how much.

    Of many methods these are the ones with the largest median gains.
    """
    every = sorted(gains_of(result), key=lambda gains: -gains.facts()["median"])
    return [f"Gain over training alone: {gains.line()}" for gains in every[:MOST_METHODS]]


def learned_lines(result: Result) -> list[str]:
    """Return what methods learned of the silos, in the first seed: members of clusters, and spread of lam."""
    lines = []
    for label, run in first_runs(result).items():
        clusters = members(run)
        if clusters:
            shown = "; ".join(f"{number}: {', '.join(_few(names))}" for number, names in clusters.items())
            lines.append(f"Clusters of {label}: {shown}.")
        if "lam" in run.learned:
            lam = sorted(run.learned["lam"].values())
            middle = lam[len(lam) // 2]
            lines.append(
                f"lam of {label}: from {lam[0]:.3g} to {lam[-1]:.3g}, median {middle:.3g} over silos."
            )
    return lines


def silo_gain_table(result: Result) -> Table | None:
    """Return a table with a row per silo, sorted by its gain with the best method; None without gains.

    Of many silos it has those that gain most and least.
    """
    every = {gains.label: gains for gains in gains_of(result)}
    if not every:
        return None
    labels = [label for label in best_labels(result, len(result.summary)) if label in every]
    ranked = sorted(labels, key=lambda label: -every[label].facts()["median"])[:MOST_METHODS]
    first, runs = every[ranked[0]], first_runs(result)
    table = compact(f"Gain of each silo over training alone, in {first.measure} (mean over seeds)")
    table.add_column("silo", no_wrap=True)
    letters = dict(zip(ranked, "abcdefghij", strict=False)) if any(len(r) > SHORT for r in ranked) else {}
    for label in ranked:
        table.add_column(escape(letters.get(label, label)), justify="right")
    known = [(label, name) for label in ranked for name in ("cluster", "lam") if name in runs[label].learned]
    for label, name in known:
        table.add_column(escape(f"{name} ({letters.get(label, label)})"), justify="right")
    table.caption = escape("\n".join(f"{letter}: {label}" for label, letter in letters.items())) or None
    table.caption_justify = "left"
    for silo in _ends(list(first.silos)):
        if not silo:
            table.add_row("...")
            continue
        learned = [f"{runs[label].learned[key][silo]:.3g}" for label, key in known]
        table.add_row(escape(silo), *(_gain(every[label], silo) for label in ranked), *learned)
    return table


def first_runs(result: Result) -> dict[str, RunRecord]:
    """Return the first run of each method and setting."""
    runs: dict[str, RunRecord] = {}
    for run in result.runs:
        runs.setdefault(run.label, run)
    return runs


def members(run: RunRecord) -> dict[int, list[str]]:
    """Return the silos of each cluster of a run; none if its method learns no clusters."""
    groups: dict[int, list[str]] = {}
    for name, cluster in sorted(run.learned.get("cluster", {}).items(), key=lambda pair: pair[1]):
        groups.setdefault(int(cluster), []).append(name)
    return groups


def _gain(gains: Gains, silo: str) -> str:
    return f"{gains.silos[silo]:+.3f}" if silo in gains.silos else "-"


def _ends(names: Sequence[str]) -> list[str]:
    """Return all names, or the first and the last with an empty one between them."""
    half = MOST_SILOS // 2
    return list(names) if len(names) <= MOST_SILOS else [*names[:half], "", *names[-half:]]


def _few(names: Sequence[str]) -> list[str]:
    return list(names) if len(names) <= MOST_SILOS else [*names[:MOST_SILOS], f"{len(names)} in all"]
