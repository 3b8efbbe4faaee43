"""Published formulas: re-derived from first principles, and held against the certified bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from coterie.errors import Problem
from coterie.privacy import accountant
from coterie.privacy.calibration import Target, noise_for
from coterie.privacy.events import Event
from coterie.privacy.published import formulas as published
from coterie.privacy.published.formulas import DualSetting, Published, published_for, warning
from coterie.privacy.tradeoff import gaussian_curve

PFA = (8 / 1200, 8000, 1e-5)  # batch 8 of 1,200 examples; .8 of 100 rounds of 100 steps
deltas = st.floats(1e-10, 0.1)
epsilons = st.floats(1e-2, 100)
rates = st.floats(1e-3, 1)
counts = st.integers(1, 20_000)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of telling N(0, 1) from N(mu, 1), by bisection on Balle and Wang's formula."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        tail = middle + stats.norm.logcdf(-middle / mu - mu / 2)
        found = stats.norm.cdf(mu / 2 - middle / mu) - math.exp(min(tail, 0))
        low, high = (middle, high) if found > delta else (low, middle)
    return high


def bounds(noise: float, rate: float, steps: int, delta: float) -> accountant.Bounds:
    return accountant.bounds((Event("gaussian", noise, rate, steps),), delta, tight=True)


# What is shown beside the certified number


def test_the_central_limit_is_flagged_where_it_reports_too_little():
    """rate .01, noise .6, 500 steps, delta 1e-5: 3.72 where 5.8 is true."""
    limit, *others = published_for(0.6, 0.01, 500, 1e-5)
    assert limit.epsilon == pytest.approx(3.72, abs=0.005)
    known = bounds(0.6, 0.01, 500, 1e-5)
    assert 5.70 < known.lower <= known.upper < 5.85
    said = warning(limit, known.lower)
    assert said.startswith("the formula of Wu, Chen, Wang 2020 (Gaussian DP by the central limit")
    lower = f"{math.floor(100 * known.lower) / 100:.2f}"
    assert f"gives epsilon 3.72, which is below {lower}, a proven lower bound" in said
    assert [warning(other, known.lower) for other in others] == [None, None, None]


def test_each_row_is_its_formula():
    rows = published_for(1.2, 0.02, 300, 1e-6)
    assert [row.epsilon for row in rows] == [
        published.central_limit_epsilon(1.2, 0.02, 300, 1e-6),
        published.pfa_epsilon(1.2, 0.02, 300, 1e-6),
        published.moments_accountant_epsilon(1.2, 0.02, 300, 1e-6),
        accountant.renyi_epsilon([Event("gaussian", 1.2, 0.02, 300)], 1e-6),
    ]
    assert len({row.paper for row in rows}) == len({row.formula for row in rows}) == 4


def test_renyi_row_gives_the_example_of_the_plan():
    """noise 5, rate .3, 603 steps, delta 1e-3: 5.84 by Renyi privacy, 5.19 certified."""
    assert published_for(5.0, 0.3, 603, 1e-3)[3].epsilon == pytest.approx(5.84, abs=0.005)


def test_no_noise_and_endless_noise():
    assert {row.epsilon for row in published_for(0.0, 0.1, 10, 1e-5)} == {math.inf}
    limit, pfa, moments, renyi = published_for(math.inf, 0.1, 10, 1e-5)
    assert limit.epsilon == pfa.epsilon == renyi.epsilon == 0
    assert moments.epsilon == pytest.approx(math.log(1e5) / 256)  # as far as 256 moments go


@pytest.mark.parametrize(
    ("epsilon", "lower", "said"),
    [
        (2.0, 2.0, None),
        (2.0, 0.0, None),
        (math.inf, 9.0, None),
        (2.0, math.inf, "below inf, a proven lower bound"),
        (5.771, 5.779, "(f) gives epsilon 5.771, which is below 5.779,"),
        (1.0, 2.999, "(f) gives epsilon 1.00, which is below 2.99,"),
    ],
)
def test_a_warning_shows_as_many_digits_as_tell_the_two_apart(epsilon, lower, said):
    found = warning(Published("p", "f", epsilon), lower)
    assert found is None if said is None else said in found


# Classic Gaussian mechanism


@settings(max_examples=50)
@given(epsilon=st.floats(1e-3, 1), delta=st.floats(1e-12, 1e-2))
def test_classic_noise_is_enough_up_to_epsilon_one(epsilon, delta):
    assert gaussian_epsilon(1 / published.classic_noise(epsilon, delta), delta) <= epsilon


def test_classic_noise_is_too_little_far_above_one():
    """Heads' settings 45, 8, 2, .5 at delta 1e-5: .65 is not what the formula gives for 8."""
    noises = [published.classic_noise(epsilon, 1e-5) for epsilon in (45, 8, 2, 0.5)]
    assert noises == pytest.approx([0.1077, 0.6056, 2.4224, 9.6896], abs=5e-5)
    assert gaussian_epsilon(1 / noises[0], 1e-5) == pytest.approx(81.9, abs=0.1)


# Gaussian differential privacy


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_the_limit_is_rate_and_steps_times_chi_square(noise):
    """mu^2 = T p^2 chi^2 of N(1, s^2) from N(0, s^2): log(1 + p (ratio - 1)) to the first order in p."""
    plain, moved = stats.norm(0, noise), stats.norm(1, noise)
    chi = (
        integrate.quad(lambda x: moved.pdf(x) ** 2 / plain.pdf(x), -12 * noise, 12 * noise, limit=200)[0] - 1
    )
    assert published.central_limit_mu(noise, 0.01, 400) ** 2 == pytest.approx(400 * 1e-4 * chi, rel=1e-6)


def test_the_limit_at_delta():
    for noise, rate, steps, delta in (
        (0.6, 0.01, 500, 1e-5),
        (9.69, 3 / 174, 1000, 1e-5),
        (2.0, 0.1, 50, 1e-3),
    ):
        mu = rate * math.sqrt(steps * (math.exp(1 / noise**2) - 1))
        found = published.central_limit_epsilon(noise, rate, steps, delta)
        assert found == pytest.approx(gaussian_epsilon(mu, delta), rel=1e-6)
    assert published.central_limit_epsilon(9.69, 3 / 174, 1000, 1e-5) == pytest.approx(0.18, abs=0.005)
    assert published.central_limit_epsilon(0.01, 0.5, 10, 1e-5) == math.inf


@pytest.mark.parametrize("noise", [0.6, 1.0, 3.0])
def test_the_sampling_operator_tends_to_the_limit_of_fixed_samples(noise):
    """Dong, Roth, Su, theorem 3.4: mu = 2 T kl / sqrt(T var), for the log-slope of C_p(G) as the loss.

    By symmetry kl is over the steep part (slopes 1 - p + p e^(m z - m^2 / 2), z above m / 2), whose
    losses l weigh 1 there and as -l with weight e^l, their mirror image, where the curve is flat.
    """
    m, rate, steps = 1 / noise, 1e-6, 10_000

    def loss(z):
        return math.log1p(rate * math.expm1(m * z - m**2 / 2))

    def mean(function):
        weighted = integrate.quad(
            lambda z: function(loss(z)) * stats.norm.pdf(z), m / 2, 9 + m, limit=200, epsabs=0, epsrel=1e-8
        )
        return weighted[0]

    kl = mean(lambda x: x * math.expm1(x))
    square = mean(lambda x: x**2 * (1 + math.exp(x)))
    expected = 2 * steps * kl / math.sqrt(steps * (square - kl**2))
    assert published.uniform_limit_mu(noise, rate, steps) == pytest.approx(expected, rel=1e-3)
    assert published.uniform_limit_mu(noise, rate, steps) > published.central_limit_mu(noise, rate, steps)


def test_the_limits_agree_for_much_noise():
    for noise in (50.0, 9e3, 2e4):
        both = published.uniform_limit_mu(noise, 0.1, 10), published.central_limit_mu(noise, 0.1, 10)
        assert both[0] == pytest.approx(both[1], rel=0.02)


@pytest.mark.parametrize(("mu", "rate"), [(1.0, 0.3), (3.0, 0.05), (0.5, 0.9)])
def test_the_sampling_operator_on_a_gaussian_curve(mu, rate):
    """f_p down to slope -1, a line of slope -1, then the mirror image of the first part."""
    got = published.sampled_curve(gaussian_curve(mu), rate)
    x = got.type_one
    turn = stats.norm.cdf(-mu / 2)  # where G_mu has slope -1, and so has f_p

    def f_p(a):
        return rate * stats.norm.cdf(stats.norm.isf(a) - mu) + (1 - rate) * (1 - a)

    top = f_p(turn)
    first, line, last = x <= turn, (x > turn) & (x < top), x >= top
    assert np.allclose(got.type_two[first], f_p(x[first]), atol=2e-5)
    assert np.allclose(got.type_two[line], turn + top - x[line], atol=2e-5)
    fine = np.concatenate([np.geomspace(1e-12, 1e-3, 20_000), np.linspace(1.0001e-3, 1, 200_000)])
    excess = got.type_two[last] - np.interp(x[last], f_p(fine)[::-1], fine[::-1])
    assert np.all((excess > -1e-9) & (excess < 2e-4))  # chords between the points given lie above


def test_the_sampling_operator_at_its_ends():
    curve = gaussian_curve(1.5, "noise")
    same = published.sampled_curve(curve, 1.0)
    assert np.allclose(same.type_two, curve.type_two, atol=1e-5)
    assert (same.label, same.by) == ("noise", "p-sampling operator")
    assert np.allclose(published.sampled_curve(curve, 1e-9).type_two, 1 - curve.type_one, atol=1e-8)
    little, more = (published.sampled_curve(curve, rate).type_two for rate in (0.1, 0.4))
    assert np.all(little >= more - 1e-12)


def test_the_heads_paper_sensitivity_is_exceeded_by_its_own_mean():
    """FEMNIST: three of 174 silos; replacing one upload of norm C by its opposite moves the mean by 2 C / 3."""
    claimed = published.heads_sensitivity(1.0, 3, 174)
    assert claimed == pytest.approx(6 / 174)
    uploads = np.array([1.0, 0.2, -0.5])
    changed = np.array([-1.0, 0.2, -0.5])
    assert abs(uploads.mean() - changed.mean()) == pytest.approx(2 / 3)
    assert abs(uploads.mean() - changed.mean()) > 19 * claimed


# Moments accountant, PFA


def test_moments_accountant_gives_the_example_of_its_paper():
    """Abadi et al.: rate .01, noise 4, delta 1e-5, 100 epochs of 100 steps: 1.26."""
    assert published.moments_accountant_epsilon(4.0, 0.01, 10_000, 1e-5) == pytest.approx(1.26, abs=0.005)


@pytest.mark.parametrize(("noise", "rate"), [(0.8, 0.2), (2.0, 0.01), (1.0, 1.0)])
@pytest.mark.parametrize("moment", [1, 3, 8])
def test_log_moments_agree_with_integration(noise, rate, moment):
    def inside(x):
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * noise**2))
        return stats.norm.pdf(x, scale=noise) * ratio ** (moment + 1)

    area = integrate.quad(inside, -12 * noise, 12 * noise + moment + 1, limit=400)[0]
    assert published._log_moment(noise, rate, moment) == pytest.approx(math.log(area), rel=1e-6, abs=1e-9)


@settings(max_examples=15)
@given(noise=st.floats(0.5, 20), rate=rates, steps=st.integers(1, 2000))
def test_moments_accountant_is_an_upper_bound(noise, rate, steps):
    loose = published.moments_accountant_epsilon(noise, rate, steps, 1e-5)
    assert loose >= accountant.renyi_epsilon([Event("gaussian", noise, rate, steps)], 1e-5) * 0.999
    assert loose >= accountant.epsilon(noise, rate, steps, 1e-5) * 0.99


def test_the_asymptotic_form_holds_within_its_conditions_and_not_outside():
    """Their proof: min over lambda of T q^2 lambda^2 / s^2 - lambda epsilon = log delta at the noise given."""
    noise, rate, steps, delta = 4.0, 0.01, 10_000, 1e-5
    epsilon = published.moments_epsilon(noise, rate, steps, delta)
    best = min(steps * rate**2 * k**2 / noise**2 - k * epsilon for k in np.linspace(0, 100, 100_001))
    assert best == pytest.approx(math.log(delta), rel=1e-6)
    assert rate < 1 / (16 * noise)
    assert 2 * math.log(1 / delta) / epsilon <= noise**2 * math.log(1 / (rate * noise))
    assert epsilon > published.moments_accountant_epsilon(noise, rate, steps, delta)
    assert published.moments_epsilon(0.6, 0.01, 500, 1e-5) < 2.6 < bounds(0.6, 0.01, 500, 1e-5).lower


@pytest.mark.parametrize(("epsilon", "theirs", "enough"), [(0.1, 133.33, 18.4), (10.0, 1.3333, 0.65)])
def test_pfa_takes_two_to_seven_times_the_noise(epsilon, theirs, enough):
    """Batch 8 of 1,200 examples, 8,000 steps, delta 1e-5."""
    assert published.pfa_noise(epsilon, *PFA) == pytest.approx(theirs, rel=1e-4)
    assert noise_for(Target(epsilon, PFA[2], *PFA[:2])).noise == pytest.approx(enough, rel=0.015)


def test_pfa_is_the_moments_form_with_another_constant():
    constant = 10 / math.sqrt(math.log(10))
    by_ten = 10 * PFA[0] * math.sqrt(PFA[1] * -math.log10(PFA[2])) / 3
    assert published.pfa_noise(3.0, *PFA) == pytest.approx(by_ten, rel=1e-12)
    assert published.moments_noise(3.0, *PFA, constant=constant) == pytest.approx(by_ten, rel=1e-12)


def test_pfa_reports_too_little_for_little_noise():
    lower = bounds(0.4, *PFA).lower
    row = published_for(0.4, *PFA)[1]
    assert row.epsilon == pytest.approx(33.33, abs=0.01)
    assert lower > 40
    said = warning(row, lower)
    assert said.startswith("the formula of Liu, Lou, Xiong, Liu, Meng 2022 (closed form")
    assert "gives epsilon 33.33," in said


# PMTL


def pmtl_truth(epsilon: float, rounds: int, delta: float, silos: int = 205, clip: float = 0.5) -> float:
    """What one replaced silo spends at the noise of the closed form: `rounds` Gaussians at half the multiplier."""
    deviation = published.pmtl_noise(epsilon, rounds, delta, clip, silos)
    return gaussian_epsilon(math.sqrt(rounds) / (silos * deviation / clip / 2), delta)


@settings(max_examples=50)
@given(share=st.floats(1e-3, 1), rounds=st.integers(1, 500), delta=st.floats(1e-8, 0.1))
def test_pmtl_holds_up_to_twice_the_log_of_delta(share, rounds, delta):
    epsilon = share * 2 * math.log(1 / delta)
    assert pmtl_truth(epsilon, rounds, delta) <= epsilon


def test_pmtl_does_not_hold_for_large_epsilon():
    assert pmtl_truth(40.0, 100, 1 / 205) == pytest.approx(59.1, abs=0.1)


# Dual coordinates

DUAL = {"live": 0.8, "rate": 0.1, "ratio": 0.5}


def test_dual_noise_is_lemma_four_composed():
    """Each round sqrt(q^2 e1^2 + e2^2), e = sqrt(2 log(1/delta)) / sigma; p sqrt(K) times that in all."""
    first, second = published.dual_noise(8.0, 2000, 1e-3, DualSetting(**DUAL))
    one, two = (math.sqrt(2 * math.log(1e3)) / sigma for sigma in (first, second))
    assert 0.8 * math.sqrt(2000) * math.hypot(0.1 * one, two) == pytest.approx(8.0, rel=1e-12)
    assert second == pytest.approx(first / 0.5)
    assert published.dual_noise(8.0, 2000, 1e-3, DualSetting(constant=2.0, **DUAL))[0] == pytest.approx(
        first * math.sqrt(2)
    )


def test_dual_noise_is_too_little_where_the_server_sees_who_is_live():
    """Even were the sensitivity public: 1,000 of 2,000 rounds, live with chance one half."""
    _, second = published.dual_noise(8.0, 2000, 1e-3, DualSetting(live=0.5, rate=0.01, ratio=1.0))
    assert gaussian_epsilon(math.sqrt(1000) / second, 1e-3) > 12


# All of them

PAIRS = {
    "classic": lambda e, q, t, d: published.classic_epsilon(published.classic_noise(e, d), d),
    "moments": lambda e, q, t, d: published.moments_epsilon(published.moments_noise(e, q, t, d), q, t, d),
    "pfa": lambda e, q, t, d: published.pfa_epsilon(published.pfa_noise(e, q, t, d), q, t, d),
    "pmtl": lambda e, q, t, d: published.pmtl_epsilon(published.pmtl_noise(e, t, d, q, 30), t, d, q, 30),
    "dual": lambda e, q, t, d: published.dual_epsilon(
        published.dual_noise(e, t, d, DualSetting(q, q, 2.0))[0], t, d, DualSetting(q, q, 2.0)
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=20)
@given(epsilon=epsilons, rate=rates, steps=counts, delta=deltas)
def test_inverses_round_trip(name, epsilon, rate, steps, delta):
    assert PAIRS[name](epsilon, rate, steps, delta) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(
    "formula",
    [
        published.central_limit_epsilon,
        published.moments_epsilon,
        published.moments_accountant_epsilon,
        published.pfa_epsilon,
    ],
)
@settings(max_examples=10)
@given(noise=st.floats(0.4, 30), rate=st.floats(1e-3, 0.5), steps=counts, delta=deltas)
def test_less_noise_more_steps_larger_samples_cost_more(formula, noise, rate, steps, delta):
    cost = formula(noise, rate, steps, delta)
    for dearer in (
        (noise / 2, rate, steps, delta),
        (noise, 2 * rate, steps, delta),
        (noise, rate, 2 * steps, delta),
        (noise, rate, steps, delta / 10),
    ):
        assert formula(*dearer) >= cost * (1 - 1e-6)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: published_for(-1.0, 0.1, 10, 1e-5), "noise must be a number >= 0, got -1"),
        (lambda: published_for(1.0, 0.0, 10, 1e-5), r"rate must be a number in \(0, 1\], got 0"),
        (lambda: published_for(1.0, 0.1, 2.5, 1e-5), r"steps must be a whole number >= 1, got 2\.5"),
        (lambda: published_for(1.0, 0.1, 10, 2), r"delta must be a number in \(0, 1\), got 2"),
        (lambda: published.classic_noise(0.0, 1e-5), "epsilon must be a number > 0, got 0"),
        (lambda: published.classic_epsilon(math.nan, 1e-5), "noise must be a number >= 0, got nan"),
        (lambda: published.central_limit_mu(1.0, 1.5, 10), r"rate must be a number in \(0, 1\], got 1\.5"),
        (lambda: published.uniform_limit_mu(1.0, 0.5, 0), "steps must be a number > 0, got 0"),
        (lambda: published.central_limit_epsilon(-2.0, 0.5, 1, 1e-5), "noise must be a number >= 0, got -2"),
        (lambda: published.heads_sensitivity(1.0, 5, 4), "cohort must be at most the 4 silos, got 5"),
        (lambda: published.heads_sensitivity(-1.0, 1, 4), "clip must be a number > 0, got -1"),
        (
            lambda: published.sampled_curve(gaussian_curve(1.0), 0),
            r"rate must be a number in \(0, 1\], got 0",
        ),
        (
            lambda: published.moments_noise(1.0, 0.1, 10, 1e-5, constant=0),
            "constant must be a number > 0, got 0",
        ),
        (
            lambda: published.moments_accountant_epsilon(1.0, 0.1, 0, 1e-5),
            "steps must be a whole number >= 1",
        ),
        (lambda: published.pfa_noise(math.nan, 0.1, 10, 1e-5), "epsilon must be a number > 0, got nan"),
        (lambda: published.pmtl_noise(1.0, 10, 1e-5, 1.0, 0), "silos must be a number > 0, got 0"),
        (lambda: published.pmtl_epsilon(-1.0, 10, 1e-5, 1.0, 3), "deviation must be a number >= 0, got -1"),
        (
            lambda: published.dual_noise(1.0, 10, 1e-5, DualSetting(live=0, rate=1, ratio=1)),
            r"live must be a number in \(0, 1\]",
        ),
        (
            lambda: published.dual_epsilon(1.0, 10, 1e-5, DualSetting(live=1, rate=1, ratio=0)),
            "ratio must be a number > 0, got 0",
        ),
    ],
)
def test_refusals(call, said):
    with pytest.raises(Problem, match=said):
        call()
