"""Trade-off curves: against closed forms, attacks by simulation, and the certified epsilon."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from coterie.errors import Problem
from coterie.privacy import accountant, tradeoff
from coterie.privacy.events import Event
from coterie.privacy.published.formulas import central_limit_mu, sampled_curve
from coterie.privacy.tradeoff import CERTIFIED, TradeOff, certified_curve, gaussian_curve, misses, supported
from coterie.report.tradeoff_plot import noise_panel, tradeoff_figure

SAMPLED = (Event("gaussian", 0.6, 0.01, 500),)
KINDS = {
    "sampled": SAMPLED,
    "fixed size": (Event("gaussian", 2.0, 0.1, 50, "fixed"),),
    "laplace": (Event("laplace", 1.5, count=3),),
    "selection": (Event("selection", 1.0, count=2),),
    "mixed": (Event("gaussian", 2.0, 0.1, 50), Event("gaussian", 3.0), Event("selection", 2.0)),
}


# Closed forms


@pytest.mark.parametrize("noise", [0.4, 1.0, 5.0, 60.0])
@pytest.mark.parametrize(("adjacency", "reach"), [("zero-out", 1), ("replace-one", 2)])
def test_one_gaussian_has_the_gaussian_curve(noise, adjacency, reach):
    certified = certified_curve([Event("gaussian", noise)], adjacency=adjacency).type_two
    exact = gaussian_curve(reach / noise).type_two
    assert np.all(certified <= exact + 1e-12)
    assert np.allclose(certified, exact, atol=1e-5)


def test_gaussians_compose_to_one():
    certified = certified_curve([Event("gaussian", 4.0, count=9), Event("gaussian", 2.0)]).type_two
    assert np.allclose(certified, gaussian_curve(math.sqrt(9 / 16 + 1 / 4)).type_two, atol=1e-5)


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_gaussian_curve_is_the_error_of_a_threshold(mu):
    """N(0, 1) against N(mu, 1): the best test says yes above a threshold."""
    threshold = np.linspace(-3, 6, 20)
    at = np.concatenate([[0.0], stats.norm.sf(threshold)[::-1], [1.0]])
    curve = gaussian_curve(mu, type_one=at).type_two
    assert np.allclose(curve[1:-1][::-1], stats.norm.cdf(threshold - mu), atol=1e-12)
    assert (curve[0], curve[-1]) == (1, 0)


def test_one_laplace_has_its_closed_form():
    """Telling Laplace noise around 0 from that around 1, scale b: e = 1 / b."""
    scale = 0.8
    curve = certified_curve([Event("laplace", scale)])
    a, e = curve.type_one, 1 / scale
    middle = np.exp(-e) / (4 * np.maximum(a, 1e-9))
    exact = np.where(
        a < math.exp(-e) / 2, 1 - math.exp(e) * a, np.where(a <= 0.5, middle, math.exp(-e) * (1 - a))
    )
    assert np.all(curve.type_two <= exact + 1e-12)
    assert np.allclose(curve.type_two, exact, atol=1e-4)


@pytest.mark.parametrize(("noise", "rate"), [(0.8, 0.2), (2.0, 0.5), (0.3, 0.01)])
def test_one_sampled_gaussian_has_the_curve_of_the_sampling_operator(noise, rate):
    certified = certified_curve([Event("gaussian", noise, rate)]).type_two
    operator = sampled_curve(gaussian_curve(1 / noise, type_one=_fine()), rate)
    operator_at = np.interp(certified_curve([]).type_one, operator.type_one, operator.type_two)
    assert np.all(certified <= operator_at + 1e-7)
    assert np.allclose(certified, operator_at, atol=1e-4)


def _fine(points: int = 10_000) -> np.ndarray:
    return np.concatenate([[0.0], np.geomspace(1e-8, 9e-4, points), np.linspace(1e-3, 1, points)])


def test_one_pair_is_two_lines():
    """(log 3, 0): the lines 1 - 3 a and (1 - a) / 3 meet at a = 1/4; a delta moves both down."""
    at = np.array([0.0, 0.1, 0.25, 0.7, 1.0])
    assert np.allclose(supported(math.log(3), 0.0, at), [1, 0.7, 0.25, 0.1, 0])
    assert np.allclose(supported(math.log(3), 0.3, at), [0.7, 0.4, 0.15, 0, 0])
    assert np.allclose(supported([math.log(3), 0.0], [0.0, 0.2], at), [1, 0.7, 0.55, 0.1, 0])
    assert np.allclose(supported([math.inf, 1e9], [0.0, 0.0], at), 0)


# Attacks


def errors_of_attacks(scores_without: np.ndarray, scores_with: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Type II errors of the tests "yes above a threshold", at type I errors found in the first sample."""
    threshold = np.quantile(scores_without, 1 - at)
    return np.searchsorted(np.sort(scores_with), threshold, side="right") / len(scores_with)


@pytest.mark.parametrize(("noise", "rate", "steps"), [(0.8, 0.2, 1), (1.0, 0.3, 20)])
def test_the_best_attack_comes_as_near_as_the_curve_and_no_nearer(noise, rate, steps):
    """Neyman and Pearson: the log-likelihood ratio is the best score; both ways round, by simulation."""
    generator = np.random.default_rng(0)
    count = 200_000 if steps == 1 else 50_000
    without = noise * generator.normal(size=(count, steps))
    used = generator.random((count, steps)) < rate
    with_it = noise * generator.normal(size=(count, steps)) + used

    def ratio(seen):
        return np.log1p(rate * np.expm1((2 * seen - 1) / (2 * noise**2))).sum(1)

    at = np.array([0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
    curve = certified_curve([Event("gaussian", noise, rate, steps)], type_one=[0, *at, 1]).type_two[1:-1]
    one_way = errors_of_attacks(ratio(without), ratio(with_it), at)
    other_way = errors_of_attacks(-ratio(with_it), -ratio(without), at)
    slack = 4 / math.sqrt(count)  # four deviations of an error, and of the threshold
    assert np.all(curve <= np.minimum(one_way, other_way) + slack)
    assert np.all(np.minimum(one_way, other_way) - curve < 0.02)
    assert abs(min(one_way[0], other_way[0]) - curve[0]) < slack


# Shape


@pytest.mark.parametrize("kind", KINDS)
def test_curves_are_convex_decreasing_symmetric_and_below_guessing(kind):
    curve = certified_curve(KINDS[kind], kind)
    slopes = np.diff(curve.type_two) / np.diff(curve.type_one)
    assert np.all(np.diff(slopes) >= -1e-7)
    assert np.all(slopes <= 1e-12)
    assert np.all(curve.type_two <= 1 - curve.type_one)
    assert (curve.label, curve.by) == (kind, CERTIFIED)
    again = np.interp(curve.type_two, curve.type_one, curve.type_two)
    inside = (curve.type_one > 0.002) & (curve.type_two > 0.002)
    assert np.allclose(again[inside], curve.type_one[inside], atol=1e-3)


def test_more_noise_fewer_steps_and_smaller_samples_protect_more():
    base = certified_curve([Event("gaussian", 1.0, 0.05, 100)]).type_two
    for better in (Event("gaussian", 1.5, 0.05, 100), Event("gaussian", 1.0, 0.05, 50)):
        assert np.all(certified_curve([better]).type_two >= base - 1e-9)
    assert np.all(certified_curve([Event("gaussian", 1.0, 0.02, 100)]).type_two >= base - 1e-9)
    replaced = certified_curve([Event("gaussian", 1.0, 0.05, 100)], adjacency="replace-one").type_two
    assert np.all(replaced <= base + 1e-9)


# Epsilon and delta


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delta", [1e-5, 1e-3, 0.05])
def test_curves_lie_above_the_lines_of_the_certified_epsilon(kind, delta):
    epsilon = accountant.epsilon_of(KINDS[kind], delta)
    curve = certified_curve(KINDS[kind])
    assert np.all(curve.type_two >= supported(epsilon, delta, curve.type_one) - 2e-4)


@pytest.mark.parametrize("delta", [1e-4, 1e-2])
def test_the_certified_epsilon_can_be_read_off_the_curve(delta):
    """delta(e) = max over a of 1 - f(a) - e^e a (Dong, Roth, Su 2022, section 2.3)."""
    known = accountant.bounds(SAMPLED, delta, tight=True)
    curve = certified_curve(SAMPLED, type_one=_fine(2000))

    def read(epsilon):
        return np.max(1 - curve.type_two - math.exp(epsilon) * curve.type_one)

    assert read(known.upper) <= delta * 1.01
    assert read(0.97 * known.lower) > delta


def test_the_central_limit_promises_too_much_to_attackers_who_want_to_be_sure():
    """Noise .6, rate .01, 500 steps: it sees 2.6 times fewer members caught at one false alarm in 100,000."""
    at = [0, 1e-5, 0.2, 1]
    certified = 1 - certified_curve(SAMPLED, type_one=at).type_two
    limit = 1 - gaussian_curve(central_limit_mu(0.6, 0.01, 500), type_one=at).type_two
    assert certified[1] == pytest.approx(2.6 * limit[1], rel=0.02)
    assert certified[2] < limit[2]


# Ends


def test_no_events_no_noise_and_endless_noise():
    guessing = certified_curve([])
    assert np.array_equal(guessing.type_two, 1 - guessing.type_one)
    assert np.array_equal(certified_curve([Event("gaussian", math.inf)]).type_two, guessing.type_two)
    assert not certified_curve([Event("gaussian", 0.0)]).type_two.any()
    assert not certified_curve([Event("gaussian", 5.0), Event("laplace", 0.0)]).type_two.any()
    assert np.allclose(gaussian_curve(0.0).type_two, guessing.type_two, atol=1e-15)
    assert not gaussian_curve(math.inf).type_two.any()
    assert certified_curve([Event("gaussian", 0.01, 0.5, 100)]).type_two.max() < 1e-6


def test_where_no_distribution_can_be_computed_renyi_privacy_bounds_the_curve(monkeypatch):
    exact = certified_curve(SAMPLED).type_two

    def too_long(*_, **__):
        raise MemoryError

    monkeypatch.setattr(tradeoff, "distribution", too_long)
    looser = certified_curve(SAMPLED).type_two
    assert np.all(looser <= exact + 1e-9)
    assert looser[0] > 0.999
    assert looser[60] > 0.8
    assert not certified_curve(SAMPLED, adjacency="replace-one").type_two.any()


def test_misses_are_read_at_the_next_point():
    curve = TradeOff("", CERTIFIED, np.array([0, 0.5, 1]), np.array([1, 0.3, 0]))
    assert [misses(curve, a) for a in (0, 0.1, 0.5, 0.6, 1)] == [1, 0.3, 0.3, 0, 0]


def test_a_curve_cannot_be_changed():
    given = np.array([0.0, 1.0])
    curve = TradeOff("", CERTIFIED, given, given[::-1])
    given[0] = 0.7
    assert curve.type_one[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        curve.type_two[0] = 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        curve.label = "other"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gaussian_curve(-1.0), "mu must be a number >= 0, got -1"),
        (lambda: gaussian_curve(math.nan), "mu must be a number >= 0, got nan"),
        (lambda: gaussian_curve(1.0, type_one=[0, 0.5, 0.5, 1]), "type_one must increase from 0 to 1"),
        (lambda: gaussian_curve(1.0, type_one=[0.1, 1]), "type_one must increase from 0 to 1"),
        (
            lambda: certified_curve(SAMPLED, type_one=[0.0, 2.0]),
            r"type_one must be two or more numbers in \[0, 1\]",
        ),
        (
            lambda: certified_curve(SAMPLED, adjacency="zero"),
            "unknown adjacency 'zero'; did you mean 'zero-out'",
        ),
        (
            lambda: TradeOff("", "", [0, 1], [0.5, 0.2, 0]),
            "type_two must have as many numbers as type_one, 2, got 3",
        ),
        (
            lambda: TradeOff("", "", [0, 1], [math.nan, 0]),
            r"type_two must be two or more numbers in \[0, 1\]",
        ),
        (lambda: misses(gaussian_curve(1.0), -0.1), r"false alarms must be a number in \[0, 1\], got -0\.1"),
        (lambda: tradeoff_figure({}), "panels must map one or more titles"),
        (lambda: tradeoff_figure({"a": []}), "panels must map one or more titles"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(Problem, match=said):
        call()


# The picture


def test_a_panel_has_the_certified_curve_and_the_limit_for_each_noise():
    panel = noise_panel((0.65, 9.69), 3 / 174, 1000)
    assert [(curve.label, curve.by) for curve in panel] == [
        ("noise 0.65", "certified"),
        ("noise 0.65", "central limit"),
        ("noise 9.69", "certified"),
        ("noise 9.69", "central limit"),
    ]
    assert np.array_equal(panel[3].type_two, gaussian_curve(central_limit_mu(9.69, 3 / 174, 1000)).type_two)
    assert np.array_equal(
        panel[2].type_two, certified_curve([Event("gaussian", 9.69, 3 / 174, 1000)]).type_two
    )


def test_the_picture_says_what_it_shows(tmp_path):
    from matplotlib import image

    two = [
        dataclasses.replace(gaussian_curve(mu, "noise 1"), by=by)
        for mu, by in ((1, "certified"), (0.8, "paper"))
    ]
    panels = {"First": two, "Second": [gaussian_curve(3.0, "noise 2")]}
    figure = tradeoff_figure(panels, "one hospital")
    figure.savefig(tmp_path / "curves.png", dpi=130)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    pixels = image.imread(tmp_path / "curves.png")
    assert min(pixels.shape[:2]) > 1000
    assert 0.01 < np.mean(pixels[..., :3] < 0.9) < 0.3
    assert "whether the data of one hospital was used?" in figure.get_suptitle()
    assert [axes.get_title() for axes in figure.axes[:2]] == ["First", "Second"]
    assert "type I error" in figure.axes[0].get_xlabel()
    assert "type II error" in figure.axes[0].get_ylabel()
    assert [text.get_text() for text in figure.axes[4].get_legend().get_texts()] == [
        "95.0 %   blind guessing",
        "74.0 % or more   noise 1, certified",
        "80.0 %   noise 1, estimate (paper)",
    ]
    solid, dashed = figure.axes[0].get_lines()[1:3]
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert solid.get_color() == dashed.get_color()
