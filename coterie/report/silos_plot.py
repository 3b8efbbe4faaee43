"""Silos in pictures: what each gained over training alone, its cluster, and its lam."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Problem
from ..experiment.gains import Gains, gains_of
from ..experiment.result import Result, RunRecord
from .plot import COLOURS, GREY
from .silo_tables import first_runs, members

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS = 4
MOST_NAMES = 40  # silos that are named beside their bars
BETTER, WORSE = COLOURS[2], COLOURS[1]
WIDE = 44  # letters of a title's line


def has_silos(result: Result) -> bool:
    """Return whether there is anything to draw."""
    return bool(gains_of(result)) or any(run.learned for run in result.runs)


def draw_silos(result: Result, path: Path) -> None:
    """Draw the silos of a result into a PNG file."""
    figure_of_silos(result).savefig(path, dpi=130, format="png")


def figure_of_silos(result: Result) -> Figure:
    """Return a figure with sorted gains over training alone, and clusters and lam where a method learns them.

    Of many methods it has those with the largest median gains.
    """
    from matplotlib.figure import Figure

    if not has_silos(result):
        raise Problem("there are no gains to draw: run 'local' beside other methods")
    runs = first_runs(result)
    gains = sorted(gains_of(result), key=lambda each: -each.facts()["median"])[:MOST_PANELS]
    learned = [
        (label, name) for label, run in runs.items() for name in ("cluster", "lam") if name in run.learned
    ]
    learned = learned[:MOST_PANELS]
    across = max(len(gains), len(learned))
    count = len(result.names)
    tall = min(max(2.6, 0.17 * min(count, MOST_NAMES) + 1.2), 8.5)
    heights = [tall] * bool(gains) + [3.0] * bool(learned)
    figure = Figure(figsize=(max(6.4, 3.3 * across + 0.6), sum(heights) + 0.4), layout="constrained")
    rows = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if gains:
        panels = rows[0].subplots(1, len(gains), squeeze=False, sharex=True)[0]
        for axes, each in zip(panels, gains, strict=True):
            _bars(axes, each, members(runs[each.label]))
    if learned:
        for axes, (label, name) in zip(
            rows[-1].subplots(1, len(learned), squeeze=False)[0], learned, strict=True
        ):
            own = [run for run in result.runs if run.label == label]
            (_clusters if name == "cluster" else _pulls)(axes, own, label)
    figure.suptitle(f"{count} silos", fontsize=10)
    return figure


def _bars(axes: Any, gains: Gains, clusters: dict[int, list[str]]) -> None:
    """Draw the gain of each silo, largest on top, in the colours of its cluster if there are clusters."""
    names, values = list(gains.silos), list(gains.silos.values())
    colours = [BETTER if value > 0 else WORSE for value in values]
    if clusters:
        own = {name: _colour(number) for number, inside in clusters.items() for name in inside}
        colours = [own[name] for name in names]
    axes.barh(range(len(names)), values, color=colours, height=0.8)
    axes.axvline(0, color="black", lw=0.8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    _name(axes.set_yticks, names, 0)
    known = gains.facts()
    axes.set_title(
        f"{_wrapped(gains.label)}\n{known['better']} of {len(names)} gain, median {known['median']:+.3f}",
        fontsize=8.5,
        loc="left",
    )
    axes.set_xlabel(f"gain in {gains.measure} over {gains.against}", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    _plain(axes, "x")
    if clusters:
        from matplotlib.patches import Patch

        patches = [Patch(color=_colour(number), label=f"cluster {number}") for number in clusters]
        title = {"title": "in the first seed", "title_fontsize": 7}
        axes.legend(handles=patches, fontsize=7, frameon=False, loc="lower right", **title)


def _clusters(axes: Any, runs: Sequence[RunRecord], label: str) -> None:
    """Draw which silo is in which cluster, a row per seed, in the order of the first seed's clusters."""
    from matplotlib.colors import to_rgb

    groups = members(runs[0])
    names = [name for inside in groups.values() for name in inside]
    numbers = [[int(run.learned["cluster"][name]) for name in names] for run in runs]
    axes.imshow(
        [[to_rgb(_colour(n)) for n in row] for row in numbers], aspect="auto", interpolation="nearest"
    )
    if len(names) <= MOST_NAMES // 2:
        for row, listed in enumerate(numbers):
            for place, number in enumerate(listed):
                axes.text(place, row, str(number), ha="center", va="center", fontsize=8)
    axes.set_yticks(range(len(runs)), [f"seed {run.seed}" for run in runs], fontsize=8)
    _name(axes.set_xticks, names, 90)
    axes.set_title(
        f"{_wrapped(label)}\ncluster of each silo (numbers are those of each seed)", fontsize=8.5, loc="left"
    )


def _pulls(axes: Any, runs: Sequence[RunRecord], label: str) -> None:
    """Draw the lam of each silo, smallest first in the first seed."""
    first = runs[0].learned["lam"]
    names = sorted(first, key=lambda name: first[name])
    values = [value for run in runs for value in run.learned["lam"].values() if value > 0]
    for number, run in enumerate(runs):
        colour = COLOURS[2] if number == 0 else GREY
        mark = {"label": f"seed {run.seed}" if number == 0 else "other seeds" if number == 1 else None}
        place = {"zorder": 3 if number == 0 else 2}
        axes.plot(
            range(len(names)),
            [run.learned["lam"][name] for name in names],
            "o",
            ms=4,
            color=colour,
            **mark,
            **place,
        )
    if values and max(values) > 10 * min(values):
        axes.set_yscale("symlog", linthresh=min(values)) if min(first.values()) <= 0 else axes.set_yscale(
            "log"
        )
    _name(axes.set_xticks, names, 90)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_title(f"{_wrapped(label)}\nlam of each silo", fontsize=8.5, loc="left")
    if len(runs) > 1:
        axes.legend(fontsize=7, frameon=False)
    _plain(axes, "y")


def _wrapped(label: str) -> str:
    return textwrap.fill(label, WIDE)


def _colour(cluster: int) -> str:
    return COLOURS[cluster % len(COLOURS)]


def _name(set_ticks: Any, names: Sequence[str], rotation: int) -> None:
    """Name the silos on an axis, if there are few enough."""
    few = len(names) <= MOST_NAMES
    size = max(5.0, min(8.0, 200 / max(1, len(names))))
    set_ticks(range(len(names)) if few else [], list(names) if few else [], fontsize=size, rotation=rotation)


def _plain(axes: Any, grid: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, alpha=0.25)
