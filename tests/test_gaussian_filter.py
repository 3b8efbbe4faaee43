"""Approximate Gaussian privacy: of compositions, and of runs that are chosen one after another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from coterie.errors import Problem
from coterie.privacy import gaussian
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.approximate_gaussian import approximate_mu, approximation, mu_of, mu_within
from coterie.privacy.events import Event
from coterie.privacy.ledger import filters
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.recheck import recheck_mu
from tests.books import DELTA, ledger, plan, spent


def sampled(noise, rate, count, sampler="poisson"):
    return (Event("gaussian", noise, rate, count, sampler),)


def test_gaussians_without_sampling_are_exact():
    assert approximation((Event("gaussian", 3.0, count=9),), 1e-5) == (1.0, 0.0)
    assert approximation((Event("gaussian", 3.0, count=9),), 1e-5, "replace-one") == (2.0, 0.0)
    assert approximation((), 1e-5) == (0.0, 0.0)
    assert approximate_mu(sampled(1e-9, 0.5, 3), 1e-5) == math.inf


def true_deltas(noise, rate, epsilons):
    """Delta of one Poisson-sampled sum in the worse direction, by summing over a fine grid."""
    x = np.arange(-14 * noise, 14 * noise + 1, noise / 5000)
    plain, there = (
        np.exp(-(((x - at) / noise) ** 2) / 2) / math.sqrt(2 * math.pi) / 5000 for at in (0.0, 1.0)
    )
    mixed = (1 - rate) * plain + rate * there
    both = [(mixed, plain), (plain, mixed)]
    return [max(float(np.maximum(a - math.exp(e) * b, 0).sum()) for a, b in both) for e in epsilons]


@pytest.mark.parametrize(("noise", "rate", "delta0"), [(1.0, 0.3, 1e-4), (0.7, 0.05, 1e-6), (3.0, 0.5, 1e-3)])
def test_one_sampled_sum_against_its_definition(noise, rate, delta0):
    mu = approximate_mu(sampled(noise, rate, 1), delta0)
    epsilons = np.linspace(0, 1.5 * epsilon_of(sampled(noise, rate, 1), delta0), 41)
    true = true_deltas(noise, rate, epsilons)
    allowed, less = (
        [delta0 + (1 - delta0) * gaussian.delta_of(value, e) for e in epsilons] for value in (mu, 0.98 * mu)
    )
    assert all(a <= b + 1e-9 for a, b in zip(true, allowed, strict=True))
    assert any(a > b for a, b in zip(true, less, strict=True))  # it is hardly larger than needed


@pytest.mark.parametrize(
    "events",
    [
        sampled(5.0, 0.3, 603),
        sampled(0.6, 0.01, 500),
        sampled(4.0, 0.1, 50, "fixed"),
        (*sampled(4.0, 0.5, 20), Event("selection", 8.0, count=5)),
        (*sampled(4.0, 0.5, 20), Event("laplace", 8.0, count=5), Event("gaussian", 5.0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_dp_accounting_confirms_mu_and_not_less(events, adjacency):
    mu, delta0 = approximation(events, 1e-5, adjacency)
    assert delta0 == 1e-8
    assert recheck_mu(events, delta0, mu, adjacency) is True
    assert recheck_mu(events, delta0, 0.97 * mu, adjacency) is False
    # it implies no smaller epsilon than the distribution itself
    assert gaussian.epsilon_of(mu, 1e-5) >= epsilon_of(events, 1.1e-5, adjacency) * 0.999


def test_the_central_limit_is_no_bound():
    assert approximate_mu(sampled(0.6, 0.01, 500), 1e-6) > 1.4 * gaussian.estimated_mu(0.6, 0.01, 500)


def test_many_steps_need_a_larger_delta0_and_far_too_many_only_an_epsilon():
    assert approximation(sampled(40.0, 0.01, 10**6), 1e-5)[1] == pytest.approx(1e-6)
    mu, delta0 = approximation(sampled(5.0, 0.05, 10**6), 1e-9)
    assert delta0 == pytest.approx(1e-10)
    assert mu == mu_of(epsilon_of(sampled(5.0, 0.05, 10**6), delta0))


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 3.0, 40.0])
def test_an_epsilon_is_a_mu(epsilon):
    """Randomised response against N(0, 1) and N(mu, 1): its delta is nowhere larger, and is reached at 0."""
    mu = mu_of(epsilon)
    for at in np.linspace(0, epsilon, 50):
        response = max(0.0, (math.exp(epsilon) - math.exp(at)) / (1 + math.exp(epsilon)))
        assert response <= gaussian.delta_of(mu, float(at)) * (1 + 1e-7) + 1e-12
    assert gaussian.delta_of(mu, 0.0) == pytest.approx(
        math.tanh(epsilon / 4) * 0 + math.expm1(epsilon) / (math.exp(epsilon) + 1), rel=1e-6
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (2.0, 1e-5), (10.0, 1e-9), (500.0, 1e-3)])
def test_the_limit_of_a_budget(epsilon, delta):
    most = mu_within(epsilon, delta)
    assert gaussian.delta_of(most, epsilon) <= delta < gaussian.delta_of(most * (1 + 1e-6), epsilon)


def test_adaptively_chosen_releases_stay_within_the_filter():
    """Each next mu is chosen by what came out, greedily, until the squares would exceed one; by simulation."""
    generator = np.random.default_rng(0)
    draws, limit = 400_000, 1.0
    loss, left = np.zeros(draws), np.full(draws, limit)
    for choose in (lambda seen: np.full(draws, 0.5), lambda seen: np.where(seen > 0, 0.8, 0.3),
                   lambda seen: np.where(seen > 1, 0.7, np.where(seen < -0.5, 0.0, 0.5))):  # fmt: skip
        mu = np.minimum(choose(loss), np.sqrt(left))
        out = mu + generator.normal(size=draws)  # the unit was used
        loss, left = loss + mu * out - mu**2 / 2, left - mu**2
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        gains = np.maximum(0, -np.expm1(epsilon - loss))
        most = gaussian.delta_of(limit, epsilon)
        assert gains.mean() <= most + 5.5 * gains.std() / math.sqrt(draws)
    assert left.min() >= -1e-12


def test_many_runs_fit_where_basic_has_long_refused(tmp_path):
    counts = {}
    for name in ("basic", "rdp", "gdp"):
        book = ledger(tmp_path / name, epsilon=8.0, delta=1e-4, filter=name)
        asked = plan(rounds=100, noise=8.0, rate=0.5, delta=1e-6)
        counts[name] = 0
        while counts[name] < 300:
            try:
                book.reserve(book.claim(asked).run, 0, 100)
            except Spent:
                break
            counts[name] += 1
        epsilon, delta = spent(book)
        assert epsilon <= 8.0 * (1 + 1e-9)
        assert delta <= 1e-4 * (1 + 1e-9)
    assert counts["gdp"] > 2 * counts["basic"]
    assert counts["gdp"] > counts["rdp"]


def test_a_run_is_charged_what_its_squares_add_to(tmp_path):
    book = ledger(tmp_path, epsilon=20.0, delta=1e-3, filter="gdp")
    asked = plan()
    mu, delta0 = approximation(asked.events(0, 10), DELTA)
    run = book.claim(asked).run
    assert spent(book) == pytest.approx((gaussian.epsilon_of(mu, 9e-4), 9e-4 + delta0))
    book.reserve(run, 0, 6)
    assert spent(book) == pytest.approx((gaussian.epsilon_of(mu, 9e-4), 9e-4 + delta0))
    book.reserve(run, 3, 10)  # three rounds again
    again, more = approximation(asked.events(3, 6), DELTA)
    assert spent(book) == pytest.approx(
        (gaussian.epsilon_of(math.hypot(mu, again), 9e-4), 9e-4 + delta0 + more)
    )
    assert check_ledger(book.path, independently=True).rechecked == {"confirmed": 4}


def test_delta_is_limited_too(tmp_path):
    book = ledger(tmp_path, epsilon=500.0, delta=2.5 * DELTA / 1000 * 10, filter="gdp")
    asked = plan()
    book.claim_all([asked, asked])
    with pytest.raises(Spent, match="does not fit"):
        book.claim(asked)
    with pytest.raises(Spent, match="does not fit"):
        book.check_all([asked])


def test_only_some_rounds_fit(tmp_path):
    asked = plan(rounds=50)
    whole, _ = approximation(asked.events(0, 50), DELTA)
    book = ledger(tmp_path, epsilon=gaussian.epsilon_of(0.7 * whole, 9e-4), delta=1e-3, filter="gdp")
    granted = book.claim(asked, partial=True)
    assert 20 <= granted.rounds <= 25  # half of the squares
    mu, delta0 = approximation(asked.events(0, granted.rounds), DELTA)
    assert spent(book) == pytest.approx((gaussian.epsilon_of(mu, 9e-4), 9e-4 + delta0))
    check_ledger(book.path, independently=True)


def test_repeated_rounds_that_do_not_fit_are_refused(tmp_path):
    asked = plan()
    mu, _ = approximation(asked.events(0, 10), DELTA)
    book = ledger(tmp_path, epsilon=gaussian.epsilon_of(1.01 * mu, 9e-4), delta=1e-3, filter="gdp")
    run = book.claim(asked).run
    book.reserve(run, 0, 10)
    with pytest.raises(Spent, match="rounds 0 to 10 would be repeated, which is charged again"):
        book.reserve(run, 0, 10)


def test_a_budget_that_was_lowered_stops_the_rest(tmp_path):
    book = ledger(tmp_path, filter="gdp")
    run = book.claim(plan()).run
    book.set_budget("example", 0.1, 1e-3)
    with pytest.raises(Spent, match="rounds 0 to 5 remain, but the budget"):
        book.reserve(run, 0, 5)


def test_a_mu_that_is_too_small_is_found_by_dp_accounting(tmp_path, monkeypatch):
    real = filters.approximation
    monkeypatch.setattr(filters, "approximation", lambda *given: (0.9 * real(*given)[0], real(*given)[1]))
    book = ledger(tmp_path, filter="gdp")
    book.claim(plan())
    check_ledger(book.path)
    with pytest.raises(Problem, match=r"row 3: it charges mu .* for rounds 0 to 10, but dp-accounting finds"):
        check_ledger(book.path, independently=True)


def test_a_test_with_a_threshold_is_what_its_errors_say():
    """delta_mu is the best test's advantage: P(x > t) - e^epsilon Q(x > t) at t = epsilon / mu + mu / 2."""
    for mu, epsilon in ((0.5, 0.3), (2.0, 4.0)):
        at = epsilon / mu + mu / 2
        best = ndtr(mu - at) - math.exp(epsilon) * ndtr(-at)
        assert gaussian.delta_of(mu, epsilon) == pytest.approx(best, rel=1e-9)
