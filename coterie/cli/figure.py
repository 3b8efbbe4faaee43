"""What `coterie figure` draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import Problem
from .output import say


def draw_tradeoff_figure(noises: list[float], rate: float, steps: int, out: Path, unit: str) -> None:
    """Draw the trade-off curves of sampled Gaussian steps, which bound what any attacker can do."""
    from ..report.tradeoff_plot import draw_tradeoff, noise_panel

    title = f"{steps:,} steps, sampling rate {rate:.3g}"
    _drawn(out, lambda: draw_tradeoff({title: noise_panel(noises, rate, steps)}, out, unit))


def draw_tuning_figure(epsilon: float, mean: float, out: Path) -> None:
    """Draw what tuning gains and costs in the model of mean estimation; print whether it pays off."""
    from ..report.tuning_plot import draw_tuning, tuning_figures

    figures = tuning_figures(epsilon, mean)
    _drawn(out, lambda: draw_tuning(figures, epsilon, mean, out))
    say("Gain of tuning over the better of Local and FedAvg, by the distribution of the number of trials:")
    for name, figure in figures.items():
        words = ", ".join(f"{label} {gain:+.3g}" for label, gain in figure.gains.items())
        say(f"  {name} heterogeneity: {words}")


def _drawn(out: Path, draw: Callable[[], None]) -> None:
    try:
        draw()
    except OSError as error:
        raise Problem(f"--out: cannot write '{out}': {error.strerror or error}") from error
    say(f"Saved the picture as {out}.")
