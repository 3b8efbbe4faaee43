"""The duality gap of a cohort's duals: how far they are from the optimum, computed from all examples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...errors import Refused
from ..dp_sgd import Cohort
from .linear import points_of


def conjugate(loss: str, dual: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return l*(-a) of duals in the region where it is finite."""
    bends = loss in ("squared", "squared-hinge")
    value: np.ndarray = (dual**2 / 4 if bends else 0) - dual * target
    return value


def losses(loss: str, score: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the loss of each score."""
    below = target - score if loss == "squared" else np.maximum(1 - target * score, 0)
    value: np.ndarray = below**2 if loss in ("squared", "squared-hinge") else below
    return value


def duality_gap(cohort: Cohort, duals: Tensor, omega: Tensor, lam: Tensor) -> Tensor:
    """Return (primal + dual objective) / number of examples of each run, with W = Omega X a / (2 lam).

    The gap is never below 0, and it is 0 at the optimum for this Omega. Computing it reads all examples
    without noise, so `Refused` is raised if any silo has a budget.
    """
    if not bool(torch.isinf(cohort.settings.clip).all()):
        raise Refused("the duality gap reads all examples without noise, so it needs a run without privacy")
    points, silos = points_of(cohort.examples, cohort.task), len(cohort.work)
    x = points.x.reshape(silos, points.longest, -1).astype(np.float64)
    y = points.y.reshape(silos, points.longest, -1).astype(np.float64)
    real = points.real.reshape(silos, points.longest, 1)
    loss, gaps = cohort.task.loss, []
    strengths = np.broadcast_to(lam.flatten().double().numpy(), cohort.runs)
    each_run = zip(duals.cpu().double().numpy(), omega.cpu().double().numpy(), strengths, strict=True)
    for a, relations, strength in each_run:
        sums = np.matmul((a * real).transpose(0, 2, 1), x)
        models = np.tensordot(relations, sums, 1) / (2 * strength)
        score = np.matmul(x, models.transpose(0, 2, 1))
        each = losses(loss, score, y) + conjugate(loss, a, y)
        gaps.append(float((each * real).sum() + (models * sums).sum()) / int(points.real.sum()))
    return torch.tensor(gaps, dtype=torch.float64)
