"""The plot of a result: the scores of the methods, and how they developed over rounds."""

from __future__ import annotations

import statistics
import textwrap
from pathlib import Path
from typing import Any

from ..experiment.result import Result, RunRecord, deviation
from ..privacy.accountant import shown
from .summary import Line, label_without, lines_over, place_of, swept_key

WIDE = 26
FEW = 6  # the most lines whose legend fits beside them
STYLES = ("-", "--", "-.", ":")
ACROSS = 4
Looks = dict[str, tuple[str, str]]
COLOURS = ("#7d8597", "#e07a5f", "#2a6f97", "#81b29a", "#f2cc8f", "#6d597a", "#b56576", "#355070")


def draw(result: Result, path: Path) -> None:
    """Draw scores by method and silo, and scores over rounds, into a PNG file."""
    from matplotlib.figure import Figure

    groups: dict[str, list[RunRecord]] = {}
    for run in result.runs:
        groups.setdefault(run.label, []).append(run)
    key = swept_key(result.runs)
    lines = lines_over(result.runs, key) if key else []
    looks = _looks([line.label for line in lines] or list(groups))
    below = -(-len(lines) // ACROSS) if len(lines) > FEW else 0  # rows of a legend of its own
    tall = 1 + max(_wrapped(label).count("\n") + 1 for label in groups)  # lines beside a method's mean
    height = 4.6 + 0.24 * below if key else max(3.6, max(0.62, 0.16 * tall) * len(groups) + 1.4)
    figure = Figure(figsize=(10, height), layout="constrained")
    left, right = figure.subplots(1, 2)
    metric = result.task.metric
    better = "higher" if result.task.higher_is_better else "lower"
    scale = f"test {metric} ({better} is better)"
    if key is None:
        _scores(left, groups, looks)
        left.set_xlabel(scale)
    else:
        _lines(left, lines, key, looks)
        left.set_ylabel(scale)
        if not result.task.higher_is_better:
            for axes in (left, right):
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("{x:g}")
                axes.tick_params(axis="y", which="both", labelsize=8)
        value, groups = _middle(result.runs, key)
        right.set_title(f"with {key} = {value:g}", fontsize=9, loc="left")
    _curves(right, groups, looks)
    if below:
        given = {"fontsize": 7.5, "frameon": False, "ncols": ACROSS}
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", **given)
    elif key:
        left.legend(frameon=False, fontsize=7.5)
    if not key and len(groups) <= FEW:
        right.legend(frameon=False, fontsize=8)
    right.set_xlabel("round")
    right.set_ylabel(f"test {metric}")
    private = [row["epsilon"] for row in result.summary if row["epsilon"] < float("inf")]
    spent = f"epsilon at most {shown(max(private))}" if private else "no privacy"
    figure.suptitle(f"{len(result.names)} silos, {spent}; scores of a simulation", fontsize=10)
    figure.savefig(path, dpi=130, format="png")


def _looks(labels: list[str]) -> Looks:
    """Return a colour and a line style for each label, the same in both panels."""
    return {
        label: (COLOURS[place % len(COLOURS)], STYLES[place // len(COLOURS) % len(STYLES)])
        for place, label in enumerate(labels)
    }


def _wrapped(label: str) -> str:
    """Return a label broken into lines."""
    return textwrap.fill(label, WIDE)


def _middle(runs: list[RunRecord], key: str) -> tuple[float, dict[str, list[RunRecord]]]:
    """Return the middle value of the varied setting, and the runs with it or without it, by method."""
    values = sorted({value for line in lines_over(runs, key) for value in line.values})
    value = values[len(values) // 2]
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        if place_of(run, key) in (value, None):
            groups.setdefault(label_without(run, key), []).append(run)
    return value, groups


def _scores(axes: Any, groups: dict[str, list[RunRecord]], looks: Looks) -> None:
    """Draw each method's mean, its deviation over seeds, and a dot for each silo (first seed)."""
    labels = []
    for place, (label, runs) in enumerate(groups.items()):
        scores = [run.score for run in runs]
        spread = deviation(scores) if len(scores) > 1 else 0
        silos = [silo.score for silo in runs[0].silos.values()]
        colour = looks[label][0]
        mean = statistics.fmean(scores)
        height = [place + 0.16 + 0.18 * ((k * 0.618) % 1) for k in range(len(silos))]
        axes.plot(silos, height, "o", color=colour, ms=3.5, alpha=max(0.15, min(0.7, 20 / len(silos))), mew=0)
        axes.errorbar(mean, place, xerr=spread, fmt="D", color=colour, ms=8, capsize=4, mec="black", mew=0.6)
        labels.append(f"{_wrapped(label)}\n{mean:.4f}")
    axes.set_yticks(
        range(len(groups)), labels, fontsize=10 if max(label.count("\n") for label in labels) < 3 else 8
    )
    axes.set_ylim(len(groups) - 0.4, -0.5)
    axes.set_title("diamond: mean and deviation over seeds; dots: silos", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)


def _lines(axes: Any, lines: list[Line], key: str, looks: Looks) -> None:
    """Draw each method's mean over the varied setting, with its deviation over seeds."""
    for line in lines:
        colour, style = looks[line.label]
        if not line.values:
            axes.axhline(line.means[0], color=colour, ls=style, lw=1.1, label=_wrapped(line.label))
            continue
        low = [m - (d or 0.0) for m, d in zip(line.means, line.deviations, strict=True)]
        high = [m + (d or 0.0) for m, d in zip(line.means, line.deviations, strict=True)]
        axes.plot(
            line.values, line.means, style, marker="o", ms=4, color=colour, lw=1.8, label=_wrapped(line.label)
        )
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
    axes.set_title("mean and deviation over seeds", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _curves(axes: Any, groups: dict[str, list[RunRecord]], looks: Looks) -> None:
    """Draw the mean score over rounds."""
    from matplotlib.ticker import MaxNLocator

    for label, runs in groups.items():
        rounds = [number for number, _ in runs[0].history]
        means = [
            statistics.fmean(values)
            for values in zip(*([s for _, s in r.history] for r in runs), strict=True)
        ]
        colour, style = looks[label]
        axes.plot(rounds, means, style, label=_wrapped(label), color=colour, lw=1.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
