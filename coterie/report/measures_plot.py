"""All measures of a result in one picture, with intervals."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..experiment.result import Result, label_of
from .measures_table import best_labels
from .plot import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_MEASURES = 6
MOST_METHODS = 20
ACROSS = 3
WIDE = 26  # letters of a label's line


def has_measures(result: Result) -> bool:
    """Return whether there are measures beside the score."""
    return bool(result.runs) and len(result.runs[0].measures) > 1


def draw_measures(result: Result, path: Path) -> None:
    """Draw the measures of a result into a PNG file."""
    figure_of_measures(result).savefig(path, dpi=130, format="png")


def figure_of_measures(result: Result) -> Figure:
    """Return a figure with a panel for each measure: every method's mean, with its intervals."""
    from matplotlib.figure import Figure

    names = list(result.runs[0].measures)[:MOST_MEASURES]
    labels = best_labels(result, MOST_METHODS)
    across = min(ACROSS, len(names))
    down = math.ceil(len(names) / across)
    size = 3.3 * across + 1.2, (0.34 * len(labels) + 1.1) * down + 0.3
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True)
    summary = [
        row["measures"] for row in result.summary if label_of(row["method"], row["settings"]) in labels
    ]
    for place, axes in enumerate(panels.reshape(-1)):
        if place >= len(names):
            axes.set_axis_off()
            continue
        _panel(axes, names[place], [row[names[place]] for row in summary])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_yticks(range(len(labels)), [textwrap.fill(each, WIDE) for each in labels], fontsize=7.5)
    figure.suptitle("mean over silos; dark: 95 % over test rows, light: over seeds", fontsize=9)
    return figure


def _panel(axes: Any, name: str, measures: list[dict[str, Any]]) -> None:
    """Draw one measure of every method."""
    for place, measure in enumerate(measures):
        if math.isnan(measure["mean"]):
            continue
        if measure["seeds"] is not None:
            look = {"color": COLOURS[1], "alpha": 0.35, "lw": 7, "solid_capstyle": "butt"}
            axes.plot(measure["seeds"], [place, place], **look)
        axes.plot(measure["rows"], [place, place], color=COLOURS[2], lw=1.8)
        axes.plot(measure["mean"], place, "o", color=COLOURS[2], ms=5)
    better = "higher" if measures[0]["higher_is_better"] else "lower"
    axes.set_title(f"{name} ({better} is better)", fontsize=8.5, loc="left")
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
