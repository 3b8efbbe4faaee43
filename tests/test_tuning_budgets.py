"""Tuning within a budget: the noise it needs, whoever saw all trials, and what is refused."""

from __future__ import annotations

import doctest
import math

import pytest

from coterie.errors import Problem
from coterie.privacy import tuning
from coterie.privacy.accountant import epsilon, epsilon_of
from coterie.privacy.calibration import Target, noise_for
from coterie.privacy.events import Event
from coterie.privacy.trials import Trials, chance_above
from coterie.privacy.tuning import (
    chosen_epsilon,
    noise_for_server,
    noise_for_tuning,
    server_epsilon,
    spent_by_tuning,
)
from tests.trials import KINDS, PLAIN, SCHOOL


def test_against_the_server_all_trials_add_up():
    assert server_epsilon(SCHOOL, 1, 1e-3) == epsilon_of(SCHOOL, 1e-3)
    assert server_epsilon(SCHOOL, 7, 1e-3) == epsilon(5.0, 0.3, 7 * 603, 1e-3)
    assert server_epsilon((Event("gaussian", 4.0),), 16, 1e-5) == pytest.approx(epsilon(1.0, 1.0, 1, 1e-5))
    assert server_epsilon(SCHOOL, 0, 1e-3) == 0
    assert server_epsilon(SCHOOL, 20, 1e-3) > chosen_epsilon(SCHOOL, Trials("geometric", 10.0), 1e-3)


@pytest.mark.parametrize(
    ("target", "delta", "rate", "steps", "trials"),
    [
        (6.0, 1e-3, 0.3, 603, Trials("geometric", 10.0)),
        (0.5, 1e-5, 1.0, 1, Trials("negative-binomial", 30.0, -0.7)),
        (2.0, 1e-5, 0.1, 30, Trials("poisson", 10.0)),
        (300.0, 1e-5, 0.1, 10, Trials("negative-binomial", 3.0, 4.0)),
    ],
)
def test_noise_for_tuning_never_overshoots_and_leaves_at_most_one_per_cent(
    target, delta, rate, steps, trials
):
    found = noise_for_tuning(target, delta, rate, steps, trials)
    assert target * 0.99 < found.epsilon <= target
    assert found.epsilon == chosen_epsilon((Event("gaussian", found.noise, rate, steps),), trials, delta)
    assert found.noise > noise_for(Target(target, delta, rate, steps)).noise


def test_noise_without_a_budget_and_for_one_trial():
    assert noise_for_tuning(math.inf, 1e-5, 0.1, 10, KINDS[1]).noise == 0
    single = noise_for(Target(2.0, 1e-5, 0.1, 10))
    assert noise_for_tuning(2.0, 1e-5, 0.1, 10, Trials("geometric", 1.0)).noise == single.noise


def test_a_bound_that_jumps_is_never_overshot(monkeypatch):
    """Just above the budget up to noise 7, nothing beyond: the noise is the first that is within it."""
    monkeypatch.setattr(tuning, "chosen_epsilon", lambda events, *_: 2.01 if events[0].noise < 7 else 0.0)
    found = noise_for_tuning(2.0, 1e-5, 0.1, 10, KINDS[1])
    assert found.epsilon == 0
    assert 7 <= found.noise < 7.001


def test_noise_for_the_server():
    found = noise_for_server(6.0, 1e-3, 0.3, 603, 10)
    assert 5.94 < found.epsilon <= 6.0
    assert found.epsilon == server_epsilon((Event("gaussian", found.noise, 0.3, 603),), 10, 1e-3)
    assert found.noise > noise_for_tuning(6.0, 1e-3, 0.3, 603, Trials("geometric", 10.0)).noise


def test_what_tuning_spent():
    trials = Trials("poisson", 3.0)
    spent = spent_by_tuning(SCHOOL, trials, 17, 1e-3)
    assert (spent.one, spent.delta) == (epsilon_of(SCHOOL, 1e-3), 1e-3)
    assert spent.chosen == chosen_epsilon(SCHOOL, trials, 1e-3)
    assert spent.server == server_epsilon(SCHOOL, 17, 1e-3)
    score = "the score that chose the best trial must be public, or noised and part of the trial"
    assert score in spent.notes
    assert any("with probability 0.05 no trial is drawn" in note for note in spent.notes)
    assert any("their scores or their number" in note for note in spent.notes)
    assert not any("17" in note for note in spent.notes)
    assert spent_by_tuning(SCHOOL, trials, 0, 1e-3).server == 0
    assert not any("no trial" in note for note in spent_by_tuning(SCHOOL, KINDS[1], 2, 1e-3).notes)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Trials("poisson", 3.0).gamma, "gamma: a poisson distribution has no gamma"),
        (lambda: chosen_epsilon(PLAIN, KINDS[1], 0.0), r"delta must be a number in \(0, 1\), got 0"),
        (
            lambda: chosen_epsilon(PLAIN, KINDS[1], 1e-5, "zero"),
            "unknown adjacency 'zero'; did you mean 'zero-out'",
        ),
        (lambda: server_epsilon(PLAIN, -1, 1e-5), "the number of trials must be a whole number >= 0, got -1"),
        (lambda: server_epsilon(PLAIN, 2.5, 1e-5), "must be a whole number >= 0, got 2.5"),
        (lambda: server_epsilon(PLAIN, True, 1e-5), "must be a whole number >= 0, got True"),
        (lambda: chance_above(KINDS[1], -1), "must be a whole number >= 0, got -1"),
        (lambda: noise_for_server(1.0, 1e-5, 0.1, 10, 0), "the number of trials must be a whole number >= 1"),
        (lambda: noise_for_server(1.0, 1e-5, 0.1, 0, 2), "steps must be a whole number >= 1, got 0"),
        (
            lambda: spent_by_tuning(PLAIN, KINDS[1], 0, 1e-5),
            "a geometric number of trials is at least 1, got 0",
        ),
        (lambda: noise_for_tuning(0.0, 1e-5, 0.1, 10, KINDS[1]), "epsilon must be a number > 0, got 0"),
        (lambda: noise_for_tuning(1.0, 1e-2, 1e-3, 1, KINDS[1]), "delta 0.01 is not below 0.001"),
        (
            lambda: noise_for_tuning(0.01, 1e-5, 1.0, 1, Trials("poisson", 1e6)),
            r"cannot be reached for 1e\+06 trials on average with noise up to 1e\+06",
        ),
    ],
)
def test_bad_input_is_refused(call, said):
    with pytest.raises(Problem, match=said):
        call()


def test_examples():
    assert doctest.testmod(tuning).failed == 0
