"""Bounds on convergence as printed: a counter-example where one fails; formulas, written out once more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import Problem
from coterie.theory.convergence import decay as decays
from coterie.theory.convergence import heads, pfa, pmtl
from tests.convergent import Quadratic, best_pulled, run_heads, run_projected, run_pull

positive = st.floats(0.01, 100)


def quadratic(curvatures: list[list[float]], centres: list[list[float]] | None = None) -> Quadratic:
    """Silos with these curvatures along the coordinates, best at 0 unless given."""
    diagonal = np.array(curvatures, dtype=float)
    matrix = np.zeros((*diagonal.shape, diagonal.shape[1]))
    matrix[:, np.arange(diagonal.shape[1]), np.arange(diagonal.shape[1])] = diagonal
    return Quadratic(matrix, np.zeros_like(diagonal) if centres is None else np.array(centres, dtype=float))


def exceeds(sample: np.ndarray, bound: float) -> bool:
    """Tell whether a mean is above a bound by six standard errors."""
    return bool(sample.mean() - 6 * sample.std() / math.sqrt(sample.size) > bound)


# --- heads (Wu, Chen, Wang 2020)


def test_lemma_5_2_and_theorem_5_3_fail_where_the_curvature_is_small():
    """Noise costs V / (2 lam^2 L) in a step; printed is a term without 1 / L, and one with 1 / (M L)."""
    curvature, silos = 0.001, 10
    problem, start = quadratic([[curvature]] * silos), (np.zeros((silos, 0)), np.zeros(1))
    constants = heads.HeadsConstants(silos=silos, smoothness=curvature, noise=1.0)
    step = heads.heads_published_step(constants)
    later = run_heads(problem, *start, step=step, rounds=20, deviation=1.0)
    one = run_heads(problem, *start, step=step, rounds=1, deviation=1.0, runs=5000)
    assert one.squares.max() == 0
    printed, ours = heads.heads_published_decay(constants, later.largest), heads.heads_decay(constants)
    assert exceeds(one.values[1], printed.added)
    assert not exceeds(one.values[1], ours.added)
    assert exceeds(later.values[2], decays.gap_bound(printed, 0.0, curvature, 2))
    assert not exceeds(later.values[2], decays.gap_bound(ours, 0.0, curvature, 2))


def test_theorem_5_2_fails_when_training_starts_at_the_best_point():
    problem = quadratic([[1.0, 1.0]] * 3)
    constants = heads.HeadsConstants(silos=3, smoothness=1.0, noise=0.5)
    run = run_heads(problem, np.zeros((3, 0)), np.zeros(2), step=1.0, rounds=10, deviation=0.5)
    assert heads.heads_published_convex_bound(constants, 0.0, 10, run.largest) == 0
    assert exceeds(run.values[-1], 0.15)
    slow = run_heads(problem, np.zeros((3, 0)), np.zeros(2), step=0.5, rounds=10, deviation=0.5)
    assert slow.values[:-1].mean() < heads.heads_convex_bound(constants, 0.0, 10)


def test_theorem_5_3_fails_if_the_smoothness_is_that_of_f():
    """A head counts an M-th in f, so 1 / L is M times the step that a silo's own loss stands."""
    silos = 8
    problem = quadratic([[1.0, 1 / silos]] * silos)
    constants = heads.HeadsConstants(silos=silos, smoothness=1 / silos)
    start = np.ones((silos, 1)), np.ones(1)
    run = run_heads(problem, *start, step=heads.heads_published_step(constants), rounds=60, runs=20)
    printed = heads.heads_published_decay(constants, shared_gradient=1 / silos)
    assert run.values[-1].min() > 100 * decays.gap_bound(printed, run.values[0, 0], 1 / silos, 60)
    right = heads.HeadsConstants(silos=silos, smoothness=1.0)
    run = run_heads(problem, *start, step=heads.heads_published_step(right), rounds=60, runs=20)
    assert run.values[-1].mean() < decays.gap_bound(heads.heads_decay(right), run.values[0, 0], 1 / silos, 60)


def test_theorem_5_1_fails_if_diversity_is_divided_as_printed():
    """|sum_i d f|^2 is M^2 |d f|^2; silos that are alike then have lam = 1 / M^2, and steps of M^2 / L."""
    problem = quadratic([[1.0]] * 3)
    constants = heads.HeadsConstants(silos=3, smoothness=1.0, diversity=1 / 9)
    step = heads.heads_published_step(constants)
    run = run_heads(problem, np.zeros((3, 0)), np.ones(1), step=step, rounds=8, runs=1)
    printed = heads.heads_published_decay(constants, shared_gradient=1.0)
    assert run.squares.mean() > 1000 * decays.gradient_bound(printed, 0.5, 8)


@given(
    silos=st.integers(1, 100),
    smoothness=st.floats(1e-3, 1e3),
    lam=st.floats(1, 100),
    noise=st.floats(0, 100),
    b=st.floats(0, 10),
    gap=st.floats(0, 100),
    share=st.floats(0.001, 1),
)
def test_theorem_5_1_holds_otherwise_and_5_3_where_the_curvature_is_not_small(
    silos, smoothness, lam, noise, b, gap, share
):
    """With one step a round, where silos agree: they are never below what follows from smoothness."""
    constants = heads.HeadsConstants(silos=silos, smoothness=smoothness, diversity=lam, noise=noise)
    printed, ours = heads.heads_published_decay(constants, b), heads.heads_decay(constants)
    slack = 1 + 1e-9
    assert decays.gradient_bound(ours, gap, 9) <= decays.gradient_bound(printed, gap, 9) * slack
    if 4 * smoothness >= 1 - 1 / silos:
        c = share * smoothness
        assert decays.gap_bound(ours, gap, c, 9) <= decays.gap_bound(printed, gap, c, 9) * slack


# --- mean-regularised learning (Hu, Wu, Smith 2023)


def test_theorem_6_has_a_step_that_diverges():
    """A quarter of the silos a round and little pull: its step is nearly 4 / L."""
    problem, start = quadratic([[1.0]] * 4), np.ones((4, 1))
    constants = pmtl.PullConstants(smoothness=1.0, lam=1e-4, share=0.25)
    step = pmtl.published_nonconvex_step(constants)
    assert step == pytest.approx(4, rel=0.02)
    run = run_pull(problem, start, lam=1e-4, step=step, rounds=40, cohort=1)
    bound = pmtl.published_nonconvex_bound(constants, 0.5, run.largest[1:].mean(1))
    assert run.squares.mean() > 10 * bound
    assert run.squares[-1].mean() > 1e3 * run.squares[0].mean()
    with pytest.raises(Problem, match=r"below 1\.9998"):
        pmtl.gradient_bound(constants, 0.5, 40, step=step)


def test_theorem_6_is_beyond_what_smoothness_says_alone():
    """|gradient f_k|^2 <= 2 (L + lam) f_k for any model: with E = 1 the term in B is above that, p = 1, lam = L."""
    constants = pmtl.PullConstants(smoothness=1.0, lam=1.0)
    assert pmtl.published_nonconvex_bound(constants, 0.0, [5.0] * 10) >= 2 * constants.total * 5.0


@given(smoothness=positive, ratio=st.floats(0, 1), lam=positive, share=st.floats(0.05, 1))
def test_theorem_7_admits_only_steps_that_diverge(smoothness, ratio, lam, share):
    constants = pmtl.PullConstants(smoothness=smoothness, lam=lam, convexity=ratio * smoothness, share=share)
    if (smoothness + lam) * share**2 <= 2 * lam:
        with pytest.raises(Problem, match="admits no positive step"):
            pmtl.published_convex_steps(constants)
        return
    for step, least in zip(pmtl.published_convex_steps(constants), (0.5, 1.0), strict=True):
        assert step > 2 / (share * constants.total)
        room = constants.total * share**2 - 2 * lam
        c = step * room / share
        condition = step * share * (c - 2) * (constants.convexity + lam)
        assert condition == pytest.approx(least)


def test_steps_of_theorem_7_diverge_on_quadratics():
    problem = quadratic([[10.0, 1.0]] * 4, [[k, -k] for k in range(4)])
    constants = pmtl.PullConstants(smoothness=10.0, lam=0.5, convexity=1.0)
    step = pmtl.published_convex_steps(constants)[0]
    run = run_pull(problem, np.ones((4, 2)), lam=0.5, step=step, rounds=30, runs=1)
    assert run.values[-1] > 1e3 * run.values[0]
    gap, lowest = run.values[0, 0], best_pulled(problem, 0.5, (4, 2))
    assert run.values[-1] - lowest < pmtl.published_convex_bound(constants, gap, 30, run.largest.max())
    with pytest.raises(Problem, match=r"at most 0\.095"):
        pmtl.gap_bound(constants, gap, 30, step=step)


@given(
    lam=positive,
    noise=st.floats(0, 10),
    largest=positive,
    share=st.floats(0, 1),
    local=st.integers(1, 9),
    rounds=st.integers(1, 9),
)
def test_theorem_7_is_never_below_the_largest_loss(lam, noise, largest, share, local, rounds):
    """So it holds whatever is trained, if losses are not negative: f_k - f_k* <= f_k <= B."""
    constants = pmtl.PullConstants(smoothness=1.0, lam=lam, noise=noise)
    bound = pmtl.published_convex_bound(constants, share * largest, local * rounds, largest, local)
    assert bound >= largest * (1 - 1e-12)


@pytest.mark.parametrize(("cohort", "away"), [(1, True), (2, True), (3, False), (4, False)])
def test_the_algorithm_runs_away_if_few_silos_take_part(cohort, away):
    """Eight silos, lam = curvature / 2.5: at least 2/7 of them must take part, however small the step."""
    lam, step, rounds = 0.4, 0.05, 2400
    problem = quadratic([[1.0]] * 8, [[5.0 + k / 10] for k in range(8)])
    run = run_pull(problem, np.zeros((8, 1)), lam=lam, step=step, rounds=rounds, cohort=cohort, runs=20)
    share = cohort / 8
    assert (share < pmtl.least_share(1.0, lam)) == away
    mean = run.models.mean((0, 1))[0]
    if away:
        assert mean > 1e2
        return
    limit = problem.centre.mean() / (1 - lam * (1 / share - 1))
    assert mean == pytest.approx(limit, rel=0.02)
    whole = run_pull(
        problem, np.zeros((8, 1)), lam=lam, step=step, rounds=rounds, cohort=cohort, by_all=True, runs=20
    )
    assert whole.models.mean() == pytest.approx(problem.centre.mean(), rel=0.02)


def test_the_cost_of_noise_grows_with_the_rounds():
    """Theorem 5 prints O(d lam sigma^2), however long; noise in the broadcast is a random walk."""
    problem = quadratic([[1.0, 1.0]] * 3)
    constants = pmtl.PullConstants(smoothness=1.0, lam=1.0, convexity=1.0, noise=0.02)
    run = run_pull(problem, np.zeros((3, 2)), lam=1.0, step=0.5, rounds=400, deviation=0.1, runs=2000)
    gaps = run.values.mean(1)
    assert gaps[400] / gaps[100] == pytest.approx(4, rel=0.15)
    for rounds in (100, 400):
        assert 0.9 < gaps[rounds] / pmtl.gap_bound(constants, 0.0, rounds) < 1.1


# --- projected averaging (Liu and others 2022)


def test_theorem_3_fails_under_noise_at_small_steps():
    """Four silos alike: noise leaves eta L s^2 / (2 K), the printed bound has eta^2 only."""
    silos, step, rounds = 4, 0.01, 3000
    constants = pfa.PublishedConstants(smoothness=1.0, step=step, silos=silos, noise=1.0)
    public, weights = np.array([True, True, True, False]), np.full(4, 0.25)
    run = run_projected(
        quadratic([[1.0]] * silos),
        np.zeros(1),
        weights=weights,
        public=public,
        step=step,
        rounds=rounds,
        deviations=np.ones(silos),
        runs=100,
    )
    sample = run.projected.mean(0)
    assert exceeds(sample, 3 * pfa.published_bound(constants, 0.0, rounds))
    made = pfa.ProjectedMerge(weights=weights, public=public, noise=np.ones(4), dimension=1)
    ours = decays.gradient_bound(pfa.decay_alike(made, 1.0, step), 0.0, rounds)
    assert 0.4 < sample.mean() / ours < 0.6


def test_theorem_3_fails_where_silos_differ_and_budgets_do():
    """Two silos of one size, best at 1 and -1; budgets of 9 and 1 lead to .8, where the gradient is .8."""
    start, step, rounds = np.array([5.0, 0.0]), 0.05, 4000
    problem = quadratic([[1.0, 0.0]] * 2, [[1.0, 0.0], [-1.0, 0.0]])
    run = run_projected(
        problem,
        start,
        weights=np.array([0.9, 0.1]),
        target=np.array([0.5, 0.5]),
        public=np.array([True, False]),
        step=step,
        rounds=rounds,
        deviations=np.zeros(2),
        runs=1,
    )
    diversity = (run.squares.min() + 1) / run.squares.min()  # on the way: it grows toward 0
    constants = pfa.PublishedConstants(smoothness=1.0, step=step, silos=2, diversity=float(diversity))
    assert run.projected[-1, 0] == pytest.approx(0.64)
    assert run.projected.mean() > 5 * pfa.published_bound(constants, 12.5, rounds)


def test_a_small_projected_gradient_is_not_a_small_gradient():
    """What public silos do not learn is never learnt: their updates do not span it."""
    problem = quadratic([[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 4.0]])
    run = run_projected(
        problem,
        np.array([3.0, 0.0]),
        weights=np.array([0.5, 0.5]),
        public=np.array([True, False]),
        step=0.5,
        rounds=100,
        deviations=np.zeros(2),
        runs=1,
    )
    assert run.projected[-1] < 1e-9
    assert run.squares[-1] == pytest.approx(4.0)


def test_noise_that_turns_the_basis_leaves_a_floor_at_any_step():
    """Differing silos: ten times smaller steps leave as much gradient, unlike for silos that are alike."""
    public, weights = np.array([True, False]), np.array([0.5, 0.5])
    made = pfa.ProjectedMerge(weights=weights, public=public, noise=[1.0, 0.0], dimension=6)
    found = {}
    for differ in (0.0, 1.0):
        centres = np.full((2, 6), differ) * np.array([[1.0], [-1.0]])
        problem = quadratic([[1.0] * 6] * 2, centres.tolist())
        for step in (0.2, 0.02):
            run = run_projected(
                problem,
                np.zeros(6),
                weights=weights,
                public=public,
                step=step,
                rounds=round(40 / step),
                deviations=np.array([1.0, 0.0]),
                runs=40,
            )
            late = run.projected[len(run.projected) // 2 :].mean()
            found[differ, step] = late
            assert late <= decays.gradient_bound(pfa.decay_differing(made, 1.0, step), 0.0, 1)
    assert found[0.0, 0.02] < 0.15 * found[0.0, 0.2]
    assert found[1.0, 0.02] > 0.6 * found[1.0, 0.2]


# --- printed formulas, written out once more


@given(
    silos=st.integers(1, 50), smoothness=positive, lam=positive, b=positive, v=positive, h=st.integers(1, 9)
)
def test_theorems_of_the_heads_paper_as_printed(silos, smoothness, lam, b, v, h):
    constants = heads.HeadsConstants(silos=silos, smoothness=smoothness, diversity=lam, noise=v)
    decay, ml, gap = heads.heads_published_decay(constants, b, h), silos * smoothness, 3.0
    theorem_1 = ml * h**2 * b**2 / lam + 2 * ml / lam * (2 * h**2 + 1 / (2 * ml)) * v + 2 * lam * ml / 8 * gap
    assert decays.gradient_bound(decay, gap, 8) == pytest.approx(theorem_1)
    c = 0.3 * lam * ml
    beta = lam * ml / c * (h**2 / (2 * lam**2) * b**2 + (2 * h**2 + 1 / (2 * ml)) * v / lam**2)
    theorem_3 = beta + (1 - c / (lam * ml)) ** 8 * (gap - beta)
    assert decays.gap_bound(decay, gap, c, 8) == pytest.approx(theorem_3)
    reach = 2 * lam * ml * 1.5**2
    alpha = math.sqrt(reach * (h / (2 * lam**2) * b**2 + (2 * h**2 + 1 / (2 * ml)) * v / lam**2))
    theorem_2 = reach / 8 + alpha
    assert heads.heads_published_convex_bound(constants, 1.5, 8, b, h) == pytest.approx(theorem_2)


@given(smoothness=positive, lam=positive, q=st.integers(1, 10), d=st.integers(1, 9), sigma=st.floats(0, 3))
def test_theorem_6_as_its_proof_prints_it(smoothness, lam, q, d, sigma):
    p, largest = q / 10, np.array([3.0, 2.0])
    constants = pmtl.PullConstants(smoothness=smoothness, lam=lam, share=p, noise=d * sigma**2)
    first = 2 * (smoothness + lam + lam / p**2) + lam / p**2 / (3 * (smoothness + lam + 2 * lam / p**2))
    mixed = d * sigma**2 + 2 * sigma * np.sqrt(2 * d / lam * largest)
    second = (smoothness * lam + lam**2 + 2 * lam**2 / p**2) * mixed + 4 * lam * largest / p**2
    expected = (2 * first * 7 + 2 * second.sum()) / 6
    assert pmtl.published_nonconvex_bound(constants, 7.0, largest, 3) == pytest.approx(expected)
    step = p / (p**2 * smoothness + (p**2 + 1) * lam)
    assert pmtl.published_nonconvex_step(constants) == pytest.approx(step)


@given(lam=positive, noise=st.floats(0, 5), largest=positive, local=st.integers(1, 6))
def test_theorem_7_as_printed(lam, noise, largest, local):
    constants = pmtl.PullConstants(smoothness=1.0, lam=lam, noise=noise)
    around = lam * (noise + 2 * math.sqrt(noise) * math.sqrt(2 / lam * largest) + largest / lam)
    expected = 2.0**-6 * (4 - around) + around / (1 - 2.0**-local)
    assert pmtl.published_convex_bound(constants, 4.0, 6, largest, local) == pytest.approx(expected)


def test_rates_of_theorem_3_as_printed():
    found = pmtl.published_rates(
        silos=10, local_steps=4, dimension=7, clip=2.0, lam=0.5, largest=6.0, cost=3.0
    )
    assert found == pytest.approx({"descent": 2.8, "pull": 0.75, "privacy": 0.075})


@given(smoothness=positive, k=st.integers(1, 20), tau=st.integers(1, 9), b=positive, s=positive, c=positive)
def test_theorem_3_of_the_pfa_paper_as_printed(smoothness, k, tau, b, s, c):
    eta, lam = 1e-4 / smoothness, 2.0
    constants = pfa.PublishedConstants(
        smoothness=smoothness,
        step=eta,
        silos=k,
        local_steps=tau,
        sampling=b,
        noise=s,
        diversity=lam,
        growth=c,
    )
    left = -eta / 2 + lam * eta**3 * smoothness**2 * (2 * c + tau * (tau + 1)) * (k + 2) / (2 * k)
    left += lam * eta**2 * smoothness * (c + k) / k**2
    assert pfa.published_condition(constants) == pytest.approx(left, rel=1e-12)
    if left <= 0:
        noise = eta**2 * smoothness**2 * (tau + 1) * (k + 2) / k * (b + s) + smoothness * eta * b / k
        assert pfa.published_bound(constants, 0.0, 50) == pytest.approx(noise, rel=1e-12)
        assert pfa.published_bound(constants, 3.0, 50) == pytest.approx(3 / (eta * 50) + noise, rel=1e-12)
