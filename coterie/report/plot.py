"""The plot of a result: scores of the methods, and how they developed over rounds."""

from __future__ import annotations

import math
import statistics
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..experiment.result import WHAT, Result, RunRecord
from ..experiment.summaries import deviation, led_by, led_runs
from ..privacy.accountant import shown
from .summary import Line, label_without, lines_over, place_of, swept_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 26
FEW = 6  # lines whose legend fits beside them
ACROSS = 4
TALLEST = 6.5  # inches of a panel with curves; with more rows only the panel with scores grows
GREY = "#ccd0d6"
COLOURS = ("#7d8597", "#e07a5f", "#2a6f97", "#81b29a", "#f2cc8f", "#6d597a", "#b56576", "#355070")
MARKED = len(COLOURS) - 1  # how many of the best are coloured if there are more rows or lines than colours
Looks = dict[str, str]


def draw(result: Result, path: Path) -> None:
    """Draw a result into a PNG file."""
    figure_of(result).savefig(path, dpi=130, format="png")


def figure_of(result: Result) -> Figure:
    """Return a figure with scores by method and silo, or over a setting that varies, and over rounds."""
    from matplotlib.figure import Figure

    metric, higher = led_by(result)
    led = led_runs(result)
    groups = _by_label(led)
    key = swept_key(led)
    lines = lines_over(led, key) if key else []
    looks = _looks(_best_first(groups, lines, higher))
    height = _height(groups, lines)
    figure = Figure(figsize=(10, height), layout="constrained")
    curves = min(height, TALLEST)
    grid = figure.add_gridspec(2, 2, height_ratios=[curves, max(height - curves, 1e-3)])
    left = figure.add_subplot(grid[:, 0])
    right = figure.add_subplot(grid[0 if height > TALLEST else slice(None), 1])
    better = "higher" if higher else "lower"
    scale = f"test {metric} ({better} is better)"
    if key is None:
        _scores(left, groups, looks)
        left.set_xlabel(scale)
    else:
        _lines(left, lines, key, looks)
        left.set_ylabel(scale)
        if not higher:
            for axes in (left, right) if metric == result.task.metric else (left,):
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("{x:g}")
                axes.tick_params(axis="y", which="both", labelsize=8)
        value, groups = _middle(result.runs, key)
        right.set_title(f"with {key} = {value:g}", fontsize=9, loc="left")
    _curves(right, groups, looks)
    if len(lines) > FEW:
        handles, names = left.get_legend_handles_labels()
        given: dict[str, Any] = {"fontsize": 7.5, "frameon": False, "ncols": ACROSS}
        figure.legend(handles, names, loc="outside lower center", **given)
    elif key:
        left.legend(frameon=False, fontsize=7.5)
    else:
        right.legend(frameon=False, fontsize=8 if len(groups) <= FEW else 7.5)
    right.set_xlabel("round")
    right.set_ylabel(f"test {result.task.metric}")
    private = [row["epsilon"] for row in result.summary if row["epsilon"] < float("inf")]
    spent = f"epsilon at most {shown(max(private))}" if private else "no privacy"
    figure.suptitle(f"{len(result.names)} silos, {spent}; scores of a {WHAT[result.kind]}", fontsize=10)
    return figure


def _by_label(runs: list[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return the runs of each method and setting."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def _best_first(groups: dict[str, list[RunRecord]], lines: list[Line], higher: bool) -> list[str]:
    """Return the labels of rows or lines in order, or best first if there are more of them than colours."""
    pick = max if higher else min
    scores = {label: statistics.fmean(run.score for run in runs) for label, runs in groups.items()}
    if lines:
        known = {line.label: [mean for mean in line.means if not math.isnan(mean)] for line in lines}
        scores = {label: pick(means, default=math.nan) for label, means in known.items()}
    if len(scores) <= len(COLOURS):
        return list(scores)
    sign = -1 if higher else 1
    return sorted(scores, key=lambda label: (math.isnan(scores[label]), sign * scores[label]))


def _looks(labels: list[str]) -> Looks:
    """Return a colour for each label, the same in both panels; grey once the colours are used up."""
    if len(labels) <= len(COLOURS):
        return dict(zip(labels, COLOURS, strict=False))
    marked = dict(zip(labels[:MARKED], COLOURS[1:], strict=True))
    return {label: marked.get(label, GREY) for label in labels}


def _height(groups: dict[str, list[RunRecord]], lines: list[Line]) -> float:
    """Return the height of the figure in inches."""
    if lines:
        shown_lines = min(len(lines), MARKED + 1)
        return 4.6 + (0.24 * -(-shown_lines // ACROSS) if len(lines) > FEW else 0)
    tall = max(_wrapped(label).count("\n") + 1 for label in groups)  # lines of the longest label
    if len(groups) > len(COLOURS):
        return 1.4 + max(0.32, 0.17 * tall) * len(groups)
    return max(3.6, max(0.62, 0.16 * (1 + tall)) * len(groups) + 1.4)


def _wrapped(label: str) -> str:
    """Break a long label into lines."""
    return textwrap.fill(label, WIDE)


def _middle(runs: list[RunRecord], key: str) -> tuple[float, dict[str, list[RunRecord]]]:
    """Return the middle value of the setting that varies; by method, runs with it or without the setting."""
    values = sorted({value for line in lines_over(runs, key) for value in line.values})
    value = values[len(values) // 2]
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        if place_of(run, key) in (value, None):
            groups.setdefault(label_without(run, key), []).append(run)
    return value, groups


def _scores(axes: Any, groups: dict[str, list[RunRecord]], looks: Looks) -> None:
    """Draw each method's mean, its deviation over seeds, and a dot for each silo (first seed).

    If there are many methods, rows are narrow, with the best on top.
    """
    labels, many = [], len(groups) > len(COLOURS)
    for place, label in enumerate(looks):
        runs, colour = groups[label], looks[label]
        scores = [run.score for run in runs]
        spread = deviation(scores) if len(scores) > 1 else 0
        silos = [silo.score for silo in runs[0].silos.values()]
        mean = statistics.fmean(scores)
        height = [place + 0.16 + 0.18 * ((k * 0.618) % 1) for k in range(len(silos))]
        dots = {"ms": 2.5 if many else 3.5, "alpha": max(0.15, min(0.7, 20 / len(silos))), "mew": 0}
        axes.plot(silos, height, "o", color=colour, **dots)
        mark = {"fmt": "D", "ms": 6 if many else 8, "capsize": 4, "mec": "black", "mew": 0.6}
        axes.errorbar(mean, place, xerr=spread, color=colour, **mark)
        labels.append(f"{_wrapped(label)}{'   ' if many else chr(10)}{mean:.4f}")
    large = not many and max(text.count("\n") for text in labels) < 3
    axes.set_yticks(range(len(groups)), labels, fontsize=10 if large else 8)
    axes.set_ylim(len(groups) - 0.4, -0.5)
    best = f"\nin colour: the {MARKED} best" if many else ""
    axes.set_title(f"diamond: mean and deviation over seeds; dots: silos{best}", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)


def _lines(axes: Any, lines: list[Line], key: str, looks: Looks) -> None:
    """Draw each method's mean over the setting that varies, with its deviation over seeds."""
    names = _legend(looks)
    for line in sorted(lines, key=lambda line: list(looks).index(line.label)):
        colour, name = looks[line.label], names[line.label]
        behind = {"zorder": 1} if colour == GREY else {}
        if not line.values:
            axes.axhline(line.means[0], color=colour, lw=1.1, label=name, **behind)
            continue
        style = {"lw": 1.1, "ms": 2.5, **behind} if behind else {"lw": 1.8, "ms": 4}
        axes.plot(line.values, line.means, "-", marker="o", color=colour, label=name, **style)
        if not behind:
            low = [m - (d or 0.0) for m, d in zip(line.means, line.deviations, strict=True)]
            high = [m + (d or 0.0) for m, d in zip(line.means, line.deviations, strict=True)]
            axes.fill_between(line.values, low, high, color=colour, alpha=0.12, lw=0)
    values = sorted({value for line in lines for value in line.values})
    least = min(v for v in values if v > 0)
    if values[-1] >= 10 * least:
        if values[0] > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=least)
    axes.set_xticks(values, [f"{value:g}" for value in values], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(key)
    best = f"; in colour: the {MARKED} with the best scores" if len(lines) > len(COLOURS) else ""
    axes.set_title(f"mean and deviation over seeds{best}", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _curves(axes: Any, groups: dict[str, list[RunRecord]], looks: Looks) -> None:
    """Draw the mean score over rounds."""
    from matplotlib.ticker import MaxNLocator

    names = _legend(looks)
    for label in (label for label in looks if label in groups):
        runs, colour = groups[label], looks[label]
        rounds = [number for number, _ in runs[0].history]
        means = [
            statistics.fmean(values)
            for values in zip(*([s for _, s in r.history] for r in runs), strict=True)
        ]
        style = {"lw": 1.1, "zorder": 1} if colour == GREY else {"lw": 1.8}
        axes.plot(rounds, means, color=colour, label=names[label], **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _legend(looks: Looks) -> dict[str, str]:
    """Return the legend's text for each label; all grey labels share one entry."""
    others = [label for label, colour in looks.items() if colour == GREY]
    named = {label: _wrapped(label) for label in looks}
    return named | {label: f"{len(others)} others" if label == others[0] else "_" for label in others}
