"""The theory of mean estimation, against simulations, brute force and linear algebra.

Simulated means must lie within six standard errors: a wrong alarm in 5e8, and the seeds are fixed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar

from coterie.errors import Problem
from coterie.theory import mean_estimation as theory
from coterie.theory.mean_estimation import MeanEstimation

MODELS = (
    MeanEstimation(silos=4, examples=5, deviation=1.0, silo_spread=0.5, noise=2.0),
    MeanEstimation(silos=10, examples=8, deviation=0.5, silo_spread=1.0, noise=0.0),
    MeanEstimation(silos=2, examples=3, deviation=0.2, silo_spread=0.1, noise=6.0),
)
LAMS = (0.0, 0.3, 1.0, 7.0, math.inf)
models = st.builds(
    MeanEstimation,
    silos=st.integers(1, 200),
    examples=st.integers(1, 1000),
    deviation=st.floats(0.01, 10),
    silo_spread=st.floats(0.01, 10),
    noise=st.floats(0, 100),
)
each_model = pytest.mark.parametrize("model", MODELS, ids=["private", "without noise", "two silos"])


def drawn(model: MeanEstimation, seed: int = 0, draws: int = 20_000, theta: float = 3.0):
    """Draw centres, and the means that silos publish with and without noise: `[draws, silos]` each."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(theta, model.silo_spread, (draws, model.silos))
    total = np.zeros_like(centres)
    for _ in range(model.examples):
        total += generator.normal(centres, model.deviation)
    noise = generator.normal(0, 1, total.shape) * model.noise
    return centres, (total + noise) / model.examples, total / model.examples


def estimate(published: np.ndarray, lam: float) -> np.ndarray:
    """MR-MTL as lemma 6.1 writes it: alpha of a silo's own mean, the rest of the others' mean."""
    silos = published.shape[1]
    alpha = 1 / silos if math.isinf(lam) else (silos + lam) / ((1 + lam) * silos)
    others = (published.sum(1, keepdims=True) - published) / (silos - 1)
    return alpha * published + (1 - alpha) * others


def squared(centres: np.ndarray, published: np.ndarray, lam: float) -> np.ndarray:
    """Squared errors, a mean over silos for each independent draw."""
    return ((centres - estimate(published, lam)) ** 2).mean(1)


def agrees(sample: np.ndarray, expected: float) -> bool:
    """Tell whether a mean of independent draws is within six standard errors."""
    standard_error = sample.std() / math.sqrt(len(sample))
    return abs(sample.mean() - expected) <= 6 * standard_error + 1e-12


# --- against simulations


@each_model
def test_local_variance_is_the_variance_of_what_is_published(model):
    centres, published, _ = drawn(model)
    assert agrees(((published - centres) ** 2).mean(1), theory.local_variance(model))


@each_model
@pytest.mark.parametrize("lam", LAMS)
def test_error_agrees_with_a_simulation(model, lam):
    centres, published, _ = drawn(model, seed=1)
    assert agrees(squared(centres, published, lam), float(theory.error(model, lam)))


@each_model
def test_ends_and_best_agree_with_a_simulation(model):
    centres, published, _ = drawn(model, seed=2)
    assert agrees(((centres - published) ** 2).mean(1), theory.local_error(model))
    average = published.mean(1, keepdims=True)
    assert agrees(((centres - average) ** 2).mean(1), theory.fedavg_error(model))
    assert agrees(squared(centres, published, theory.best_lam(model)), theory.best_error(model))


@each_model
def test_gaps_agree_with_a_simulation(model):
    centres, published, _ = drawn(model, seed=3)
    best = squared(centres, published, theory.best_lam(model))
    assert agrees(squared(centres, published, 0.0) - best, theory.gap_to_local(model))
    assert agrees(squared(centres, published, math.inf) - best, theory.gap_to_fedavg(model))


@each_model
@pytest.mark.parametrize("lam", LAMS)
def test_privacy_gap_agrees_with_a_simulation(model, lam):
    centres, published, exact = drawn(model, seed=4)
    cost = squared(centres, published, lam) - squared(centres, exact, lam)
    assert agrees(cost, float(theory.privacy_gap(model, lam)))


def test_a_simulation_would_notice_a_wrong_formula():
    """The same draws reject lemma 6.7 without its last term, with K - 1 for K, and another lam."""
    model, lam = MODELS[0], 0.3
    centres, published, _ = drawn(model, seed=1)
    wrong = (
        float(theory.error(model, lam)) - theory.local_variance(model) / model.silos,
        float(theory.error(replace(model, silos=model.silos - 1), lam)),
        float(theory.error(model, 0.8 * lam)),
    )
    assert not any(agrees(squared(centres, published, lam), value) for value in wrong)


def test_errors_given_what_was_published_are_not_the_printed_ones():
    """Of silos far from the others the error is larger: best_error + (alpha - alpha*)^2 d^2."""
    model, lam = MODELS[0], 0.0
    centres, published, _ = drawn(model, seed=5, draws=60_000)
    apart = (published[:, 0] - published[:, 1:].mean(1)) ** 2
    weight = [(model.silos + x) / (model.silos * (1 + x)) for x in (lam, theory.best_lam(model))]
    losses = (centres[:, 0] - estimate(published, lam)[:, 0]) ** 2
    expected = theory.best_error(model) + (weight[0] - weight[1]) ** 2 * apart
    for half in (apart < np.median(apart), apart >= np.median(apart)):
        assert agrees((losses - expected)[half], 0.0)
        assert not agrees(losses[half], float(theory.error(model, lam)))


# --- against brute force


def test_the_estimate_minimises_the_objective():
    """Lemma 6.1 against a search on equation 3."""
    published = drawn(MODELS[0], seed=6, draws=1)[1]
    own, mean = published[0, 0], published.mean()
    for lam in LAMS[:-1]:
        found = minimize_scalar(lambda w, lam=lam: (w - own) ** 2 / 2 + lam / 2 * (w - mean) ** 2).x
        assert estimate(published, lam)[0, 0] == pytest.approx(found, abs=1e-6)


@given(model=models)
def test_no_lam_is_better_than_the_best(model):
    best = theory.best_lam(model)
    grid = np.concatenate([[0.0], best * np.logspace(-4, 4, 801), [math.inf]])
    errors = theory.error(model, grid)
    assert errors.min() >= theory.best_error(model) * (1 - 1e-12)
    assert float(theory.error(model, best)) == pytest.approx(theory.best_error(model), rel=1e-12)
    slopes = np.diff(errors)
    falling, slack = grid[1:] <= best * (1 + 1e-12), 1e-13 * errors.max()
    assert (slopes[falling] <= slack).all()
    assert (slopes[~falling] >= -slack).all()


@given(model=models)
def test_closed_forms_agree_with_each_other(model):
    variance, spread, silos = theory.local_variance(model), model.silo_spread**2, model.silos
    share = 1 - 1 / silos
    assert theory.best_error(model) == pytest.approx(
        variance * (variance + silos * spread) / (silos * (variance + spread))
    )
    slack = 1e-12 * (variance + spread)
    assert theory.gap_to_local(model) == pytest.approx(
        theory.local_error(model) - theory.best_error(model), abs=slack
    )
    assert theory.gap_to_local(model) == pytest.approx(share * variance**2 / (variance + spread), abs=slack)
    assert theory.gap_to_fedavg(model) == pytest.approx(
        theory.fedavg_error(model) - theory.best_error(model), abs=slack
    )
    assert theory.gap_to_fedavg(model) == pytest.approx(share * spread**2 / (variance + spread), abs=slack)


@given(model=models)
def test_limits(model):
    errors = theory.error(model, [0.0, 1e-13, 1e13, math.inf])
    assert errors[:2] == pytest.approx([theory.local_error(model)] * 2)
    assert errors[2:] == pytest.approx([theory.fedavg_error(model)] * 2)
    costs = theory.privacy_gap(model, [0.0, math.inf])
    assert costs == pytest.approx((model.noise / model.examples) ** 2 / np.array([1, model.silos]))


@given(model=models, lam=st.floats(0, 1e6))
def test_privacy_gap_is_the_difference_of_two_errors(model, lam):
    without = replace(model, noise=0.0)
    cost = theory.error(model, lam) - theory.error(without, lam)
    slack = 1e-12 * float(theory.error(model, lam))
    assert float(theory.privacy_gap(model, lam)) == pytest.approx(float(cost), abs=slack)


@given(model=models)
def test_privacy_with_the_best_lam_of_each_lies_between_two_gaps(model):
    without = replace(model, noise=0.0)
    cost = theory.best_error(model) - theory.best_error(without)
    high, low = theory.privacy_gap(model, [theory.best_lam(without), theory.best_lam(model)])
    slack = 1e-12 * theory.local_error(model)
    assert low - slack <= cost <= high + slack


@pytest.mark.parametrize("model", MODELS)
def test_no_unbiased_weighting_is_better(model):
    """Least variance of w_1 - sum c_j m_j with sum c = 1, by Lagrange's equations."""
    silos, variance, spread = model.silos, theory.local_variance(model), model.silo_spread**2
    system = np.ones((silos + 1, silos + 1))
    system[:silos, :silos] = (variance + spread) * np.eye(silos)
    system[silos, silos] = 0
    target = np.array([spread, *[0.0] * (silos - 1), 1.0])
    weights = np.linalg.solve(system, target)[:silos]
    least = (variance + spread) * weights @ weights - 2 * spread * weights[0] + spread
    assert least == pytest.approx(theory.best_error(model))


def test_the_advantage_over_both_ends_is_largest_where_noise_equals_spread():
    """The remark after proposition 6.6, exactly: for fixed tau the lesser gap peaks at sigma_loc = tau."""
    model = MeanEstimation(silos=20, examples=1, deviation=0.0, silo_spread=0.7)
    noises = np.linspace(0.1, 2, 191)
    lesser = [
        min(gap(replace(model, noise=noise)) for gap in (theory.gap_to_local, theory.gap_to_fedavg))
        for noise in noises
    ]
    assert noises[int(np.argmax(lesser))] == pytest.approx(model.silo_spread)


# --- edges


def test_one_silo_alone():
    model = replace(MODELS[0], silos=1)
    assert theory.error(model, [0.0, 1.0, math.inf]) == pytest.approx([theory.local_variance(model)] * 3)
    assert theory.gap_to_local(model) == theory.gap_to_fedavg(model) == 0


def test_equal_silos_average():
    model = replace(MODELS[0], silo_spread=0.0)
    assert theory.best_lam(model) == math.inf
    assert theory.best_error(model) == theory.fedavg_error(model) == theory.local_variance(model) / 4
    assert theory.gap_to_fedavg(model) == 0


def test_exact_silos_stay_alone():
    model = replace(MODELS[0], deviation=0.0, noise=0.0)
    assert theory.best_lam(model) == theory.best_error(model) == theory.gap_to_local(model) == 0
    assert theory.best_error(replace(model, silo_spread=0.0)) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"silos": 0}, "silos must be a whole number >= 1, got 0"),
        ({"silos": 2.5}, "silos must be a whole number >= 1, got 2.5"),
        ({"examples": -3}, "examples must be a whole number >= 1, got -3"),
        ({"deviation": -1.0}, "deviation must be a finite number >= 0, got -1"),
        ({"silo_spread": math.nan}, "silo_spread must be a finite number >= 0, got nan"),
        ({"noise": math.inf}, "noise must be a finite number >= 0, got inf"),
    ],
)
def test_impossible_models_are_refused(change, said):
    with pytest.raises(Problem) as caught:
        replace(MODELS[0], **change)
    assert str(caught.value) == said


@pytest.mark.parametrize("function", [theory.error, theory.privacy_gap])
@pytest.mark.parametrize(("lam", "got"), [(-1, "-1"), ([0.0, math.nan], "nan")])
def test_impossible_lams_are_refused(function, lam, got):
    with pytest.raises(Problem) as caught:
        function(MODELS[0], lam)
    assert str(caught.value) == f"lam must be a number >= 0, got {got}"


# --- figure 7


def renyi_noise(epsilon: float, how: tuple[float, float] | None) -> float:
    """Noise of one Gaussian release by Renyi accounting; `how` is (eta, mean) of the number of trials.

    Papernot and Steinke 2022, definition 1 and theorem 2, written out for the Gaussian.
    """
    orders = 1 + np.logspace(-2, 3.5, 300)

    def mean(gamma: float, eta: float) -> float:
        if eta == 0:
            return (1 / gamma - 1) / math.log(1 / gamma)
        return eta * (1 - gamma) / (gamma * (1 - gamma**eta))

    def found(noise: float) -> float:
        one = total = orders / (2 * noise**2)
        if how is not None:
            eta, trials = how
            gamma = brentq(lambda g: mean(g, eta) - trials, 1e-9, 1 - 1e-9)
            extra = (1 - 1 / orders) * one - math.log(gamma) / orders
            total = one + (1 + eta) * extra.min() + math.log(trials) / (orders - 1)
        spent = (
            total - (math.log(theory.FIGURE_DELTA) + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
        )
        return float(spent.min())

    return float(brentq(lambda noise: found(noise) - epsilon, 0.1, 1e4))


def test_the_figure_asks_for_each_noise_and_draws_each_error():
    asked = []
    multipliers = {None: 10.0, "ten": 20.0, "twenty": 30.0}

    def noise_for(epsilon: float, how: str | None) -> float:
        asked.append((epsilon, how))
        return multipliers[how]

    model = theory.FIGURE_MODELS["moderate"]
    made = theory.tuning_figure(
        model, 0.5, {"10": "ten", "20": "twenty"}, noise_for, clip=2.0, lams=[0, 1, 5]
    )
    assert asked == [(0.5, None), (0.5, "ten"), (0.5, "twenty")]
    curves = (made.without_privacy, made.private, *made.tuned)
    assert [c.label for c in curves] == ["without privacy", "private", "10", "20"]
    assert [c.model.noise for c in curves] == [0.0, 20.0, 40.0, 60.0]
    for curve in curves:
        assert curve.lams.tolist() == [0, 1, 5]
        assert (
            curve.errors.tolist() == theory.error(replace(model, noise=curve.model.noise), [0, 1, 5]).tolist()
        )
    private = made.private.model
    end = min(theory.local_error(private), theory.fedavg_error(private))
    assert made.gains == {c.label: end - theory.best_error(c.model) for c in made.tuned}


def test_the_lams_of_the_figure():
    assert theory.FIGURE_LAMS[0] == 0
    assert theory.FIGURE_LAMS[1] == pytest.approx(1e-3)
    assert theory.FIGURE_LAMS[-1] == pytest.approx(100)
    assert len(theory.FIGURE_LAMS) == 101


def test_tuning_can_cost_more_than_it_brings():
    """The finding of figure 7, with the authors' settings: only moderate heterogeneity may pay for tuning."""
    trials = {f"eta {eta:g}": (eta, theory.FIGURE_TRIALS) for eta in (-0.5, 0.0, 0.5, 1.0, 2.0, 5.0)}
    made = {
        name: theory.tuning_figure(model, theory.FIGURE_EPSILON, trials, renyi_noise)
        for name, model in theory.FIGURE_MODELS.items()
    }
    for figure in made.values():
        curves = (figure.without_privacy, figure.private, *figure.tuned)
        for less, more in zip(curves, curves[1:], strict=False):
            assert (less.errors < more.errors).all()
            assert theory.best_lam(less.model) < theory.best_lam(more.model)
        known = theory.best_error(figure.private.model)
        assert known < min(
            theory.local_error(figure.private.model), theory.fedavg_error(figure.private.model)
        )
    assert all(gain < 0 for name in ("low", "high") for gain in made[name].gains.values())
    pays = [label for label, gain in made["moderate"].gains.items() if gain > 0]
    assert pays == ["eta -0.5", "eta 0", "eta 0.5"]
    assert made["moderate"].private.model.noise == pytest.approx(14.57, abs=0.01)
    assert made["moderate"].tuned[0].model.noise == pytest.approx(23.14, abs=0.01)
