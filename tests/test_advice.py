"""Forecasts for silos that differ in size and budget: formulas against simulations, and the command."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import chi2

from coterie.privacy.accountant import epsilon as certified
from coterie.theory import advice as theory
from coterie.theory import mean_estimation as equal
from coterie.theory.advice import Circle
from tests.helpers import call, refused

DRAWS = 40_000
CIRCLES = {
    "mixed": Circle([3, 10, 40, 7, 25], [1.0, 6.0, 2.0, 0.0, 9.0], 0.4),
    "two": Circle([2, 30], [0.5, 0.0], 1.0),
    "one is public": Circle([50, 5, 6, 4], [0.0, 8.0, 8.0, 8.0], 0.3),
}
SPREADS = (0.0, 0.1, 0.7)
LAMS = (0.0, 0.4, 3.0, math.inf)
each_circle = pytest.mark.parametrize("circle", CIRCLES.values(), ids=CIRCLES)
each_spread = pytest.mark.parametrize("spread", SPREADS)
circles = st.lists(
    st.tuples(st.integers(1, 1000), st.one_of(st.just(0.0), st.floats(0.01, 100))), min_size=2, max_size=12
).map(lambda silos: Circle([n for n, _ in silos], [z for _, z in silos], 0.5))


def drawn(circle: Circle, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw centres, then every example, then noise on the sum: centres and published means `[draws, silos]`."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(3.0, spread, (DRAWS, len(circle.examples)))
    published = np.empty_like(centres)
    for k, (size, noise) in enumerate(zip(circle.examples, circle.noise, strict=True)):
        total = generator.normal(0, noise, DRAWS)
        for _ in range(size):
            total += generator.normal(centres[:, k], circle.deviation)
        published[:, k] = total / size
    return centres, published


def agrees(misses: np.ndarray, expected: np.ndarray) -> bool:
    """Tell whether misses `[draws, silos]`, Gaussian around 0, have these variances.

    The sum of squares over the variance is chi-squared with a degree for each draw, so that all silos of a
    right formula agree but once in a million times.
    """
    chance = 1e-6 / 2 / misses.shape[1]
    ratio = (misses**2).sum(0) / expected
    return bool(((ratio > chi2.ppf(chance, DRAWS)) & (ratio < chi2.isf(chance, DRAWS))).all())


def mean_of_all(circle: Circle, published: np.ndarray) -> np.ndarray:
    return np.average(published, axis=1, weights=circle.examples)[:, None]


def best_weights(circle: Circle, spread: float) -> np.ndarray:
    """Solve for the unbiased weighting of least error of each silo, by Lagrange's equations."""
    silos = len(circle.examples)
    covariance = np.diag(circle.variances + spread**2)
    system = np.block([[covariance, np.ones((silos, 1))], [np.ones((1, silos)), np.zeros((1, 1))]])
    right = np.vstack([spread**2 * np.eye(silos), np.ones((1, silos))])
    return np.linalg.solve(system, right)[:silos].T


# --- against simulations


@each_circle
@each_spread
def test_local_and_fedavg_agree_with_a_simulation(circle, spread):
    centres, published = drawn(circle, spread)
    assert agrees(published - centres, theory.local_errors(circle))
    assert agrees(mean_of_all(circle, published) - centres, theory.fedavg_errors(circle, spread))


@each_circle
@each_spread
@pytest.mark.parametrize("lam", LAMS)
def test_mr_mtl_agrees_with_a_simulation(circle, spread, lam):
    centres, published = drawn(circle, spread, seed=1)
    pulled = 1.0 if math.isinf(lam) else lam / (1 + lam)
    guess = published + pulled * (mean_of_all(circle, published) - published)
    assert agrees(guess - centres, theory.mr_mtl_errors(circle, spread, lam))


@each_circle
@each_spread
def test_the_best_weighting_agrees_with_a_simulation(circle, spread):
    centres, published = drawn(circle, spread, seed=2)
    trust = 1 / (circle.variances + spread**2)
    theta = (published * trust).sum(1, keepdims=True) / trust.sum()
    guess = theta + spread**2 * trust * (published - theta)
    assert agrees(guess - centres, theory.best_errors(circle, spread))


def test_a_simulation_would_notice_a_wrong_formula():
    """The same draws reject weights by number of silos, errors without a silo's own part, another lam."""
    circle, spread = CIRCLES["mixed"], 0.7
    centres, published = drawn(circle, spread, seed=1)
    alike = Circle([17] * 5, circle.noise, circle.deviation)
    whole = circle.blurred + spread**2 * (1 - circle.shares) ** 2
    average = mean_of_all(circle, published)
    for wrong in (theory.fedavg_errors(alike, spread), whole, 1.05 * theory.fedavg_errors(circle, spread)):
        assert not agrees(average - centres, wrong)
    pulled = published + 0.5 * (average - published)
    assert agrees(pulled - centres, theory.mr_mtl_errors(circle, spread, 1.0))
    assert not agrees(pulled - centres, theory.mr_mtl_errors(circle, spread, 0.8))


# --- against the theory of equal silos, and against brute force


@given(
    silos=st.integers(2, 60),
    examples=st.integers(1, 1000),
    noise=st.floats(0, 100),
    spread=st.floats(0, 10),
    lam=st.floats(0, 100),
)
def test_equal_silos_are_those_of_the_paper(silos, examples, noise, spread, lam):
    circle = Circle([examples] * silos, [noise] * silos, 0.5)
    model = equal.MeanEstimation(
        silos=silos, examples=examples, deviation=0.5, silo_spread=spread, noise=noise
    )

    def same(found, expected):
        return np.allclose(found, expected, rtol=1e-9, atol=0)

    found = theory.forecast(circle, spread)
    assert same(found.local, equal.local_error(model))
    assert same(found.fedavg, equal.fedavg_error(model))
    assert same(found.lam, equal.best_lam(model))
    assert same(found.mr_mtl, equal.best_error(model))
    assert same(found.best, equal.best_error(model))
    assert same(theory.mr_mtl_errors(circle, spread, lam), equal.error(model, lam))
    assert theory.joining_ranges(circle) == [(0.0, math.inf)] * silos


@given(circle=circles, spread=st.floats(0, 10), lam=st.floats(0, 100))
def test_errors_are_those_of_the_weights(circle, spread, lam):
    silos = len(circle.examples)
    alone, together = np.eye(silos), np.tile(circle.shares, (silos, 1))
    pairs = [
        (alone, theory.local_errors(circle)),
        (together, theory.fedavg_errors(circle, spread)),
        ((alone + lam * together) / (1 + lam), theory.mr_mtl_errors(circle, spread, lam)),
        (best_weights(circle, spread), theory.best_errors(circle, spread)),
    ]
    for weights, errors in pairs:
        assert np.allclose(weights.sum(1), 1)
        assert np.allclose(theory.weighting_errors(circle, spread, weights), errors, rtol=1e-6)


@given(circle=circles, spread=st.floats(0.01, 10))
def test_no_lam_is_better_for_all_than_the_common_one(circle, spread):
    def total(pull: float) -> float:
        lam = math.inf if pull >= 1 else pull / (1 - pull)
        return float((circle.shares * theory.mr_mtl_errors(circle, spread, lam)).sum())

    found = minimize_scalar(total, bounds=(0, 1), method="bounded", options={"xatol": 1e-10}).fun
    lam = theory.common_lam(circle, spread)
    least = total(lam / (1 + lam))
    assert least <= found * (1 + 1e-9)
    assert least <= min(total(0.0), total(1.0)) * (1 + 1e-9)


@given(circle=circles, spread=st.floats(0, 10))
def test_no_method_beats_the_best_weighting(circle, spread):
    found = theory.forecast(circle, spread)
    for errors in (found.local, found.mr_mtl, found.fedavg):
        assert (found.best <= errors * (1 + 1e-9)).all()


@given(circle=circles, spread=st.floats(0.01, 3))
def test_a_silo_gains_within_its_range_only(circle, spread):
    found = theory.forecast(circle, spread)
    limits = theory.fedavg_limits(circle)
    for k, where in enumerate(theory.joining_ranges(circle)):
        inside = where is not None and where[0] < spread < where[1]
        if abs(found.mr_mtl[k] - found.local[k]) > 1e-9 * found.local[k]:
            assert inside == found.gains[k]
        if abs(found.fedavg[k] - found.local[k]) > 1e-9 * found.local[k]:
            assert (spread < limits[k]) == (found.fedavg[k] < found.local[k])


@given(circle=circles)
def test_a_silo_is_indifferent_at_the_end_of_its_range(circle):
    for k, where in enumerate(theory.joining_ranges(circle)):
        for end in where or ():
            if 1e-3 < end < 1e3:
                found = theory.forecast(circle, end)
                assert found.mr_mtl[k] == pytest.approx(found.local[k], rel=1e-9)
        limit = theory.fedavg_limits(circle)[k]
        if limit > 1e-3:
            assert theory.fedavg_errors(circle, limit)[k] == pytest.approx(circle.variances[k], rel=1e-9)


@pytest.mark.parametrize(
    ("sizes", "noise", "kind"),
    [
        ([10, 10, 10, 90], [30.0, 30.0, 30.0, 0.0], "any"),
        ([90, 10, 10, 10], [0.0, 30.0, 30.0, 30.0], "never"),
        ([167, 151, 82], [0.3, 0.2, 9.6], "below"),
        ([3, 118, 25], [0.3, 51.6, 0.4], "above"),
    ],
)
def test_a_range_may_be_of_four_kinds(sizes, noise, kind):
    """The closed form for the first silo, against its errors at many tau."""
    circle = Circle(sizes, noise, 0.5)
    grid = np.logspace(-3, 2, 2001)
    gains = np.array([theory.forecast(circle, tau).gains[0] for tau in grid])
    where = theory.joining_ranges(circle)[0]
    if kind in ("any", "never"):
        assert where == ((0.0, math.inf) if kind == "any" else None)
        assert (gains == (kind == "any")).all()
        return
    assert where is not None
    turn = where[1] if kind == "below" else where[0]
    assert where == ((0.0, turn) if kind == "below" else (turn, math.inf))
    assert (gains == ((grid < turn) == (kind == "below"))).all()
    assert gains.any()
    assert not gains.all()


@given(circle=circles, low=st.floats(0.01, 1), high=st.floats(1, 10), share=st.floats(0, 1))
def test_who_gains_at_both_ends_gains_between(circle, low, high, share):
    ends = theory.forecast(circle, low), theory.forecast(circle, high)
    between = theory.forecast(circle, low + share * (high - low))
    clear = np.all([abs(f.mr_mtl - f.local) > 1e-9 * f.local for f in (*ends, between)], 0)
    assume(clear.any())
    assert between.gains[clear & ends[0].gains & ends[1].gains].all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Circle([5], [1.0], 0.5), "only one silo"),
        (lambda: Circle([5, 0], [1.0, 1.0], 0.5), "at least one example"),
        (lambda: Circle([5, 5], [1.0, -1.0], 0.5), "finite number >= 0"),
        (lambda: Circle([5, 5], [1.0, math.inf], 0.5), "finite number >= 0"),
        (lambda: Circle([5, 5], [1.0], 0.5), "one number for each silo"),
        (lambda: Circle([5, 5], [1.0, 1.0], 0.0), "deviation must be a number from"),
        (lambda: Circle([5, 5], [1.0, 1.0], math.nan), "deviation must be a number from"),
        (lambda: theory.forecast(CIRCLES["two"], -1.0), "spread must be a number from 0"),
        (lambda: theory.mr_mtl_errors(CIRCLES["two"], 1.0, -1.0), "lam must be a number >= 0"),
    ],
)
def test_impossible_numbers_are_refused(wrong, said):
    with refused(said):
        wrong()


# --- the command


def facts(monkeypatch, capsys, *arguments) -> dict:
    code, out, _ = call(monkeypatch, capsys, "advise", *arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_the_command_forecasts_every_silo(config, monkeypatch, capsys):
    found = facts(monkeypatch, capsys, config)
    assert "forecast from a model" in found["model"]
    assert "not a measurement" in found["model"]
    assert "no examples" in found["model"]
    (one,) = found["forecasts"]
    assert one["deviation"] == 0.5
    assert one["spread"] == {"low": 0.05, "high": 0.5}
    silos = one["silos"]
    assert list(silos) == ["silo-0", "silo-1", "silo-2"]
    assert [silo["epsilon"] for silo in silos.values()] == [1, 4, 1]
    for silo in silos.values():
        assert 0.99 * silo["epsilon"] < certified(silo["noise"], 1.0, 1, 1e-3) <= silo["epsilon"]
    sizes = [silo["examples"] for silo in silos.values()]
    circle = Circle(sizes, [silo["noise"] for silo in silos.values()], 0.5)
    for end in ("low", "high"):
        expected = theory.forecast(circle, one["spread"][end])
        assert one["lam"][end] == pytest.approx(expected.lam)
        assert one["gain"][end] == expected.gains.sum()
        for k, silo in enumerate(silos.values()):
            assert silo["local"] == pytest.approx(expected.local[k])
            assert silo[end]["mr-mtl"] == pytest.approx(expected.mr_mtl[k])
            assert silo[end]["fedavg"] == pytest.approx(expected.fedavg[k])
            assert silo[end]["best"] == pytest.approx(expected.best[k])
            assert silo[end]["gains"] == expected.gains[k]


def test_clip_and_deviation_set_the_scale(config, monkeypatch, capsys):
    """All in units of the clip: with twice the clip and the same file, errors are four times as large."""
    plain = facts(monkeypatch, capsys, config)["forecasts"][0]
    double = facts(monkeypatch, capsys, config, "--set", "privacy.clip=2")["forecasts"][0]
    assert double["deviation"] == 2 * plain["deviation"]
    assert double["silos"]["silo-0"]["local"] == pytest.approx(4 * plain["silos"]["silo-0"]["local"])
    own = facts(monkeypatch, capsys, config, "--deviation", 0.2, "--spread", 0, 0.3)["forecasts"][0]
    assert own["deviation"] == 0.2
    assert own["spread"] == {"low": 0, "high": 0.3}
    assert own["lam"]["low"] is None
    silo = own["silos"]["silo-1"]
    variance = 0.2**2 / silo["examples"] + silo["noise"] ** 2 / silo["examples"] ** 2
    assert silo["local"] == pytest.approx(variance)
    assert silo["low"]["mr-mtl"] == pytest.approx(silo["low"]["fedavg"])


def test_a_silo_without_privacy_has_no_noise(config, monkeypatch, capsys):
    change = 'privacy.epsilon={"silo-0"=inf,default=0.05}'
    silos = facts(monkeypatch, capsys, config, "--set", change)["forecasts"][0]["silos"]
    assert silos["silo-0"]["noise"] == 0
    assert silos["silo-0"]["epsilon"] is None
    assert silos["silo-0"]["local"] == pytest.approx(0.25 / silos["silo-0"]["examples"])
    assert silos["silo-0"]["joining_pays"] is None
    assert silos["silo-1"]["joining_pays"] == {"above": 0, "below": None}


def test_lists_of_budgets_are_forecast_one_by_one(config, monkeypatch, capsys):
    change = ("--set", "privacy.epsilon=[1, 8]", "--set", "privacy.clip=[1, 2]")
    found = facts(monkeypatch, capsys, config, *change)["forecasts"]
    assert [one["settings"] for one in found] == [
        {"epsilon": e, "clip": c} for e in (1, 8) for c in (1, 2)
    ]  # fmt: skip


def test_the_table_says_who_gains_and_that_it_is_a_forecast(config, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "advise", config, "--set", "data.silos=30")
    assert code == 0
    assert "Forecast (not measured)" in out
    assert "30 of 30 silos gain by joining if silos differ by tau from 0.05 up to 0.5." in out
    assert "10 more silos: --json shows all" in out
    assert "not a measurement" in out
    assert "any" in out
    code, out, _ = call(monkeypatch, capsys, "advise", config, "--spread", 0.2, 0.2)
    assert "of 3 silos gain by joining if silos differ by tau = 0.2." in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--spread", "-0.1", "1"], "spread must be a number from 0"),
        (["--spread", "nan", "1"], "spread must be a number from 0"),
        (["--spread", "0.1", "inf"], "spread must be a number from 0"),
        (["--spread", "2", "1"], "the low end 2 is above the high end 1"),
        (["--deviation", "0"], "deviation must be a number from"),
        (["--deviation", "-1"], "deviation must be a number from"),
        (["--set", "privacy.epsilon=inf"], "every budget is inf"),
        (["--set", "privacy.unit=silo"], "advice is for the units 'example' and 'person'"),
        (["--set", "data.silos=1"], "only one silo"),
    ],
)
def test_bad_input_is_one_sentence(config, monkeypatch, capsys, arguments, said):
    code, out, err = call(monkeypatch, capsys, "advise", config, *arguments)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
