"""The accountant, calibration, budgets and statements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.errors import Problem
from coterie.privacy import gaussian
from coterie.privacy.accountant import epsilon, shown
from coterie.privacy.budget import Privacy, check_budgets, loose_deltas, per_silo, values_of
from coterie.privacy.calibration import Target, calibrate, noise_for


def exact_gaussian(noise: float, delta: float) -> float:
    """Epsilon of one Gaussian release by bisection on Balle and Wang's formula (2018, theorem 8)."""
    low, high = 0.0, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        a = stats.norm.cdf(0.5 / noise - middle * noise)
        b = stats.norm.logcdf(-0.5 / noise - middle * noise) + middle
        low, high = (middle, high) if a - math.exp(min(b, 0)) > delta else (low, middle)
    return high


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("steps", [1, 9, 400])
def test_full_batches_agree_with_the_closed_form(noise, steps):
    exact = exact_gaussian(noise / math.sqrt(steps), 1e-5)
    assert exact - 1e-9 <= epsilon(noise, 1.0, steps, 1e-5) <= exact * 1.002 + 1e-6


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [(5.0, 0.3, 603, 1e-3), (0.6, 0.01, 500, 1e-5), (1.0, 0.01, 10_000, 1e-5), (20.0, 0.3, 603, 1e-3)],
)
def test_agrees_with_a_fine_discretisation(noise, rate, steps, delta):
    """dp-accounting at its default, ten times finer: ours is above the optimistic bound and near it."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    bounds = [
        pld.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=1e-4, pessimistic_estimate=pessimistic
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    ]
    assert bounds[0] <= epsilon(noise, rate, steps, delta) <= bounds[1] * 1.01


def test_published_example_of_the_plan():
    """methods: z 5, rate .3, 603 steps, delta 1e-3 is 5.19 by PLD."""
    assert epsilon(5.0, 0.3, 603, 1e-3) == pytest.approx(5.19, abs=0.005)


def test_bounds_a_simulation():
    """One sampled step: the certified curve lies above a Monte-Carlo estimate of delta."""
    noise, rate, delta = 0.8, 0.2, 1e-2
    bound = epsilon(noise, rate, 1, delta)
    generator = np.random.default_rng(0)
    draws = noise * generator.normal(size=400_000) + (generator.random(400_000) < rate)
    ratio = np.log(1 - rate + rate * np.exp((2 * draws - 1) / (2 * noise**2)))
    estimate = np.mean(np.maximum(0, 1 - np.exp(bound - ratio)))
    assert estimate <= delta * 1.05
    assert np.mean(np.maximum(0, 1 - np.exp(0.9 * bound - ratio))) > delta


@settings(max_examples=30)
@given(
    target=st.floats(0.05, 50),
    exponent=st.integers(2, 8),
    rate=st.one_of(st.just(1.0), st.floats(1e-3, 1)),
    steps=st.integers(1, 5000),
)
def test_calibration_never_overshoots_and_leaves_at_most_one_per_cent(target, exponent, rate, steps):
    assume(rate == 1 or 1 - (1 - rate) ** steps > 1.01 * 10.0**-exponent)
    wanted = Target(target, 10.0**-exponent, rate, steps)
    found = noise_for(wanted)
    assert target * 0.99 < found.epsilon <= target
    assert found.epsilon == epsilon(found.noise, rate, steps, wanted.delta)


@settings(max_examples=20)
@given(noise=st.floats(0.5, 20), rate=st.floats(0.01, 1), steps=st.integers(1, 500))
def test_more_steps_and_less_noise_cost_more(noise, rate, steps):
    cost = epsilon(noise, rate, steps, 1e-5)
    assert epsilon(noise, rate, 2 * steps, 1e-5) >= cost * 0.999
    assert epsilon(noise / 2, rate, steps, 1e-5) >= cost * 0.999
    assert epsilon(noise, min(1.0, rate * 2), steps, 1e-5) >= cost * 0.999


@pytest.mark.parametrize(
    ("target", "delta", "rate", "steps"),
    [(0.01, 1e-5, 0.01, 1000), (1000, 1e-5, 0.1, 10), (8, 1e-9, 1.0, 1), (3, 1e-5, 1e-3, 100_000)],
)
def test_extreme_budgets(target, delta, rate, steps):
    assert target * 0.99 < noise_for(Target(target, delta, rate, steps)).epsilon <= target


def test_no_noise_is_no_privacy():
    assert epsilon(0.0, 0.1, 10, 1e-5) == math.inf
    assert noise_for(Target(math.inf, 1e-5, 0.1, 10)).noise == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((-1.0, 0.1, 10, 1e-5), "noise must be a number >= 0, got -1"),
        ((math.nan, 0.1, 10, 1e-5), "noise must be"),
        ((1.0, 0.0, 10, 1e-5), r"rate must be a number in \(0, 1\], got 0"),
        ((1.0, 1.5, 10, 1e-5), "rate must be"),
        ((1.0, 0.1, 0, 1e-5), "steps must be a whole number >= 1, got 0"),
        ((1.0, 0.1, 10, 0.0), r"delta must be a number in \(0, 1\), got 0"),
        ((1.0, 0.1, 10, 1.0), "delta must be"),
    ],
)
def test_accountant_refuses(arguments, said):
    with pytest.raises(Problem, match=said):
        epsilon(*arguments)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
def test_a_budget_must_be_positive(target):
    with pytest.raises(Problem, match="epsilon must be a number > 0"):
        noise_for(Target(target, 1e-5, 0.1, 10))


def test_a_budget_that_protects_nothing():
    with pytest.raises(Problem, match=r"epsilon must be at most 1000, got 1e\+09.*use inf"):
        noise_for(Target(1e9, 1e-5, 0.1, 10))


def test_so_little_noise_that_no_bound_is_finite():
    assert epsilon(1e-7, 0.3, 10, 1e-3) == math.inf
    assert 1000 < epsilon(1e-3, 0.3, 10, 1e-3) < math.inf


def test_a_budget_that_no_noise_reaches():
    with pytest.raises(Problem, match=r"epsilon 1e-07 .* cannot be reached with noise up to 1e\+06"):
        noise_for(Target(1e-7, 1e-12, 1.0, 100_000))


def test_a_delta_above_the_chance_of_being_used_is_refused():
    with pytest.raises(Problem, match=r"delta 0\.01 is not below 0\.00781"):
        noise_for(Target(1.0, 0.01, 0.0078125, 1))


def test_equal_targets_share_one_search_and_the_cache_is_used(monkeypatch, tmp_path):
    from coterie.privacy import calibration

    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    searched = []
    real = calibration.noise_for
    monkeypatch.setattr(calibration, "noise_for", lambda t, g=None: searched.append(t) or real(t, g))
    targets = [Target(2.0, 1e-5, 0.1, 50), Target(2.0, 1e-5, 0.1, 50), Target(2.0, 1e-5, 0.11, 50)]
    first = calibrate(targets)
    assert len(searched) == 2
    assert calibrate(targets) == first
    assert len(searched) == 2


def test_the_cache_tells_targets_apart(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    targets = [
        Target(2.0, d, q, n)
        for d, q, n in ((1e-5, 0.1, 50), (1e-3, 0.1, 50), (1e-5, 0.2, 50), (1e-5, 0.1, 60))
    ]
    first = calibrate(targets)
    again = calibrate(list(reversed(targets)))
    assert again == first
    assert len({found.noise for found in again.values()}) == 4
    for target, found in again.items():
        assert found.epsilon == epsilon(found.noise, target.rate, target.steps, target.delta)


def test_a_damaged_cache_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    target = Target(2.0, 1e-5, 0.1, 22)
    noise = calibrate([target])[target].noise
    file = tmp_path / "calibration.json"
    file.write_text(file.read_text().replace(str(noise), "1e-09"))
    assert calibrate([target])[target].noise == noise


@pytest.mark.parametrize("content", ["", "{", "[]", '{"stamp": "x"}', '{"entries": 3}'])
def test_a_broken_cache_is_as_good_as_none(monkeypatch, tmp_path, content):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    (tmp_path / "calibration.json").write_text(content)
    target = Target(2.0, 1e-5, 0.1, 20)
    assert 1.98 < calibrate([target])[target].epsilon <= 2.0


def test_no_writable_cache_is_no_problem(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "file"))
    target = Target(2.0, 1e-5, 0.1, 21)
    assert calibrate([target])[target].epsilon <= 2.0


def test_a_bound_is_shown_rounded_up():
    assert [shown(3.9911, 2), shown(2.0), shown(1.0001), shown(math.inf)] == [
        "4.00",
        "2.000",
        "1.001",
        "none",
    ]


def test_gaussian_closed_forms():
    assert gaussian.delta_of(1.0, gaussian.epsilon_of(1.0, 1e-5)) == pytest.approx(1e-5, rel=1e-6)
    assert gaussian.epsilon_of(1e-9, 1e-5) == 0.0
    assert gaussian.estimated_mu(2.0, 1.0, 16) == 2.0
    noise = gaussian.estimate_noise(3.0, 1e-5, 0.05, 400)
    mu = gaussian.estimated_mu(noise, 0.05, 400)
    assert gaussian.epsilon_of(mu, 1e-5) == pytest.approx(3.0, rel=1e-2)


def test_numbers_for_silos():
    names = ["a", "b", "c"]
    assert per_silo("k", 2, names) == [2.0, 2.0, 2.0]
    assert per_silo("k", {"b": 1, "default": 5}, names) == [5.0, 1.0, 5.0]
    assert per_silo("k", {"a": 1, "b": 2, "c": 3}, names) == [1.0, 2.0, 3.0]
    assert per_silo("k", {"each": [1, 2]}, names) == [1.0, 2.0, 1.0]
    assert values_of([1, 2]) == [1, 2]
    assert values_of({"a": 1}) == [{"a": 1}]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"x": 1.0, "default": 2.0}, "there is no silo 'x'"),
        ({"a": 1.0}, "no number for silo 'b'"),
        ({"each": []}, "'each' takes a list"),
        ({"each": [1], "a": 2}, "must be the only key"),
    ],
)
def test_numbers_for_silos_refuse(value, said):
    with pytest.raises(Problem, match=said):
        per_silo("privacy.epsilon", value, ["a", "b"])


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (([0.0], [1e-5], [1.0]), "privacy.epsilon: expected a number > 0, got 0"),
        (([1.0], [1.0], [1.0]), "privacy.delta: expected"),
        (
            ([1.0], [1e-5], [0.0]),
            r"privacy.clip: expected a finite number > 0 \(from 1e-06 to 1e\+06\), got 0",
        ),
        (([1.0], [1e-5], [math.inf]), "privacy.clip"),
    ],
)
def test_budgets_are_checked(numbers, said):
    with pytest.raises(Problem, match=said):
        check_budgets(*numbers)


def test_a_large_delta_is_warned_of():
    assert loose_deltas([1e-5, 1e-5], [100, 20], ["a", "b"]) == []
    assert "2 silo(s), such as 'a'" in loose_deltas([0.05, 0.05], [100, 20], ["a", "b"])[0]
    assert loose_deltas([0.05, 0.05], [2, 2], ["a", "b"], "silo") == []
    assert (
        "for 2 silos, so it permits publishing one silo's data"
        in loose_deltas([0.5, 0.5], [2, 2], ["a", "b"], "silo")[0]
    )
    assert loose_deltas([0.05], [20], ["a"], key="--delta")[0].startswith("--delta: 0.05 is not below 1/n")


def test_units_are_known():
    Privacy(epsilon=1.0, unit="silo")
    with pytest.raises(Problem, match="unknown unit 'examples'; did you mean 'example'"):
        Privacy(epsilon=1.0, unit="examples")


def test_every_silo_ends_within_one_per_cent_of_its_own_budget(federation):
    from tests.helpers import every_method, experiment

    for method in every_method():
        made = experiment(federation, method, epsilon={"silo-0": 0.5, "silo-1": 3.0, "silo-2": 20.0})
        for silo in made.plan().silos[0]:
            assert 0.99 * silo.budget < silo.epsilon <= silo.budget
