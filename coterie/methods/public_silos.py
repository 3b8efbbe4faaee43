"""Divide silos by budget: those with large budgets are called public, the others private.

Budgets are public facts, so dividing by them costs no privacy.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from ..errors import Problem

WAYS = ("mixture", "kmeans", "top")


def public_silos(epsilon: Tensor, way: str, share: float) -> Tensor:
    """Return which silos are public, `[runs, silos]`, given budgets of the same shape."""
    rows = [_divide(tuple(row), way, share) for row in epsilon.tolist()]
    return torch.tensor(rows, dtype=torch.bool)


@functools.lru_cache(maxsize=1024)
def _divide(budgets: tuple[float, ...], way: str, share: float) -> tuple[bool, ...]:
    values = np.array(budgets)
    if not np.isfinite(values).all():
        raise Problem("privacy.epsilon: a method that weights silos by their budgets needs finite budgets")
    if len(set(budgets)) == 1 or way == "top":
        order = np.argsort(-values, kind="stable")
        count = len(values) if len(set(budgets)) == 1 else max(1, round(share * len(values)))
        return tuple(bool(flag) for flag in np.isin(np.arange(len(values)), order[:count]))
    column = values.reshape(-1, 1)
    if way == "kmeans":
        from sklearn.cluster import KMeans

        group_of = KMeans(2, n_init=10, random_state=0).fit_predict(column)
    else:
        from sklearn.mixture import GaussianMixture

        group_of = GaussianMixture(2, n_init=5, random_state=0).fit_predict(column)
    groups = sorted(set(group_of), key=lambda group: values[group_of == group].mean())
    return tuple(bool(flag) for flag in group_of == groups[-1])
