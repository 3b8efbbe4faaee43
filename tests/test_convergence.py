"""Bounds on convergence hold on problems whose constants are known, and are tight where they can be.

Measured means may exceed a bound by six standard errors, no more; seeds are fixed.
"""

from __future__ import annotations

import doctest
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import Problem
from coterie.theory.convergence import decay as decays
from coterie.theory.convergence import heads, pfa, pmtl
from tests.convergence_cases import Case, all_cases, merge
from tests.convergent import Quadratic, best_pulled, run_heads, run_projected, run_pull, spread_quadratic

CASES = cache(all_cases)
positive = st.floats(0.01, 100)


def agrees(sample: np.ndarray, expected: float) -> bool:
    return abs(sample.mean() - expected) <= 6 * sample.std() / math.sqrt(sample.size) + 1e-12


def isotropic(silos: int, size: int, curvature: float) -> Quadratic:
    """Silos alike, of one curvature in all directions, best at 0."""
    return Quadratic(np.tile(curvature * np.eye(size), (silos, 1, 1)), np.zeros((silos, size)))


# --- measured against bounds


def test_what_is_measured_is_within_every_bound():
    wrong = [(c.theorem, c.problem, c.ratio) for c in CASES() if not c.measured <= c.bound + c.slack]
    assert not wrong


@pytest.mark.parametrize(
    ("theorem", "problem", "least"),
    [
        ("5.1 ours", "quadratic, silos differ", 0.95),
        ("7 ours", "logistic, p = 1, E = 1", 0.85),
        ("6 ours", "flat, p = 1, E = 1", 0.93),
        ("3 ours", "quadratic, silos alike, eta = 0.5, tau = 1", 0.5),
    ],
)
def test_some_bounds_are_nearly_reached(theorem, problem, least):
    (case,) = (c for c in CASES() if (c.theorem, c.problem) == (theorem, problem))
    assert case.ratio > least


def test_the_table_of_the_document_is_what_is_measured():
    text = (Path(__file__).parents[1] / "docs" / "convergence.md").read_text().split("## Measured")[1]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.count(" | ") == 4]
    found = {tuple(row[:2]): [float(x) for x in row[2:]] for row in rows if row[0][0].isdigit()}
    assert len(found) == len(CASES())
    for case in CASES():
        expected = (case.measured, case.bound, case.ratio)
        assert found[case.theorem, case.problem] == pytest.approx(expected, rel=0.06)


# --- one round, exactly


@pytest.mark.parametrize("step", [0.2, 0.5, 0.9])
def test_a_round_of_heads_on_an_even_quadratic_is_worth_its_decay(step):
    """Without heads, of one curvature and lam = 1: an equality, and a tenth of the noise more is seen."""
    problem, deviation = isotropic(3, 2, 2.0), 0.4
    constants = heads.HeadsConstants(silos=3, smoothness=2.0, noise=2 * deviation**2)
    run = run_heads(
        problem, np.zeros((3, 0)), np.full(2, 0.2), step=step, rounds=1, deviation=deviation, runs=40_000
    )
    decay = heads.heads_decay(constants, step=step)
    expected = run.values[0, 0] - decay.slope * run.squares[0, 0] + decay.added
    assert agrees(run.values[1], expected)
    assert not agrees(run.values[1], expected + 0.1 * decay.added)


def test_disagreement_acts_as_noise():
    problem = Quadratic(np.tile(np.eye(2), (2, 1, 1)), np.array([[1.0, 2.0], [-1.0, -2.0]]))
    constants = heads.HeadsConstants(silos=2, smoothness=1.0, disagreement=5.0)
    run = run_heads(problem, np.zeros((2, 0)), np.ones(2), step=0.3, rounds=1, runs=20_000)
    decay = heads.heads_decay(constants, step=0.3)
    assert agrees(run.values[1], run.values[0, 0] - decay.slope * 2 + decay.added)


def test_heads_move_an_mth_as_much_on_average():
    """With heads alone: only f_i sees the step, so that M does not enter the step size."""
    problem = isotropic(4, 3, 1.0)
    constants = heads.HeadsConstants(silos=4, smoothness=1.0)
    run = run_heads(problem, np.ones((4, 3)), np.zeros(0), step=1.0, rounds=1, runs=10)
    decay = heads.heads_decay(constants)
    assert run.values[1] == pytest.approx(run.values[0] - decay.slope * run.squares[0])


def test_several_local_steps_by_hand():
    """H = 3, eta = .02, L = 2, lam = 1.5, B = 5, V = .4, zeta^2 = .1, term by term."""
    constants = heads.HeadsConstants(silos=2, smoothness=2.0, diversity=1.5, disagreement=0.1, noise=0.4)
    found = heads.heads_decay(constants, step=0.02, interval=3, gradient=5.0)
    drift = 0.04 * ((5 + math.sqrt(0.4)) + (10 + math.sqrt(0.8))) / 3
    assert found.slope == pytest.approx(0.06 * (0.75 - 3 * 0.06))
    assert found.added == pytest.approx(2 * 0.06**2 * (0.1 + 0.4 / 3) + 0.06 * 1.12 * drift**2)
    usual = heads.heads_decay(constants, interval=3, gradient=5.0)
    assert usual.slope == pytest.approx(1 / 12 * 0.5)


@pytest.mark.parametrize("public_noise", [0.0, 0.5])
def test_a_round_of_pfa_from_the_best_point_is_worth_its_decay(public_noise):
    """Of private noise one coordinate of six stays; all of the public noise does."""
    weights, public = np.array([0.3, 0.3, 0.4]), np.array([True, True, False])
    deviations = np.array([public_noise, public_noise, 1.0])
    made = pfa.ProjectedMerge(weights=weights, public=public, noise=deviations**2, dimension=6)
    problem = isotropic(3, 6, 2.0)
    start = np.zeros(6) if public_noise else np.ones(6)
    run = run_projected(
        problem, start, weights=weights, public=public, step=0.5, rounds=2, deviations=deviations, runs=40_000
    )
    decay = pfa.decay_alike(made, 2.0, 0.5)
    before, after = run.squares[0] / 4, run.squares[1] / 4  # the loss: |gradient|^2 / (2 L)
    assert agrees(after, before[0] - decay.slope * run.projected[0].mean() + decay.added)
    assert not agrees(after, before[0] - decay.slope * run.projected[0].mean() + 1.1 * decay.added)


def test_a_round_of_pfa_with_differing_silos_is_worth_its_decay():
    """No public noise, so the basis is known; steps of 1 / L."""
    problem = Quadratic(np.tile(2 * np.eye(3), (2, 1, 1)), np.array([[1.0, 0, 0], [0, 3.0, 1.0]]))
    weights, public, deviations = np.array([0.6, 0.4]), np.array([True, False]), np.array([0.0, 1.5])
    made = pfa.ProjectedMerge(weights=weights, public=public, noise=deviations**2, dimension=3)
    run = run_projected(
        problem,
        np.ones(3),
        weights=weights,
        public=public,
        step=0.5,
        rounds=2,
        deviations=deviations,
        runs=40_000,
    )
    decay = pfa.decay_differing(made, 2.0, 0.5)
    drop = decay.slope * run.projected[0].mean()
    assert agrees(run.squares[1] / 4 - run.squares[0] / 4, decay.added - drop)


def test_several_local_steps_of_pfa_by_hand():
    made = pfa.ProjectedMerge(
        weights=[0.5, 0.5], public=[True, False], noise=[0.1, 0.4], dimension=2, sampling=0.3
    )
    blur = 0.25 * (0.3 + 0.2) + 0.25 * (0.3 + 0.4)
    far = 0.5 * (5 + math.sqrt(0.5)) / 2 + 0.5 * (5 + math.sqrt(1.1)) / 2
    found = pfa.decay_differing(made, 2.0, 0.1, local_steps=2, gradient=5.0)
    assert found.slope == pytest.approx(0.1)
    assert found.added == pytest.approx(0.1 * (math.sqrt(blur / 2) + 0.2 * far) ** 2)


# --- from one round to many


@given(slope=st.floats(0.01, 1), added=st.floats(0, 5), gap=positive, share=st.floats(0.01, 1))
def test_the_gap_is_what_repeating_a_round_gives(slope, added, gap, share):
    convexity, value = share / (2 * slope), gap
    for _ in range(7):
        value += -2 * convexity * slope * value + added
    assert decays.gap_bound(decays.Decay(slope, added), gap, convexity, 7) == pytest.approx(value, abs=1e-9)


@given(lam=positive, ratio=st.floats(0.05, 1), share=st.floats(0.1, 1), noise=positive)
@pytest.mark.parametrize("local_steps", [1, 4])
def test_the_gap_of_mean_regularised_learning_is_what_repeating_a_round_gives(
    local_steps, lam, ratio, share, noise
):
    """Descent with an error lam n, |n|^2 being t V after t rounds; the last broadcast has its own noise."""
    smoothness = 3.0
    constants = pmtl.PullConstants(
        smoothness=smoothness, lam=lam, convexity=ratio * smoothness, share=share, noise=noise
    )
    moved, value = share / (smoothness + lam), 2.0
    for t in range(6):
        if local_steps == 1:
            value += moved / 2 * (lam**2 * t * noise - 2 * constants.convexity * value)
        else:
            value += lam / 2 * t * noise - moved / 2 * (constants.convexity * value - lam**2 * t * noise)
    value += lam / 2 * 6 * noise
    assert pmtl.gap_bound(constants, 2.0, 6, local_steps=local_steps) == pytest.approx(value)


def test_without_noise_mean_regularised_learning_converges_to_the_best_models():
    """No neighbourhood remains, although the paper's bounds keep one (B) at sigma = 0."""
    problem = spread_quadratic(6, 3, 0.5, 2.0, seed=7)
    run = run_pull(problem, np.ones((6, 3)), lam=1.0, step=1 / 3, rounds=300, local_steps=3, runs=1)
    assert run.values[-1, 0] - best_pulled(problem, 1.0, (6, 3)) == pytest.approx(0, abs=1e-9)
    assert run.squares[-1, 0] < 1e-15
    constants = pmtl.PullConstants(smoothness=2.0, lam=1.0, convexity=0.5)
    assert pmtl.gap_bound(constants, 5.0, 1000) == pytest.approx(0, abs=1e-9)


def test_noise_on_a_flat_loss_is_what_the_gradient_bound_says():
    """Exactly lam^2 V (T - 1) / 2, against lam^2 V (T + 1) / 2."""
    constants = pmtl.PullConstants(smoothness=0.0, lam=0.5, noise=0.2)
    assert pmtl.gradient_bound(constants, 0.0, 20) == pytest.approx(0.25 * 0.2 * 21 / 2)
    problem = Quadratic(np.zeros((2, 5, 5)), np.zeros((2, 5)))
    run = run_pull(problem, np.zeros((2, 5)), lam=0.5, step=2.0, rounds=20, deviation=0.2, runs=5000)
    assert agrees(run.squares.mean(0), 0.25 * 0.2 * 19 / 2)


def test_a_quarter_of_the_silos_takes_four_times_as_long():
    """With hardly a pull a silo that takes part is at its best at once: our bound is what happens."""
    constants = pmtl.PullConstants(smoothness=2.0, lam=1e-9, share=0.25)
    run = run_pull(
        isotropic(8, 1, 2.0), np.ones((8, 1)), lam=1e-9, step=0.5, rounds=60, cohort=2, by_all=True, runs=1000
    )
    assert agrees(run.squares.mean(0), pmtl.gradient_bound(constants, 1.0, 60))


@given(lam=st.floats(1, 9), smoothness=positive, part=st.floats(0.05, 0.95), noise=positive, other=positive)
def test_the_mean_convex_gap_uses_up_the_distance(lam, smoothness, part, noise, other):
    """Distances fall by 2 eta (1 - lam L eta) times the gap, and rise by eta^2 (zeta^2 + V), until none is left."""
    constants = heads.HeadsConstants(
        silos=2, smoothness=smoothness, diversity=lam, disagreement=other, noise=noise
    )
    step = part / (lam * smoothness)
    gap = heads.heads_convex_bound(constants, 3.0, 12, step)
    left = 9.0
    for _ in range(12):
        left += step**2 * (noise + other) - 2 * step * (1 - part) * gap
    assert left == pytest.approx(0, abs=1e-9 * (9 + 12 * step**2 * (noise + other)))
    usual = heads.heads_convex_bound(constants, 3.0, 12, 0.5 / (lam * smoothness))
    assert heads.heads_convex_bound(constants, 3.0, 12) == pytest.approx(usual)


# --- examples


def test_examples_in_the_texts():
    for module, count in ((decays, 2), (heads, 2), (pmtl, 3), (pfa, 3)):
        assert doctest.testmod(module) == (0, count)


# --- refused

HEADS = heads.HeadsConstants(silos=2, smoothness=1.0)
PULL = pmtl.PullConstants(smoothness=1.0, lam=1.0, convexity=0.5)
WIDE = pfa.PublishedConstants(smoothness=1.0, step=1.0, silos=2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: heads.HeadsConstants(silos=0, smoothness=1.0), "silos must be a whole number >= 1, got 0"),
        (
            lambda: heads.HeadsConstants(silos=1, smoothness=0.0),
            "smoothness must be a finite number > 0, got 0",
        ),
        (
            lambda: heads.HeadsConstants(silos=1, smoothness=1.0, noise=math.nan),
            "noise must be a finite number >= 0, got nan",
        ),
        (
            lambda: heads.heads_decay(HEADS, step=2.0),
            "the step size is too large: the loss cannot be shown to decrease",
        ),
        (
            lambda: heads.heads_decay(heads.HeadsConstants(silos=2, smoothness=1.0, diversity=0.5)),
            "diversity must be a number >= 1, got 0.5",
        ),
        (
            lambda: heads.heads_decay(HEADS, interval=2),
            "an interval above 1 needs `gradient`, a bound on the gradients",
        ),
        (
            lambda: heads.heads_convex_bound(HEADS, 1.0, 5, step=1.0),
            "step must be a number above 0 and below 1, and diversity >= 1",
        ),
        (
            lambda: decays.gap_bound(decays.Decay(0.5, 0.0), 1.0, 1.5, 3),
            "convexity must be a number above 0 and at most 1, got 1.5",
        ),
        (
            lambda: decays.gradient_bound(decays.Decay(0.5, 0.0), 1.0, 0),
            "rounds must be a whole number >= 1, got 0",
        ),
        (
            lambda: pmtl.PullConstants(smoothness=1.0, lam=1.0, share=0.0),
            "share must be a number above 0 and at most 1, got 0",
        ),
        (
            lambda: pmtl.PullConstants(smoothness=1.0, lam=1.0, convexity=2.0),
            "convexity must be at most the smoothness 1, got 2",
        ),
        (
            lambda: pmtl.published_convex_steps(PULL),
            "theorem 7 admits no positive step here: it needs (L + lam) p^2 > 2 lam, got 2 and 2",
        ),
        (
            lambda: pmtl.gradient_bound(PULL, 1.0, 5, step=1.0),
            "step must be a number above 0 and below 1, got 1",
        ),
        (
            lambda: pmtl.gap_bound(PULL, 1.0, 5, step=0.7),
            "step must be a number above 0 and at most 0.5, got 0.7",
        ),
        (
            lambda: pmtl.gap_bound(pmtl.PullConstants(smoothness=1.0, lam=1.0), 1.0, 5),
            "convexity must be a finite number > 0, got 0",
        ),
        (
            lambda: pfa.published_bound(WIDE, 1.0, 5),
            "theorem 3 needs a smaller step: the left side of (7) is 2, above 0",
        ),
        (
            lambda: pfa.ProjectedMerge(weights=[0.5, 0.6], public=[1, 0], noise=[0, 0], dimension=2),
            "weights must be >= 0 and add up to 1",
        ),
        (
            lambda: pfa.ProjectedMerge(weights=[0.5, 0.5], public=[0, 0], noise=[0, 0], dimension=2),
            "public must include at least one silo: without one there is no basis",
        ),
        (
            lambda: pfa.decay_alike(merge(), 1.0, 1.5),
            "the steps of a round must add up to at most 1, got 1.5",
        ),
        (
            lambda: pfa.decay_differing(merge(), 1.0, 0.1, local_steps=2),
            "more than one local step needs `gradient`, a bound on the gradients",
        ),
    ],
)
def test_what_a_bound_does_not_cover_is_refused(call, said):
    with pytest.raises(Problem) as caught:
        call()
    assert str(caught.value) == said


def test_a_case_beyond_its_bound_would_be_noticed():
    sample = np.random.default_rng(0).normal(1.1, 0.1, 1000)
    case = Case("none", "none", sample, bound=1.0)
    assert not case.measured <= case.bound + case.slack
