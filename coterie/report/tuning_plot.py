"""Draw what tuning gains and costs, in the model of mean estimation.

The picture follows figure 7 of Liu, Hu, Wu, Smith 2022 (On Privacy and Personalization in Cross-Silo
Federated Learning), with noise from certified bounds instead of Renyi bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import plainly
from ..privacy.calibration import Target, noise_for
from ..privacy.trials import Trials
from ..privacy.tuning import noise_for_tuning
from ..theory.mean_estimation import (
    FIGURE_DELTA,
    FIGURE_EPSILON,
    FIGURE_MODELS,
    FIGURE_TRIALS,
    TuningFigure,
    fedavg_error,
    local_error,
    tuning_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#2a6f97", "#5a9367", "#c08a2b", "#6d597a", "#b56576")


def trial_kinds(mean: float) -> dict[str, Trials]:
    """Return the compared ways of drawing the number of trials."""
    return {
        "shape -0.5": Trials("negative-binomial", mean, -0.5),
        "logarithmic": Trials("negative-binomial", mean, 0.0),
        "geometric": Trials("geometric", mean),
        "poisson": Trials("poisson", mean),
    }


def certified_noise(epsilon: float, how: Trials | None) -> float:
    """Return the noise multiplier of one mean, alone or as one of several trials."""
    if how is None:
        return noise_for(Target(epsilon, FIGURE_DELTA, 1.0, 1)).noise
    return noise_for_tuning(epsilon, FIGURE_DELTA, 1.0, 1, how).noise


def tuning_figures(epsilon: float = FIGURE_EPSILON, mean: float = FIGURE_TRIALS) -> dict[str, TuningFigure]:
    """Return the three panels: silos that differ little, somewhat and a lot."""
    kinds = trial_kinds(mean)
    noise: dict[Trials | None, float] = {
        how: certified_noise(epsilon, how) for how in (None, *kinds.values())
    }
    return {
        name: tuning_figure(model, epsilon, kinds, lambda _, how: noise[how])
        for name, model in FIGURE_MODELS.items()
    }


@plainly
def draw_tuning(epsilon: float = FIGURE_EPSILON, mean: float = FIGURE_TRIALS) -> Figure:
    """Draw what choosing lam by `mean` trials gains and costs, in the model of mean estimation.

    Return a matplotlib figure; `epsilon` is the budget that the trials share.
    """
    return tuning_panels(tuning_figures(epsilon, mean), epsilon, mean)


def tuning_panels(figures: dict[str, TuningFigure], epsilon: float, mean: float) -> Figure:
    """Draw the error by lam for each panel: the gain if the best lam is known, and if it is paid for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(figures), 6.4), layout="constrained")
    for axes, (name, panel) in zip(figure.subplots(1, len(figures)), figures.items(), strict=True):
        shown = panel.private.lams > 0
        lams = panel.private.lams[shown]
        axes.plot(lams, panel.without_privacy.errors[shown], color="#999999", label="no privacy")
        axes.plot(lams, panel.private.errors[shown], color="black", lw=2.2, label="private, lam known")
        for colour, curve in zip(COLOURS, panel.tuned, strict=False):
            gain = panel.gains[curve.label]
            verdict = "pays off" if gain > 0 else "does not pay off"
            axes.plot(lams, curve.errors[shown], color=colour, label=f"tuned, {curve.label}: {verdict}")
        end = min(local_error(panel.private.model), fedavg_error(panel.private.model))
        axes.axhline(end, color="#e07a5f", ls="--", label="better of Local and FedAvg")
        axes.set(xscale="log", yscale="log", xlabel="lam (small: Local, large: FedAvg)")
        axes.set_title(f"{name} heterogeneity (tau {panel.private.model.silo_spread:g})", fontsize=10)
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylabel("mean squared error of a silo's mean")
    figure.suptitle(
        f"Choosing lam by trials requires more noise: mean estimation, epsilon {epsilon:g}, {mean:g} trials"
        " on average.\n"
        "Tuning pays off if the lowest point of a coloured curve is below the dashed line.",
        fontsize=10,
    )
    return figure
