"""MR-MTL that finds its own pull: what it estimates, within which bounds, and from what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.engines.simulation import simulate, steps_of
from coterie.errors import Problem, Refused
from coterie.methods import IFCA, METHODS, MRMTL, MRMTLAuto, Then
from coterie.methods.mr_mtl_auto import choose, curvature, facts_of, spread
from coterie.planning.dry_run import dry_run
from coterie.planning.schedule import Participation
from coterie.protocol.merging import PlainMerger
from coterie.protocol.roster import Roster, Steps
from coterie.protocol.streams import SeededStreams
from coterie.protocol.units import SILO
from coterie.testing import check_method
from coterie.theory.mean_estimation import MeanEstimation, best_lam
from tests.helpers import experiment, reference_vectors, vectors

SILOS, SIZE, EXAMPLES, RATE = 60, 40, 50, 0.1


class Begin:
    """A start from zero."""

    def initial(self):
        return torch.zeros(1, 1, SIZE)


def roster(noise, clip=1.0, examples=EXAMPLES, silos=SILOS):
    ones = torch.ones(1, silos)
    sizes = torch.ones(silos, dtype=torch.float64) * examples
    steps = Steps(ones, RATE * ones, clip * ones, ones * noise)
    return Roster(tuple(map(str, range(silos))), sizes, ones.double(), steps=steps)


def estimated(spread_of_centres, noise, chance=0.0, height=1.0, rounds=400, clip=1.0, seed=0, method=None):
    """Train quadratics of one curvature with noise, one step a round; give the server's last state.

    `chance` is the variance, in each coordinate, of a silo's optimum around its true centre.
    """
    generator = torch.Generator().manual_seed(seed)
    method, known = method or MRMTLAuto(), roster(noise, clip)
    draw = torch.randn(2, 1, SILOS, SIZE, generator=generator)
    optimum = 0.3 + spread_of_centres * draw[0] + chance**0.5 * draw[1]
    state, own = method.init(Begin(), SILOS)
    for _ in range(rounds):
        sent = method.broadcast(state)
        shaken = torch.randn(own.shape, generator=generator) * known.steps.noise.unsqueeze(-1)
        gradient = height * (own - optimum) + shaken + sent.lam * (own - sent.mean)
        state = method.merge(state, -RATE * gradient, PlainMerger(known))
        own = own - RATE * gradient
    return state, known


def test_it_is_sound_and_the_same_in_both_engines():
    check_method(MRMTLAuto())
    check_method(Then(first=IFCA(clusters=2, choosing=0.7), second=MRMTLAuto(), share=0.4))
    assert METHODS["mr-mtl-auto"] is MRMTLAuto


def test_engines_agree_with_silos_that_come_and_go(federation):
    made = experiment(
        federation, MRMTLAuto(), rounds=8, participation=Participation(0.7), epsilon={"each": [1.0, 5.0]}
    )
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_runs_that_train_together_do_not_change_each_other(federation):
    alone = vectors(experiment(federation, MRMTLAuto(share=0.2), rounds=6, epsilon=float("inf"), batch=1000))
    both = experiment(federation, MRMTLAuto(share=(0.2, 0.9)), rounds=6, epsilon=float("inf"), batch=1000)
    torch.testing.assert_close(vectors(both)[:1], alone)


def test_silos_pay_what_they_pay_for_a_fixed_pull(federation):
    plans = [experiment(federation, m).plan() for m in (MRMTL(), MRMTLAuto())]
    assert torch.equal(plans[0].noise(), plans[1].noise())
    assert plans[0].counts.bytes_up == plans[1].counts.bytes_up
    assert plans[0].counts.calls == plans[1].counts.calls


def test_uploads_that_are_raw_are_refused(federation):
    """In the unit 'silo' nothing but the mean may be looked at."""
    made = experiment(federation, MRMTLAuto())
    with pytest.raises(Refused, match="unit 'silo'"):
        dry_run(made.running, made.roster, tuple(made.task.layout.lengths), 5, SILO)


@pytest.mark.parametrize("height", [0.5, 1.0, 2.0])
def test_the_curvature_is_found(height):
    state, known = estimated(0.1, 1.0, height=height)
    assert float(curvature(state.observed, facts_of(known))) == pytest.approx(height, rel=0.1)


@pytest.mark.parametrize("noise", [0.1, 1.0, 3.0])
def test_differences_between_silos_are_told_from_noise(noise):
    state, known = estimated(0.1, noise)
    found, weight = spread(state.observed, known)
    assert float(found) == pytest.approx(SIZE * 0.1**2, rel=0.25)
    assert float(weight.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(("height", "noise"), [(1.0, 0.5), (1.0, 0.9), (2.0, 0.8)])
def test_the_best_pull_under_noise_is_found(height, noise):
    """Without chance: lam* = lr s^2 h / (4 h tau^2 - lr s^2), and the error is near its least."""
    tau = 0.2
    state, _ = estimated(tau, noise, height=height, method=MRMTLAuto(share=0.0))
    heat = RATE * noise**2
    best = heat * height / (4 * height * tau**2 - heat)

    def error(lam):
        return (lam * tau / (height + lam)) ** 2 + heat / (2 * (height + lam))

    lam = float(state.lam.mean())
    assert lam == pytest.approx(best, rel=0.35)
    assert error(lam) <= 1.02 * error(best)
    assert error(lam) < min(error(0.0), tau**2)


@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.9])
def test_the_best_pull_of_mean_estimation_is_found(ratio):
    """No noise, examples as far from their mean as the clip, curvature 1: lam* = s_loc^2 / tau^2."""
    tau, clip = 0.1, 1.0
    deviation = np.sqrt(ratio * tau**2 * EXAMPLES)
    clip = float(np.sqrt(SIZE) * deviation)
    state, _ = estimated(tau, 0.0, chance=deviation**2 / EXAMPLES, clip=clip)
    model = MeanEstimation(silos=SILOS, examples=EXAMPLES, deviation=float(deviation), silo_spread=tau)
    assert float(state.lam.mean()) == pytest.approx(best_lam(model), rel=0.2)


def test_silos_without_differences_are_pulled_as_far_as_allowed():
    state, known = estimated(0.0, 2.0, method=MRMTLAuto(limit=0.7))
    torch.testing.assert_close(state.lam, 0.7 / facts_of(known).pace)


def test_more_noise_and_fewer_examples_pull_more(federation):
    known = roster(0.0)
    noise = torch.linspace(0.1, 0.6, SILOS).unsqueeze(0)
    sizes = torch.full((SILOS,), 100.0, dtype=torch.float64)
    state, _ = estimated(0.3, 0.3)
    noisy = replace(known, sizes=sizes, steps=replace(known.steps, noise=noise))
    one, half = torch.ones(1, 1, 1), torch.full((1, 1, 1), 0.5)
    assert (choose(state.observed, noisy, half, one)[0][0, :, 0].diff() > 0).all()
    sizes = torch.linspace(50, 500, SILOS, dtype=torch.float64)
    assert (choose(state.observed, replace(known, sizes=sizes), half, one)[0][0, :, 0].diff() < 0).all()


@pytest.mark.parametrize("epsilon", [0.5, 8.0, float("inf")])
def test_pulls_stay_within_their_bounds(federation, epsilon):
    made = experiment(federation, MRMTLAuto(limit=0.5), epsilon=epsilon, rounds=12, lr=0.4)
    plan = made.plan()
    cohort = made.cohort(plan)
    steps = steps_of(cohort.work, cohort.settings)
    states = list(simulate(made.running, cohort, plan, made.roster, [0], SeededStreams(made.keys)))
    assert (states[0].shared.lam == 0).all()
    for state in states[1:]:
        length = state.shared.lam.squeeze(-1) * steps.lr * steps.count
        assert ((length >= 0) & (length <= 0.5 + 1e-6)).all()
        torch.testing.assert_close(state.shared.models, state.own, atol=1e-5, rtol=1e-5)


def test_diverged_models_do_not_break_the_bounds():
    state, known = estimated(0.1, 0.1, rounds=5)
    observed, nan = state.observed, float("nan")
    broken = observed._replace(gradient=observed.gradient * nan, slope=observed.slope * nan)
    pulls, trust = choose(broken, known, torch.full((1, 1, 1), 0.5), torch.ones(1, 1, 1))
    assert torch.isfinite(pulls).all()
    assert ((trust >= 0) & (trust <= 1)).all()


def test_a_roster_without_steps_is_refused():
    with pytest.raises(Problem, match="needs to know the silos' steps"):
        facts_of(Roster(("a",), torch.ones(1), torch.ones(1, 1)))


def test_both_engines_state_the_noise_that_was_planned(federation):
    made = experiment(federation, MRMTLAuto(), epsilon={"each": [1.0, 5.0]}, clip=0.3, lr=0.7)
    plan = made.plan()
    steps = steps_of(made.work, made.settings(plan))
    for k, silo in enumerate(plan.silos[0]):
        assert float(steps.noise[0, k]) == pytest.approx(silo.noise * 0.3 / silo.work.expected, rel=1e-5)
        assert float(steps.count[0, k]) == silo.work.steps
        assert float(steps.lr[0, k]) == pytest.approx(0.7)


@pytest.mark.parametrize("tau", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("noise", [2.0, 4.0])
def test_where_the_pull_is_at_its_limit_predictions_are_moved_toward_the_mean(tau, noise):
    """As far as is best, and further than not at all, if noise is most of what models differ by."""
    method = MRMTLAuto(share=0.0, limit=0.2)
    state, known = estimated(tau, noise, method=method)
    assert torch.allclose(state.lam, 0.2 / facts_of(known).pace)
    draw = torch.randn(2, 1, SILOS, SIZE, generator=torch.Generator().manual_seed(0))
    centres, apart = 0.3 + tau * draw[0], state.models - state.mean

    def error(trust):
        return float((state.mean + trust * apart - centres).square().mean())

    best = min(error(share) for share in torch.linspace(0, 1, 101))
    predicted = method.personal(method.broadcast(state), state.models)
    found = float((predicted - centres).square().mean())
    assert found == pytest.approx(error(state.trust))
    assert found <= 1.15 * best
    assert found < error(1.0)


def test_where_the_pull_is_free_models_predict_as_they_are():
    state, _ = estimated(0.3, 0.3)
    assert (state.trust == 1).all()
    never = estimated(0.0, 2.0, method=MRMTLAuto(limit=0.0))[0]
    assert (never.trust == 1).all()  # nothing may pull: every silo alone
