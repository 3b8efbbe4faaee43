"""What was measured on problems with known constants, beside each bound.

`python -m tests.convergence_cases` prints the table of docs/convergence.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.theory.convergence import decay as decays
from coterie.theory.convergence import heads, pfa, pmtl
from tests.convergent import (
    Problem,
    Quadratic,
    best_heads,
    best_pulled,
    run_heads,
    run_projected,
    run_pull,
    separated_logistic,
    spread_quadratic,
)


@dataclass(frozen=True, eq=False)
class Case:
    """One measurement for each run, and the bound on their mean."""

    theorem: str
    problem: str
    sample: np.ndarray
    bound: float

    @property
    def measured(self) -> float:
        return float(self.sample.mean())

    @property
    def ratio(self) -> float:
        return self.measured / self.bound

    @property
    def slack(self) -> float:
        """Six standard errors of the mean."""
        return 6 * float(self.sample.std()) / np.sqrt(self.sample.size)


# --- heads: silos, size of heads, size of shared layers
SILOS, HEAD, SHARED = 5, 2, 3
DEVIATION = 0.3
NOISE = SHARED * DEVIATION**2


def equal_shared(curvature: float = 1.0) -> Quadratic:
    """Shared layers of one curvature, so that lam = 1 and zeta^2 is the spread of best shared layers."""
    made = spread_quadratic(SILOS, HEAD + SHARED, 0.2, 1.0, seed=1)
    matrix = np.zeros_like(made.curvature)
    matrix[:, :HEAD, :HEAD] = made.curvature[:, :HEAD, :HEAD]
    matrix[:, HEAD:, HEAD:] = curvature * np.eye(SHARED)
    return Quadratic(matrix, made.centre)


def agreeing() -> Quadratic:
    """Shared layers of different curvatures and one best point: zeta = 0, lam by the curvatures."""
    generator = np.random.default_rng(2)
    matrix = np.zeros((SILOS, HEAD + SHARED, HEAD + SHARED))
    diagonal = generator.uniform(0.3, 1.0, (SILOS, HEAD + SHARED))
    matrix[:, np.arange(HEAD + SHARED), np.arange(HEAD + SHARED)] = diagonal
    centre = generator.normal(size=(SILOS, HEAD + SHARED))
    centre[:, HEAD:] = centre[0, HEAD:]
    return Quadratic(matrix, centre)


def heads_constants(problem: Problem) -> heads.HeadsConstants:
    """L, lam and zeta^2 of the problems above; for logistic loss zeta^2 by the lengths of examples."""
    diversity, disagreement = 1.0, 0.0
    if isinstance(problem, Quadratic):
        shared = problem.curvature[:, HEAD:, HEAD:]
        if np.ptp(shared, axis=0).max() > 0:
            diagonal = np.diagonal(shared, axis1=1, axis2=2)
            diversity = float(((diagonal**2).mean(0) / diagonal.mean(0) ** 2).max())
        else:
            pulls = np.einsum("kij,kj->ki", shared, problem.centre[:, HEAD:])
            disagreement = float(((pulls - pulls.mean(0)) ** 2).sum(-1).mean())
    else:
        lengths = np.sqrt((problem.features[..., HEAD:] ** 2).sum(-1)).mean(-1)
        disagreement = float((lengths**2).mean())
    return heads.HeadsConstants(
        silos=SILOS,
        smoothness=problem.smoothness,
        diversity=diversity,
        disagreement=disagreement,
        noise=NOISE,
    )


def heads_convexity(problem: Problem) -> float:
    """The strong convexity of f: that of heads counts an M-th."""
    if isinstance(problem, Quadratic):
        own = np.linalg.eigvalsh(problem.curvature[:, :HEAD, :HEAD]).min() / SILOS
        return float(min(own, np.linalg.eigvalsh(problem.curvature[:, HEAD:, HEAD:].mean(0)).min()))
    return problem.ridge / SILOS


HEADS_PROBLEMS: dict[str, Callable[[], Problem]] = {
    "quadratic, silos differ": equal_shared,
    "quadratic, silos agree": agreeing,
    "logistic": lambda: separated_logistic(SILOS, HEAD + SHARED, 0.1, seed=3),
}


def heads_cases(name: str, rounds: int = 60) -> list[Case]:
    """Gradients, gap and mean gap of one problem, with one step a round and with four."""
    problem = HEADS_PROBLEMS[name]()
    constants, convexity = heads_constants(problem), heads_convexity(problem)
    best_own, best_shared, lowest = best_heads(problem, HEAD, SHARED)
    start = np.zeros((SILOS, HEAD)), np.full(SHARED, 2.0)
    gap = float(problem.losses(np.concatenate([start[0], np.tile(start[1], (SILOS, 1))], -1)).mean()) - lowest
    step = heads.heads_published_step(constants)
    decay = heads.heads_decay(constants)
    made = []
    for interval in (1, 4):
        run = run_heads(problem, *start, step=step, rounds=rounds, deviation=DEVIATION, interval=interval)
        squares, gaps = run.squares.mean(0), run.values[-1] - lowest
        if interval == 1:
            made += [
                Case("5.1 ours", name, squares, decays.gradient_bound(decay, gap, rounds)),
                Case("5.3 ours", name, gaps, decays.gap_bound(decay, gap, convexity, rounds)),
            ]
        if constants.disagreement == 0:
            printed = heads.heads_published_decay(constants, run.largest, interval)
            label = f"printed, H = {interval}"
            made += [
                Case(f"5.1 {label}", name, squares, decays.gradient_bound(printed, gap, rounds)),
                Case(f"5.3 {label}", name, gaps, decays.gap_bound(printed, gap, convexity, rounds)),
            ]
    step = 1 / (2 * constants.diversity * constants.smoothness)
    slow = run_heads(problem, *start, step=step, rounds=rounds, deviation=DEVIATION, seed=1)
    away = np.sqrt(((start[0] - best_own) ** 2).sum() + ((start[1] - best_shared) ** 2).sum())
    bound = heads.heads_convex_bound(constants, float(away), rounds)
    made.append(Case("5.2 ours", name, slow.values[:-1].mean(0) - lowest, bound))
    step = 1 / (16 * constants.diversity * constants.smoothness)
    many = run_heads(problem, *start, step=step, rounds=rounds, deviation=DEVIATION, interval=4, seed=2)
    decay = heads.heads_decay(constants, interval=4, gradient=many.largest)
    made += [
        Case("5.1 ours, H = 4", name, many.squares.mean(0), decays.gradient_bound(decay, gap, rounds)),
        Case(
            "5.3 ours, H = 4", name, many.values[-1] - lowest, decays.gap_bound(decay, gap, convexity, rounds)
        ),
    ]
    return made


# --- mean-regularised learning
PULLED, SIZE, LAM = 8, 4, 0.5
PULL_PROBLEMS: dict[str, Callable[[], tuple[Problem, float]]] = {
    "quadratic": lambda: (spread_quadratic(PULLED, SIZE, 0.5, 2.0, seed=4), 0.5),
    "logistic": lambda: (separated_logistic(PULLED, SIZE, 0.2, seed=5), 0.2),
}


def pull_cases(name: str, share: float, local_steps: int, rounds: int = 40) -> list[Case]:
    """Gradients and gap of one problem, with noise; shares below 1 divide by all silos."""
    problem, convexity = PULL_PROBLEMS[name]()
    constants = pmtl.PullConstants(
        smoothness=problem.smoothness, lam=LAM, convexity=convexity, share=share, noise=SIZE * 0.1**2
    )
    start = np.full((PULLED, SIZE), 2.0)
    lowest = best_pulled(problem, LAM, start.shape)
    run = run_pull(
        problem,
        start,
        lam=LAM,
        step=pmtl.best_step(constants),
        rounds=rounds,
        cohort=round(share * PULLED),
        deviation=0.1,
        local_steps=local_steps,
        by_all=True,
    )
    gap = float(run.values[0, 0]) - lowest
    label = f"{name}, p = {share:g}, E = {local_steps}"
    made = [
        Case("6 ours", label, run.squares.mean(0), pmtl.gradient_bound(constants, gap, rounds)),
        Case(
            "7 ours",
            label,
            run.values[-1] - lowest,
            pmtl.gap_bound(constants, gap, rounds, local_steps=local_steps),
        ),
    ]
    if share == local_steps == 1:
        made.append(published_pull_case(problem, constants, label, rounds))
    return made


def published_pull_case(problem: Problem, constants: pmtl.PullConstants, label: str, rounds: int) -> Case:
    """Theorem 6 with its own step and the constants of its proof."""
    start = np.full((PULLED, SIZE), 2.0)
    run = run_pull(
        problem,
        start,
        lam=constants.lam,
        step=pmtl.published_nonconvex_step(constants),
        rounds=rounds,
        cohort=round(constants.share * len(start)),
        deviation=float(np.sqrt(constants.noise / SIZE)),
    )
    bound = pmtl.published_nonconvex_bound(constants, float(run.values[0, 0]), run.largest[1:].mean(1))
    return Case("6 printed", label, run.squares.mean(0), bound)


def flat_case(rounds: int = 50) -> Case:
    """No loss but the pull: what noise alone does, where our bound is tight."""
    nothing = Quadratic(np.zeros((3, SIZE, SIZE)), np.zeros((3, SIZE)))
    constants = pmtl.PullConstants(smoothness=0.0, lam=LAM, noise=SIZE * 0.1**2)
    run = run_pull(
        nothing, np.zeros((3, SIZE)), lam=LAM, step=1 / LAM, rounds=rounds, deviation=0.1, runs=2000
    )
    return Case(
        "6 ours", "flat, p = 1, E = 1", run.squares.mean(0), pmtl.gradient_bound(constants, 0.0, rounds)
    )


# --- projected averaging
EPSILON = np.array([8.0, 6.0, 1.0, 1.0, 1.0, 1.0])
PUBLIC = EPSILON > 5
DEVIATIONS = 1.2 / EPSILON
WIDTH = 8


def merge() -> pfa.ProjectedMerge:
    return pfa.ProjectedMerge(
        weights=EPSILON / EPSILON.sum(), public=PUBLIC, noise=DEVIATIONS**2, dimension=WIDTH
    )


def projected_case(alike: bool, step: float, local_steps: int = 1, rounds: int = 100) -> Case:
    """PFA with two public silos of six; the loss is that with the weights of the merge."""
    problem = spread_quadratic(len(EPSILON), WIDTH, 0.2, 1.0, seed=6, alike=alike)
    weights = EPSILON / EPSILON.sum()
    start = np.full(WIDTH, 3.0)
    run = run_projected(
        problem,
        start,
        weights=weights,
        public=PUBLIC,
        step=step,
        rounds=rounds,
        deviations=DEVIATIONS,
        local_steps=local_steps,
    )
    best = np.linalg.solve(
        np.einsum("k,kij->ij", weights, problem.curvature),
        np.einsum("k,kij,kj->i", weights, problem.curvature, problem.centre),
    )
    values = [float(problem.losses(np.tile(x, (len(weights), 1))) @ weights) for x in (start, best)]
    if alike and local_steps == 1:
        decay = pfa.decay_alike(merge(), problem.smoothness, step)
    else:
        decay = pfa.decay_differing(
            merge(), problem.smoothness, step, local_steps=local_steps, gradient=run.largest
        )
    label = f"quadratic, silos {'alike' if alike else 'differ'}, eta = {step:g}, tau = {local_steps}"
    bound = decays.gradient_bound(decay, values[0] - values[1], rounds)
    return Case("3 ours", label, run.projected.mean(0), bound)


def all_cases() -> list[Case]:
    made = [case for name in HEADS_PROBLEMS for case in heads_cases(name)]
    for name in PULL_PROBLEMS:
        for share, local_steps in ((1.0, 1), (1.0, 5), (0.5, 1)):
            made += pull_cases(name, share, local_steps)
    made.append(flat_case())
    made += [projected_case(True, 0.5), projected_case(True, 0.05), projected_case(False, 0.5)]
    made += [projected_case(False, 0.05), projected_case(False, 0.05, local_steps=5)]
    return made


if __name__ == "__main__":
    print("| theorem | problem | measured | bound | ratio |\n| --- | --- | --- | --- | --- |")
    for case in all_cases():
        numbers = f"{case.measured:.3g} | {case.bound:.3g} | {case.ratio:.2g}"
        print(f"| {case.theorem} | {case.problem} | {numbers} |")
