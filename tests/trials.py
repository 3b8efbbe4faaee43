"""Numbers of trials to test tuning with, and their chances derived anew."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from coterie.privacy.events import Event
from coterie.privacy.trials import Trials

SCHOOL = (Event("gaussian", 5.0, 0.3, 603),)
PLAIN = (Event("gaussian", 4.0),)
KINDS = [
    Trials("poisson", 4.0),
    Trials("geometric", 4.0),
    Trials("negative-binomial", 4.0, -0.7),
    Trials("negative-binomial", 4.0, -0.2),
    Trials("negative-binomial", 4.0, 0.0),
    Trials("negative-binomial", 4.0, 0.4),
    Trials("negative-binomial", 4.0, 6.0),
    Trials("negative-binomial", 1.2, 2.0),
]


def named(trials: Trials) -> str:
    return f"{trials.distribution} {trials.mean:g} {trials.shape}"


def chances(trials: Trials, most: int) -> np.ndarray:
    """Papernot and Steinke, definition 1, as products: chances of 0 to `most` trials, not yet normed."""
    if trials.distribution == "poisson":
        return stats.poisson.pmf(np.arange(most + 1), trials.mean)
    shape = 1.0 if trials.shape is None else trials.shape
    found, product = [0.0], 1.0
    for k in range(1, most + 1):
        product *= (1 - trials.gamma) * ((k - 1 + shape) if k > 1 else 1.0) / k
        found.append(product)
    return np.array(found)


def normed(trials: Trials, most: int = 20_000) -> np.ndarray:
    found = chances(trials, most)
    if trials.distribution == "poisson":
        return found
    shape, gamma = 1.0 if trials.shape is None else trials.shape, trials.gamma
    return found * (1 / math.log(1 / gamma) if shape == 0 else shape / (gamma**-shape - 1))
