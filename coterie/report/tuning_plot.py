"""The picture of what tuning brings and costs, in the model of mean estimation.

After figure 7 of Liu, Hu, Wu, Smith 2022 (On Privacy and Personalization in Cross-Silo Federated
Learning), with the noise of certified bounds instead of Renyi ones.
"""

from __future__ import annotations

from pathlib import Path

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

COLOURS = ("#2a6f97", "#5a9367", "#c08a2b", "#6d597a", "#b56576")


def trial_kinds(mean: float) -> dict[str, Trials]:
    """List the ways to draw the number of trials that are compared."""
    return {
        "shape -0.5": Trials("negative-binomial", mean, -0.5),
        "logarithmic": Trials("negative-binomial", mean, 0.0),
        "geometric": Trials("geometric", mean),
        "poisson": Trials("poisson", mean),
    }


def certified_noise(epsilon: float, how: Trials | None) -> float:
    """Find the noise of one mean, alone or as one of some trials."""
    if how is None:
        return noise_for(Target(epsilon, FIGURE_DELTA, 1.0, 1)).noise
    return noise_for_tuning(epsilon, FIGURE_DELTA, 1.0, 1, how).noise


def tuning_figures(epsilon: float = FIGURE_EPSILON, mean: float = FIGURE_TRIALS) -> dict[str, TuningFigure]:
    """Give the three panels: silos that differ little, some and much."""
    kinds = trial_kinds(mean)
    noise: dict[Trials | None, float] = {
        how: certified_noise(epsilon, how) for how in (None, *kinds.values())
    }
    return {
        name: tuning_figure(model, epsilon, kinds, lambda _, how: noise[how])
        for name, model in FIGURE_MODELS.items()
    }


def draw_tuning(figures: dict[str, TuningFigure], epsilon: float, mean: float, path: Path) -> None:
    """Draw error over lam for each panel: what is gained if the best lam is known, and if it is paid for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(figures), 6.4), layout="constrained")
    for axes, (name, made) in zip(figure.subplots(1, len(figures)), figures.items(), strict=True):
        shown = made.private.lams > 0
        lams = made.private.lams[shown]
        axes.plot(lams, made.without_privacy.errors[shown], color="#999999", label="no privacy")
        axes.plot(lams, made.private.errors[shown], color="black", lw=2.2, label="private, lam known")
        for colour, curve in zip(COLOURS, made.tuned, strict=False):
            gain = made.gains[curve.label]
            says = "pays" if gain > 0 else "does not pay"
            axes.plot(lams, curve.errors[shown], color=colour, label=f"tuned, {curve.label}: {says}")
        end = min(local_error(made.private.model), fedavg_error(made.private.model))
        axes.axhline(end, color="#e07a5f", ls="--", label="better of Local and FedAvg")
        axes.set(xscale="log", yscale="log", xlabel="lam (small: Local, large: FedAvg)")
        axes.set_title(f"{name} heterogeneity (tau {made.private.model.silo_spread:g})", fontsize=10)
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylabel("mean squared error of a silo's mean")
    figure.suptitle(
        f"Choosing lam by trials costs noise: mean estimation, epsilon {epsilon:g}, {mean:g} trials on"
        " average.\n"
        "Tuning pays where the lowest point of a coloured curve is below the dashed line.",
        fontsize=10,
    )
    figure.savefig(path, dpi=130, format="png")
