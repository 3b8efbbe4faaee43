"""Problems whose constants are known, trained as the papers' algorithms say, many runs at once.

`python -m tests.convergence_cases` prints the table of docs/convergence.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize


@dataclass(frozen=True, eq=False)
class Quadratic:
    """1/2 (x - c)' A (x - c): `curvature` [silos, d, d] and `centre` [silos, d]."""

    curvature: np.ndarray
    centre: np.ndarray

    def losses(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.centre) * self.gradients(x)).sum(-1) / 2

    def gradients(self, x: np.ndarray) -> np.ndarray:
        return np.einsum("kij,...kj->...ki", self.curvature, x - self.centre)

    @property
    def eigenvalues(self) -> np.ndarray:
        return np.linalg.eigvalsh(self.curvature)

    @property
    def smoothness(self) -> float:
        return float(self.eigenvalues.max())


@dataclass(frozen=True, eq=False)
class Logistic:
    """Logistic loss with a ridge: `features` [silos, examples, d], `labels` -1 or 1 [silos, examples]."""

    features: np.ndarray
    labels: np.ndarray
    ridge: float

    def losses(self, x: np.ndarray) -> np.ndarray:
        margins = self.labels * np.einsum("kni,...ki->...kn", self.features, x)
        return np.logaddexp(0, -margins).mean(-1) + self.ridge / 2 * (x**2).sum(-1)

    def gradients(self, x: np.ndarray) -> np.ndarray:
        margins = self.labels * np.einsum("kni,...ki->...kn", self.features, x)
        pulls = -self.labels / (1 + np.exp(margins))
        return np.einsum("...kn,kni->...ki", pulls, self.features) / pulls.shape[-1] + self.ridge * x

    @property
    def smoothness(self) -> float:
        moments = np.einsum("kni,knj->kij", self.features, self.features) / self.labels.shape[1]
        return float(np.linalg.eigvalsh(moments).max() / 4 + self.ridge)


Problem = Quadratic | Logistic


def spread_quadratic(silos: int, size: int, low: float, high: float, seed: int, alike=False) -> Quadratic:
    """Curvatures from `low` to `high` in random directions, centres from a normal distribution."""
    generator = np.random.default_rng(seed)
    turns = np.linalg.qr(generator.normal(size=(silos, size, size)))[0]
    curvature = np.einsum("kij,j,klj->kil", turns, np.linspace(low, high, size), turns)
    centre = generator.normal(size=(silos, size))
    if alike:
        curvature, centre = np.repeat(curvature[:1], silos, 0), np.repeat(centre[:1], silos, 0)
    return Quadratic(curvature, centre)


def separated_logistic(silos: int, size: int, ridge: float, seed: int) -> Logistic:
    """Silos with directions of their own; 30 examples each, lengths at most 1, the first feature constant."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(silos, 30, size))
    features[..., 0] = 1
    features /= np.sqrt((features**2).sum(-1, keepdims=True))
    truth = generator.normal(size=size) + 0.7 * generator.normal(size=(silos, 1, size))
    labels = np.where((features * truth).sum(-1) + 0.2 * generator.normal(size=(silos, 30)) > 0, 1.0, -1.0)
    return Logistic(features, labels, ridge)


def least(value, shape: tuple[int, ...]) -> tuple[np.ndarray, float]:
    """Minimise `value`, a function that gives a number and its gradient."""

    def flat(x):
        number, slope = value(x.reshape(shape))
        return number, slope.ravel()

    options = {"maxiter": 10_000, "ftol": 1e-16, "gtol": 1e-11}
    found = minimize(flat, np.zeros(int(np.prod(shape))), jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(shape), float(found.fun)


# --- shared layers and heads


def join(heads: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Whole models [..., silos, d] of heads [..., silos, h] and shared layers [..., s]."""
    whole = np.broadcast_to(shared[..., None, :], (*heads.shape[:-1], shared.shape[-1]))
    return np.concatenate([heads, whole], -1)


@dataclass(frozen=True, eq=False)
class HeadsRun:
    """f before each round and after the last, |gradient f|^2 before each round, the largest |gradient f_i|."""

    values: np.ndarray
    squares: np.ndarray
    largest: float


def best_heads(problem: Problem, head: int, shared: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The best heads and shared layers, and f there."""
    silos = len(problem.centre if isinstance(problem, Quadratic) else problem.features)

    def value(x):
        heads, common = x[: silos * head].reshape(silos, head), x[silos * head :]
        whole = join(heads, common)
        slope = problem.gradients(whole) / silos
        return problem.losses(whole).mean(), np.concatenate([slope[:, :head].ravel(), slope[:, head:].sum(0)])

    found, lowest = least(value, (silos * head + shared,))
    return found[: silos * head].reshape(silos, head), found[silos * head :], lowest


def run_heads(
    problem: Problem,
    heads: np.ndarray,
    shared: np.ndarray,
    *,
    step: float,
    rounds: int,
    deviation: float = 0.0,
    interval: int = 1,
    runs: int = 400,
    seed: int = 0,
) -> HeadsRun:
    """One silo a round takes `interval` steps, with noise on the shared layers; the server takes these over."""
    generator = np.random.default_rng(seed)
    silos, size = heads.shape
    heads, shared = np.repeat(heads[None], runs, 0), np.repeat(shared[None], runs, 0)
    everyone = np.arange(runs)
    values, squares, largest = [], [], 0.0
    for _ in range(rounds):
        whole = join(heads, shared)
        values.append(problem.losses(whole).mean(-1))
        slopes = problem.gradients(whole)
        squares.append(
            (slopes[..., :size] ** 2).sum((-1, -2)) / silos**2 + (slopes[..., size:].mean(1) ** 2).sum(-1)
        )
        drawn = generator.integers(0, silos, runs)
        for _ in range(interval):
            slope = problem.gradients(join(heads, shared))[everyone, drawn]
            largest = max(largest, float(np.sqrt((slope**2).sum(-1).max())))
            noise = deviation * generator.normal(size=shared.shape)
            heads[everyone, drawn] -= step * slope[:, :size]
            shared = shared - step * (slope[:, size:] + noise)
    values.append(problem.losses(join(heads, shared)).mean(-1))
    return HeadsRun(np.array(values), np.array(squares), largest)


# --- mean-regularised learning


@dataclass(frozen=True, eq=False)
class PullRun:
    """Before each round: mean |gradient f_k|^2; before each and after the last: mean and largest f_k, models."""

    squares: np.ndarray
    values: np.ndarray
    largest: np.ndarray
    models: np.ndarray


def best_pulled(problem: Problem, lam: float, shape: tuple[int, int]) -> float:
    """The least mean of f_k(w_k; mean of all)."""

    def value(x):
        apart = x - x.mean(0)
        return (
            (problem.losses(x) + lam / 2 * (apart**2).sum(-1)).mean(),
            (problem.gradients(x) + lam * apart) / len(x),
        )

    return least(value, shape)[1]


def run_pull(
    problem: Problem,
    start: np.ndarray,
    *,
    lam: float,
    step: float,
    rounds: int,
    cohort: int | None = None,
    deviation: float = 0.0,
    local_steps: int = 1,
    by_all: bool = False,
    runs: int = 200,
    seed: int = 0,
) -> PullRun:
    """Algorithm 1 of the PMTL paper; `by_all` divides the sum of moves by all silos, not by the cohort."""
    generator = np.random.default_rng(seed)
    silos = len(start)
    cohort = silos if cohort is None else cohort
    models = np.repeat(start[None], runs, 0)
    centre = models.mean(1)
    squares, values, largest = [], [], []
    for number in range(rounds + 1):
        apart = models - centre[:, None]
        losses = problem.losses(models) + lam / 2 * (apart**2).sum(-1)
        values.append(losses.mean(1))
        largest.append(losses.max(1))
        if number == rounds:
            break
        squares.append(((problem.gradients(models) + lam * apart) ** 2).sum(-1).mean(1))
        present = generator.random((runs, silos)).argsort(1) < cohort
        old = models
        for _ in range(local_steps):
            slopes = problem.gradients(models) + lam * (models - centre[:, None])
            models = models - step * slopes * present[..., None]
        moved = (models - old).sum(1) / (silos if by_all else cohort)
        centre = centre + moved + deviation * generator.normal(size=centre.shape)
    return PullRun(np.array(squares), np.array(values), np.array(largest), models)


# --- projected averaging


@dataclass(frozen=True, eq=False)
class ProjectedRun:
    """Before each round: |P gradient|^2 and |gradient|^2 of the weighted loss; the largest local gradient."""

    projected: np.ndarray
    squares: np.ndarray
    largest: float


def run_projected(
    problem: Problem,
    start: np.ndarray,
    *,
    weights: np.ndarray,
    public: np.ndarray,
    step: float,
    rounds: int,
    deviations: np.ndarray,
    target: np.ndarray | None = None,
    local_steps: int = 1,
    runs: int = 300,
    seed: int = 0,
) -> ProjectedRun:
    """Algorithms 2 and 3 of the PFA paper with k = 1, all silos in each round; `target` weighs the loss."""
    generator = np.random.default_rng(seed)
    target = weights if target is None else target
    x = np.repeat(start[None], runs, 0)
    projected, squares, largest = [], [], 0.0
    shape = (runs, len(weights), start.size)
    for _ in range(rounds):
        local = np.repeat(x[:, None], len(weights), 1)
        gradient = (problem.gradients(local) * target[:, None]).sum(1)
        for _ in range(local_steps):
            slopes = problem.gradients(local)
            largest = max(largest, float(np.sqrt((slopes**2).sum(-1).max())))
            local = local - step * (slopes + deviations[:, None] * generator.normal(size=shape))
        updates = (x[:, None] - local) * weights[:, None]
        seen, hidden = updates[:, public].sum(1), updates[:, ~public].sum(1)
        basis = seen / np.maximum(np.sqrt((seen**2).sum(-1, keepdims=True)), 1e-300)
        x = x - seen - basis * (basis * hidden).sum(-1, keepdims=True)
        projected.append((basis * gradient).sum(-1) ** 2)
        squares.append((gradient**2).sum(-1))
    return ProjectedRun(np.array(projected), np.array(squares), largest)
