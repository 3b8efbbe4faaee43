"""How fast projected federated averaging converges: theorem 3 as printed, and what can be shown.

Liu, Lou, Xiong, Liu, Meng 2022 (Projected Federated Averaging with Heterogeneous Differential Privacy),
theorem 3. Its assumptions and its proof are in an appendix that we do not have. Our reading: lam bounds
the diversity of gradients, C_1 a variance that grows with them, sigma bar the squared length of noise.

What is printed fails:
- Privacy noise is missing where the noise of batches is: L eta kappa^2 / (K B) should count it too, so
  at small steps the bound is below what noise does.
- The loss weighs silos by size, the merge by epsilon. Where silos differ, training ends elsewhere.

What can be shown. x - eta u is the next model, u = w_pub (g_pub + noise) + w_pri P (g_pri + noise), weights
those of the merge, P the projection on a basis that holds the mean public update, as algorithm 3 prints
it. So u = P (gradient + n), L being the loss with the merge's weights. n has at most E |P n|^2 = V =

    sum over public silos w^2 (kappa^2 / B + d s^2) + sum over private silos w^2 (kappa^2 / B + k s^2),

since private noise is independent of the basis: of its d coordinates only k stay.

- Silos alike (one gradient g), one local step: E <g, u> = E |P g|^2 + w_pub E |(I - P) g|^2 and E |u|^2 <=
  E |P g|^2 + 2 w_pub E |(I - P) g|^2 + V. With eta L <= 1 the second terms cancel. The loss, and what is
  left of the gradient, decay as in `convergence.Decay` with slope eta/2 and added L eta^2 V / 2.
- Silos that differ, H local steps, theta = H eta <= 1 / L: noise in public updates turns the basis, so n is
  not 0 on average. Slope theta/2 and added theta/2 |n|^2: a floor that no step size lowers. n is noise,
  V / H, plus drift of the local steps; C bounds their gradients.
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
    """What theorem 3 names: L, eta, K `silos`, tau, kappa^2 / B (`sampling`), sigma bar (`noise`), lam, C_1.

    `noise` is taken for the mean over silos of the expected squared length of the noise.
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
    """Give the left side of (7); theorem 3 is said of steps at which it is not above 0."""
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
    """Give theorem 3, (6), after `steps` = T local steps; it may fail under noise, and where silos differ.

    It bounds the mean over steps of E |P gradient|^2; `gap` is the loss less its least at the start.

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
    """Silos of a round: merge `weights` that add up to 1, who is `public`, `noise` s^2 in each coordinate.

    `dimension` is d, `basis` k, `sampling` kappa^2 / B, the expected squared error of a batch's gradient.
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
            raise Problem("weights, public and noise must be lists, one entry for each silo")
        if not ((weights >= 0).all() and math.isclose(weights.sum(), 1)):
            raise Problem("weights must be >= 0 and add up to 1")
        if not ((noise >= 0) & np.isfinite(noise)).all():
            raise Problem("the noise of every silo must be a finite number >= 0")
        if not public.any():
            raise Problem("without a public silo there is no basis")
        check_count("basis", self.basis)
        check_count("dimension", self.dimension)
        check_not_negative("sampling", self.sampling)

    @property
    def arrays(self) -> tuple[Array, NDArray[np.bool_], Array]:
        """Give weights, public and noise as arrays."""
        weights, noise = (np.asarray(value, dtype=np.float64) for value in (self.weights, self.noise))
        return weights, np.asarray(self.public, dtype=bool), noise

    @property
    def blur(self) -> float:
        """Give V, the expected squared length of what noise remains in a merge."""
        weights, public, noise = self.arrays
        kept = np.where(public, self.dimension, self.basis) * noise
        return float((weights**2 * (self.sampling + kept)).sum())


def decay_alike(merge: ProjectedMerge, smoothness: float, step: float) -> Decay:
    """Give what a round is worth if all silos have one loss, L-smooth, and take one local step.

    The gradient in `convergence.gradient_bound` is then the projected one. `convergence.gap_bound` does
    not apply: a small projected gradient does not say that the loss is small.

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
    """Give what a round is worth if silos differ, or take H > 1 local steps.

    The loss is that with the weights of the merge, not of sizes. `step` is eta, with H eta <= 1 / L;
    `gradient` is C, needed for H > 1.
    """
    check_count("local_steps", local_steps)
    long = step * local_steps
    check_step(smoothness, long)
    away = math.sqrt(merge.blur / local_steps)
    if local_steps > 1:
        if gradient is None:
            raise Problem("with more than one local step a bound on the gradients is needed")
        weights, _, noise = merge.arrays
        far = [drift_sum(local_steps, gradient, merge.sampling + merge.dimension * s) for s in noise]
        away += smoothness * step * float(weights @ np.asarray(far))
    return Decay(long / 2, long / 2 * away**2)


def check_step(smoothness: float, step: float) -> None:
    """Refuse a step above 1 / L."""
    check_positive("smoothness", smoothness)
    if not 0 < step <= (1 + 1e-12) / smoothness:
        raise Problem(f"the steps of a round must add up to at most {1 / smoothness:g}, got {step:g}")
