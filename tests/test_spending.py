"""How budgets are spent: one noise for all until they leave, the closed form of the authors, remarks."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from coterie.experiment.from_config import methods_of
from coterie.guard.claims import claims_of
from coterie.methods import IFCA, MRMTL, PFA, FedAvg, FineTune, MRMTLAuto, WeiAvg
from coterie.planning.schedule import Participation
from coterie.planning.uniform_noise import affordable, until_spent
from coterie.privacy.accountant import epsilon
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.published.formulas import pfa_noise
from coterie.protocol.doors import DESCEND, Work
from coterie.report.privacy_lines import too_little, uses_paper_accounting
from tests.helpers import experiment, reference_vectors, refused, vectors

BUDGETS = {"each": [2.0, 3.0, 4.0]}


def spending(federation, method, how, **settings):
    made = experiment(federation, method, epsilon=BUDGETS, **{"rounds": 6, "lr": 0.3} | settings)
    return dataclasses.replace(made, budgets=how)


def test_with_one_noise_small_budgets_leave_first_and_nobody_overspends(federation):
    made = spending(federation, FedAvg(), "uniform", rounds=12)
    plan = made.plan()
    silos = plan.silos[0]
    assert len({silo.noise for silo in silos}) == 1
    assert [silo.rounds for silo in silos] == sorted(silo.rounds for silo in silos)
    assert silos[2].rounds == 12
    assert silos[0].rounds < 12
    for k, silo in enumerate(silos):
        assert plan.present[:, 0, k].tolist() == [number < silo.rounds for number in range(12)]
        cost = epsilon(silo.noise, silo.work.rate, silo.steps, silo.delta)
        assert cost == silo.epsilon <= silo.budget
        if silo.rounds < 12:
            more = silo.work.steps * (silo.rounds + 1)
            assert epsilon(silo.noise, silo.work.rate, more, silo.delta) > silo.budget
        charged = claims_of("x", plan, k)[0]
        assert charged.certified(0, 12) == pytest.approx(silo.epsilon)


def test_engines_agree_when_silos_leave(federation):
    made = spending(federation, WeiAvg(), "uniform", seeds=(0, 1), participation=Participation(0.7))
    for run in range(2):
        torch.testing.assert_close(vectors(made)[run], reference_vectors(made, run), atol=1e-5, rtol=1e-4)


def test_what_a_budget_pays_for_by_counting():
    paid = [n for n in range(1, 9) if epsilon(2.0, 0.2, 5 * n, 1e-3) <= 1.5]
    assert affordable(Work(10, 2, 5), 2.0, 1, 8, 1.5, 1e-3) == len(paid) > 0
    assert affordable(Work(10, 2, 5), 2.0, 1, 8, 1e-4, 1e-3) == 0
    assert affordable(Work(10, 2, 5), 2.0, 1, 8, 100, 1e-3) == 8


@pytest.mark.parametrize("method", [FineTune(), IFCA(clusters=2)])
def test_one_noise_needs_rounds_that_are_alike(federation, method):
    if isinstance(method, FineTune):
        spending(federation, method, "uniform").plan()  # it trains once in every round
    else:
        with refused("'uniform' requires a method that only trains"):
            spending(federation, method, "uniform").plan()


def test_one_noise_needs_finite_budgets():
    with refused("finite budgets"):
        until_spent([(DESCEND,)], [Work(10, 5, 2)], [float("inf")], [1e-3], None)


def test_the_closed_form_adds_more_noise_and_the_certified_epsilon_says_so(federation):
    exact = experiment(federation, FedAvg(), epsilon=BUDGETS, rounds=6).plan()
    loud = spending(federation, FedAvg(), "closed-form").plan()
    for one, other in zip(exact.silos[0], loud.silos[0], strict=True):
        formula = pfa_noise(other.budget, other.work.rate, other.steps, other.delta)
        assert other.noise == max(formula, one.noise)
        assert other.epsilon == pytest.approx(epsilon(other.noise, other.work.rate, other.steps, other.delta))
    assert loud.silos[0][0].noise > 1.5 * exact.silos[0][0].noise
    assert loud.silos[0][0].epsilon < 0.7


def test_where_the_closed_form_is_too_little_it_is_not_used(federation):
    made = experiment(federation, FedAvg(), epsilon=500.0, rounds=6)
    least = made.plan().silos[0][0]
    assert pfa_noise(500, least.work.rate, least.steps, least.delta) < least.noise
    found = dataclasses.replace(made, budgets="closed-form").plan().silos[0][0]
    assert found.noise == least.noise
    assert found.epsilon <= 500


def test_published_formulas_are_judged_only_if_asked_for_or_used(federation):
    """Epsilon 6 from few, small batches: the central limit of Wu, Chen, Wang 2020 is far too small there."""
    made = experiment(federation, FedAvg(), epsilon=6.0, batch=1, rounds=6)
    plan = made.plan()
    assert not uses_paper_accounting(made, plan)
    assert too_little(made, plan) == []
    assert "a proven lower bound" in too_little(made, plan, asked=True)[0]
    closed = dataclasses.replace(made, budgets="closed-form")
    assert uses_paper_accounting(closed, closed.plan())


def remarks(federation, method, **settings):
    made = experiment(federation, method, **settings)
    return "\n".join((*made.notes, *made.plan().notes))


def test_remarks_on_public_silos_that_are_missing(federation):
    told = remarks(
        federation,
        PFA(divide="top", top=0.7),
        epsilon=BUDGETS,
        rounds=12,
        participation=Participation(0.4, "poisson"),
        seeds=(0, 1, 2),
    )
    assert "have no public silo" in told
    assert "last known basis" in told
    assert "no silo takes part" in told
    assert "all silos are in one group" not in told


def test_remarks_on_equal_budgets_and_silos_that_never_take_part(federation):
    assert "all silos are in one group" in remarks(federation, PFA(), epsilon=3.0)
    made = spending(federation, FedAvg(), "uniform", rounds=3)
    tiny = dataclasses.replace(
        made, privacy=dataclasses.replace(made.privacy, epsilon={"each": [0.01, 2, 4]})
    )
    found = [note for note in tiny.plan().notes if "never take part" in note]
    assert len(found) == 1
    assert "do not cover one round" in found[0]


def test_lam_auto_is_the_automatic_method():
    assert methods_of({"name": "mr-mtl", "lam": "auto"}) == [MRMTLAuto()]
    both = methods_of({"name": "mr-mtl", "lam": [0.5, "auto", 2]})
    assert both == [MRMTL(lam=(0.5, 2.0)), MRMTLAuto()]


def test_events_of_rounds_are_those_of_their_stages():
    a, b = Event("gaussian", 1.0, 0.5, 3), Event("selection", 2.0)
    whole = Claim("x", "example", 1e-5, 1.0, ((2, (a, b)), (3, (a,))))
    assert whole.rounds == 5
    counts = {(e.mechanism, e.count) for e in whole.events(1, 4)}
    assert counts == {("gaussian", 3), ("selection", 1), ("gaussian", 6)}
    assert Claim.from_json(json.loads(json.dumps(whole.to_json()))) == whole
