"""Draw trade-off curves: how well an attacker could tell whether somebody's data was used.

The picture follows figure 3 of Wu, Chen, Wang 2020 (A Theoretical Perspective on Differentially Private
Federated Multi-Task Learning), which shows only the central limit; here the certified curve is next to it.
A second row shows the corner of rare false alarms, which figure 3 hides. There an attacker can be sure about
a few members, and there the central limit reports too small a risk.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import Problem, plainly
from ..privacy.events import Event
from ..privacy.published.formulas import central_limit_mu
from ..privacy.tradeoff import CERTIFIED, TradeOff, certified_curve, gaussian_curve, misses

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#2a6f97", "#e07a5f", "#5a9367", "#6d597a", "#c08a2b", "#b56576", "#7d8597", "#355070")
FALSE_ALARMS = 0.05  # where the legend reads the curves
RARE = (1e-5, 0.1)
NOTE = (
    "The closer a line is to blind guessing, the less an attacker learns. Solid lines are certified: no"
    " attack does better. Dashed lines are estimates: where one is closer to blind guessing than the solid"
    " line, it promises more than is proven."
)


def noise_panel(noises: Iterable[float], rate: float, steps: int) -> tuple[TradeOff, ...]:
    """Return the certified curve and the central-limit curve for each noise multiplier.

    The curves are those of `steps` Poisson-sampled Gaussian sums, with each unit in a sample with
    probability `rate`. Figure 3 has noise .11, .65, 2.42 and 9.69 (CelebA: rate 20/9343, 400 steps; FEMNIST:
    3/174, 1,000 steps) and takes these to be true multipliers. `heads_sensitivity` in
    `privacy.published.formulas` explains why those of the paper's algorithm are smaller.
    """
    curves = []
    for noise in noises:
        label = f"noise {noise:g}"
        curves.append(certified_curve((Event("gaussian", noise, rate, steps),), label))
        limit = gaussian_curve(central_limit_mu(noise, rate, steps), label)
        curves.append(replace(limit, by="central limit"))
    return tuple(curves)


@plainly
def draw_tradeoff(
    noise: float | Iterable[float], rate: float, steps: int, *, unit: str = "one example"
) -> Figure:
    """Draw how well an attacker could tell whether somebody's data was used; a matplotlib figure.

    `noise` is the multiplier, or several, of `steps` Gaussian sums that are sampled with a `rate`. `unit`
    says in words what is protected.
    """
    noises = [noise] if isinstance(noise, int | float) else list(noise)
    title = f"{steps:,} steps, each with a chance of {rate:.3g}"
    return tradeoff_figure({title: noise_panel(noises, rate, steps)}, unit)


def tradeoff_figure(panels: Mapping[str, Sequence[TradeOff]], unit: str = "one member") -> Figure:
    """Return a figure with panels of trade-off curves, each with its title.

    `unit` says in words who or what is protected. Curves with the same label share a colour. Certified curves
    are solid, others dashed.
    """
    from matplotlib.figure import Figure

    if not panels or not all(panels.values()):
        raise Problem("panels must map one or more titles to one or more curves each")
    lines = 0.2 * max(len(curves) for curves in panels.values()) + 0.6
    size = (5.4 * len(panels), 9.4 + lines)
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subplots(3, len(panels), squeeze=False, height_ratios=(5, 3, lines))
    for place, (title, curves) in enumerate(panels.items()):
        whole, rare, legend = rows[:, place]
        _lines(whole, rare, curves)
        _whole(whole, title)
        _rare(rare)
        _legend(whole, legend)
    width = 48 * len(panels)
    question = f"Can an attacker tell from what was released whether the data of {unit} was used?"
    figure.suptitle(textwrap.fill(question, width), fontsize=12, fontweight="bold")
    figure.supxlabel(textwrap.fill(NOTE, 2 * width), fontsize=8, color="#444444", x=0.02, ha="left")
    return figure


def _lines(whole: Any, rare: Any, curves: Sequence[TradeOff]) -> None:
    """Draw the share missed in `whole` and the share caught in `rare`; the legend shows the share missed."""
    colours: dict[str, str] = {}
    guess = {"ls": ":", "color": "black", "lw": 1.4}
    whole.plot([0, 1], [1, 0], label=f"{_percent(1 - FALSE_ALARMS)}   blind guessing", **guess)
    rare.plot(RARE, RARE, **guess)
    for curve in curves:
        solid = curve.by == CERTIFIED
        look = {
            "color": colours.setdefault(curve.label, COLOURS[len(colours) % len(COLOURS)]),
            "ls": "-" if solid else "--",
            "lw": 2.2 if solid else 1.5,
        }
        kind, least = ("certified", " or more") if solid else (f"estimate ({curve.by})", "")
        name = f"{_percent(misses(curve, FALSE_ALARMS))}{least}   {curve.label}, {kind}"
        whole.plot(curve.type_one, curve.type_two, label=name, **look)
        shown = curve.type_one > 0
        rare.plot(curve.type_one[shown], 1 - curve.type_two[shown], **look)


def _whole(axes: Any, title: str) -> None:
    axes.set(xlim=(-0.005, 1), ylim=(-0.005, 1))
    axes.set_title(title, fontsize=11)
    axes.set_xlabel('false alarms: "was used", but it was not (type I error)')
    axes.set_ylabel('misses: "was not used", but it was (type II error)')
    axes.axvline(FALSE_ALARMS, color="#999999", lw=0.8, zorder=0)
    _tidy(axes)


def _rare(axes: Any) -> None:
    axes.set(xscale="log", yscale="log", xlim=RARE, ylim=(RARE[0], 1.1))
    axes.set_title("The same for attackers who want to be sure (log scale)", fontsize=10)
    axes.set_xlabel("false alarms (type I error)")
    axes.set_ylabel('caught: "was used",\nand it was')
    _tidy(axes)


def _tidy(axes: Any) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(
            lambda share, _: f"{100 * share:g} %" if share < 1e-2 else f"{100 * share:.0f} %"
        )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(whole: Any, axes: Any) -> None:
    axes.axis("off")
    axes.legend(
        *whole.get_legend_handles_labels(),
        title=f"An attacker with {100 * FALSE_ALARMS:.0f} % false alarms (grey line) misses",
        title_fontsize=9,
        fontsize=9,
        frameon=False,
        loc="upper left",
        alignment="left",
    )


def _percent(share: float) -> str:
    """Return a share as text, rounded down so that it does not promise too much."""
    return f"{math.floor(1000 * share + 1e-9) / 10:.1f} %"
