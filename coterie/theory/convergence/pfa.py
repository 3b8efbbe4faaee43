"""How fast projected federated averaging converges: theorem 3 as printed, and what can be shown.

This is theorem 3 of Liu, Lou, Xiong, Liu, Meng 2022 (Projected Federated Averaging with Heterogeneous
Differential Privacy). Its assumptions and its proof are in an appendix that we do not have. Our reading: lam
bounds the diversity of gradients, C_1 a variance that grows with them, and sigma bar the squared length of
the noise.

What is printed fails:
- Privacy noise is missing from the term with the noise of batches: L eta kappa^2 / (K B) should count it too.
  So at small steps the bound is below the effect of noise.
- The loss weighs silos by size, the merge by epsilon. If silos differ, training ends elsewhere.

What can be shown: the next model is x - eta u with u = w_pub (g_pub + noise) + w_pri P (g_pri + noise). The
weights are those of the merge, and P projects on a basis that contains the mean public update, as algorithm 3
prints it. So u = P (gradient + n), where the gradient is that of the loss with the merge's weights, and
E |P n|^2 is at most V =

    sum over public silos w^2 (kappa^2 / B + d s^2) + sum over private silos w^2 (kappa^2 / B + k s^2),

since private noise is independent of the basis: only k of its d coordinates remain.

- Silos alike (one gradient g), one local step: E <g, u> = E |P g|^2 + w_pub E |(I - P) g|^2 and E |u|^2 <=
  E |P g|^2 + 2 w_pub E |(I - P) g|^2 + V. With eta L <= 1 the second terms cancel. So the loss falls as a
  `Decay` says, for the projected gradient, with slope eta/2 and L eta^2 V / 2 added.
- Silos that differ, H local steps, theta = H eta <= 1 / L: noise in public updates turns the basis, so n is
  not 0 on average. The slope is theta/2 and theta/2 |n|^2 is added: a floor that no step size lowers. n is
  noise, V / H, plus the drift of the local steps, whose gradients C bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import Problem
from .decay import Decay, check_count, check_not_negative, check_positive, drift_sum

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PublishedConstants:
    """The constants of theorem 3.

    L is `smoothness`, eta `step`, K `silos`, tau `local_steps`, kappa^2 / B `sampling`, sigma bar `noise`,
    lam `diversity` and C_1 `growth`. We take `noise` to be the mean over silos of the expected squared length
    of the noise.
    """

    smoothness: float
    step: float
    silos: int
    local_steps: int = 1
    sampling: float = 0.0
    noise: float = 0.0
    diversity: float = 1.0
    growth: float = 0.0

    def __post_init__(self) -> None:
        for name in ("silos", "local_steps"):
            check_count(name, getattr(self, name))
        for name in ("smoothness", "step", "diversity"):
            check_positive(name, getattr(self, name))
        for name in ("sampling", "noise", "growth"):
            check_not_negative(name, getattr(self, name))


def published_condition(constants: PublishedConstants) -> float:
    """Return the left side of (7); theorem 3 is stated for steps at which it is at most 0."""
    step, smoothness, silos, steps = (
        constants.step,
        constants.smoothness,
        constants.silos,
        constants.local_steps,
    )
    local = (2 * constants.growth + steps * (steps + 1)) * (silos + 2) / (2 * silos)
    drawn = (constants.growth + silos) / silos**2
    lam = constants.diversity
    return -step / 2 + lam * step**3 * smoothness**2 * local + lam * step**2 * smoothness * drawn


def published_bound(constants: PublishedConstants, gap: float, steps: int) -> float:
    """Return theorem 3, (6), after `steps` = T local steps; it may fail with noise, and if silos differ.

    It bounds the mean over steps of E |P gradient|^2. `gap` is the loss at the start minus its minimum.

    >>> published_bound(PublishedConstants(smoothness=1.0, step=0.25, silos=1), gap=5.0, steps=40)
    0.5
    """
    check_count("steps", steps)
    excess = published_condition(constants)
    if excess > 0:
        raise Problem(f"theorem 3 needs a smaller step: the left side of (7) is {excess:g}, above 0")
    bent = constants.step * constants.smoothness
    local = bent**2 * (constants.local_steps + 1) * (constants.silos + 2) / constants.silos
    drawn = bent * constants.sampling / constants.silos
    return gap / (constants.step * steps) + local * (constants.sampling + constants.noise) + drawn


@dataclass(frozen=True, eq=False, kw_only=True)
class ProjectedMerge:
    """A projected merge of all silos: `weights` that add up to 1, which silos are `public`, and their noise.

    `noise` is s^2, the variance in each coordinate, for each silo. `dimension` is d, `basis` is k, and
    `sampling` is kappa^2 / B, the expected squared error of a batch's gradient.
    """

    weights: ArrayLike
    public: ArrayLike
    noise: ArrayLike
    dimension: int
    basis: int = 1
    sampling: float = 0.0

    def __post_init__(self) -> None:
        weights, public, noise = self.arrays
        if not (weights.ndim == 1 and weights.shape == public.shape == noise.shape):
            raise Problem("weights, public and noise must be lists with one entry for each silo")
        if not ((weights >= 0).all() and math.isclose(weights.sum(), 1)):
            raise Problem("weights must be >= 0 and add up to 1")
        if not ((noise >= 0) & np.isfinite(noise)).all():
            raise Problem("the noise of every silo must be a finite number >= 0")
        if not public.any():
            raise Problem("public must include at least one silo: without one there is no basis")
        check_count("basis", self.basis)
        check_count("dimension", self.dimension)
        check_not_negative("sampling", self.sampling)

    @property
    def arrays(self) -> tuple[Array, NDArray[np.bool_], Array]:
        """Return weights, public and noise as arrays."""
        weights, noise = (np.asarray(value, dtype=np.float64) for value in (self.weights, self.noise))
        return weights, np.asarray(self.public, dtype=bool), noise

    @property
    def blur(self) -> float:
        """Return V, the expected squared length of the noise that remains in a merge."""
        weights, public, noise = self.arrays
        kept = np.where(public, self.dimension, self.basis) * noise
        return float((weights**2 * (self.sampling + kept)).sum())


def decay_alike(merge: ProjectedMerge, smoothness: float, step: float) -> Decay:
    """Return how much a round lowers the loss if all silos share one L-smooth loss and take one local step.

    The gradient in `decay.gradient_bound` is then the projected one. `decay.gap_bound` does not apply: a
    small projected gradient does not mean that the loss is small.

    >>> merge = ProjectedMerge(weights=[0.5, 0.5], public=[True, False], noise=[0.1, 0.4], dimension=4)
    >>> decay_alike(merge, smoothness=1.0, step=0.5)
    Decay(slope=0.25, added=0.025)
    """
    check_step(smoothness, step)
    return Decay(step / 2, smoothness * step**2 * merge.blur / 2)


def decay_differing(
    merge: ProjectedMerge,
    smoothness: float,
    step: float,
    *,
    local_steps: int = 1,
    gradient: float | None = None,
) -> Decay:
    """Return how much a round lowers the loss if silos differ, or take H > 1 local steps.

    The loss is weighted as the merge is, not by size. `step` is eta, with H eta <= 1 / L. `gradient` is C,
    which is needed for H > 1.
    """
    check_count("local_steps", local_steps)
    long = step * local_steps
    check_step(smoothness, long)
    away = math.sqrt(merge.blur / local_steps)
    if local_steps > 1:
        if gradient is None:
            raise Problem("more than one local step needs `gradient`, a bound on the gradients")
        weights, _, noise = merge.arrays
        far = [drift_sum(local_steps, gradient, merge.sampling + merge.dimension * s) for s in noise]
        away += smoothness * step * float(weights @ np.asarray(far))
    return Decay(long / 2, long / 2 * away**2)


def check_step(smoothness: float, step: float) -> None:
    """Raise Problem if a step is not positive or is above 1 / L."""
    check_positive("smoothness", smoothness)
    if not 0 < step <= (1 + 1e-12) / smoothness:
        raise Problem(f"the steps of a round must add up to at most {1 / smoothness:g}, got {step:g}")
