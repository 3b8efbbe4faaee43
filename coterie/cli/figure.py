"""What `coterie figure` draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Problem, reason
from .output import say

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_tradeoff_figure(noises: list[float], rate: float, steps: int, out: Path, unit: str) -> None:
    """Draw the trade-off curves of sampled Gaussian steps: no attacker does better."""
    from ..report.tradeoff_plot import draw_tradeoff

    _save(draw_tradeoff(noises, rate, steps, unit=unit), out)


def draw_tuning_figure(epsilon: float, mean: float, out: Path) -> None:
    """Draw what tuning brings and costs in the model of mean estimation; print whether it pays off."""
    from ..report.tuning_plot import tuning_figures, tuning_panels

    figures = tuning_figures(epsilon, mean)
    _save(tuning_panels(figures, epsilon, mean), out)
    say("Gain of tuning over the better of Local and FedAvg, by the distribution of the number of trials:")
    for name, figure in figures.items():
        words = ", ".join(f"{label} {gain:+.3g}" for label, gain in figure.gains.items())
        say(f"  {name} heterogeneity: {words}")


def _save(figure: Figure, out: Path) -> None:
    try:
        figure.savefig(out, dpi=130, format="png")
    except OSError as error:
        raise Problem(f"out: cannot write '{out}': {reason(error)}") from error
    say(f"Saved the picture as {out}.")
