"""Attacks on methods for per-example privacy: models that diverge, tiny budgets, odd modules, one outlier."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

from coterie.cohort.gradients.choose import recorder, summer
from coterie.cohort.select import mistakes
from coterie.engines.simulation import simulate
from coterie.experiment.statements import statement_of
from coterie.methods import IFCA, MRMTL, Ditto, FedAvg, FineTune, Mocha, Then
from coterie.methods.omega import inverse_of
from coterie.methods.projection import directions
from coterie.planning.example_plan import choice_noise
from coterie.planning.training import check_device
from coterie.planning.uniform_noise import until_spent
from coterie.protocol.doors import DESCEND, Work
from coterie.protocol.messages import only
from coterie.tasks.task import Task
from tests.gradient_modules import one_at_a_time
from tests.helpers import call, experiment, refused, task_for, vectors

INFINITE = float("inf")


@pytest.mark.parametrize("value", [0.0, 100.0, float("nan"), -1e30])
def test_choices_see_errors_of_at_most_one_an_example(federation, value):
    """Squared errors have no bound of their own; a choice is noised for errors of at most one."""
    made = experiment(federation, IFCA(clusters=2, choosing=1.0))
    cohort = made.cohort(made.plan())
    found = mistakes(cohort, torch.full((1, len(federation), made.task.layout.size), value))
    assert ((found >= 0) & (found <= torch.tensor(federation.sizes))).all()


def test_one_outlier_moves_a_choice_by_at_most_one(federation):
    outlier = federation.silos[1].y.clone()
    outlier[0] = 1e6
    silos = list(federation.silos)
    silos[1] = dataclasses.replace(silos[1], y=outlier)
    other = dataclasses.replace(federation, silos=tuple(silos))
    found = []
    for data in (federation, other):
        made = experiment(data, IFCA(clusters=2, choosing=1.0))
        ones = torch.ones(1, len(data), made.task.layout.size)
        found.append(mistakes(made.cohort(made.plan()), ones))
    moved = (found[0] - found[1]).abs()[0]
    assert moved[[0, 2]].tolist() == [0, 0]
    assert moved[1] <= 1


def test_one_cluster_of_silos_of_differing_sizes_is_averaging(federation):
    assert len(set(federation.sizes)) == 3
    task = task_for(federation, "mlp", hidden=3)
    averaged = vectors(experiment(federation, FedAvg(), task=task))
    clustered = vectors(experiment(federation, IFCA(clusters=1), task=task))
    torch.testing.assert_close(clustered, averaged.expand_as(clustered), atol=1e-6, rtol=1e-6)


def test_what_ditto_shares_is_the_model_of_averaging(federation):
    """Its personal models never leave: whole batches and no noise, so both train alike."""
    shared = []
    for method in (Ditto(lam=0.5), FedAvg()):
        made = experiment(federation, method, epsilon=INFINITE, batch=1000, rounds=4)
        plan = made.plan()
        *_, last = simulate(method, made.cohort(plan), plan, made.roster, [0], made.streams())
        shared.append(last.shared)
    torch.testing.assert_close(shared[0], shared[1])


def test_what_a_silo_does_not_send_is_zero_for_the_merge_too():
    sent = only(torch.tensor([[[True], [False]]]), torch.ones(1, 2, 5))
    assert sent.value.sum(-1).tolist() == [[5, 0]]


def test_with_one_noise_no_silo_of_the_largest_budget_leaves():
    """The noise is that of whoever of them works most, not least."""
    work = [Work(size=200, batch=20, steps=10), Work(size=20, batch=10, steps=10)]
    noise, here = until_spent([(DESCEND,)] * 6, work, [2.0, 2.0], [1e-3, 1e-3], None)
    alone = [until_spent([(DESCEND,)] * 6, [own], [2.0], [1e-3], None)[0] for own in work]
    assert alone[0] < alone[1] == noise
    assert here.all()


def test_a_run_that_diverges_does_not_stop_the_others(federation):
    """Lists of settings train together: one of them may go wrong."""
    together = vectors(experiment(federation, Mocha(lam=0.1), rounds=8, clip=1e4, lr=[1e-4, 9e37]))
    alone = vectors(experiment(federation, Mocha(lam=0.1), rounds=8, clip=1e4, lr=[1e-4, 2e-4]))
    assert not torch.isfinite(together[1]).all()
    torch.testing.assert_close(together[0], alone[0])
    models = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    broken = models.clone()
    broken[0, 1] = float("nan")
    assert torch.isfinite(inverse_of(broken)).all()
    torch.testing.assert_close(inverse_of(broken)[1], inverse_of(models)[1])


def test_directions_of_uploads_that_are_no_numbers_are_of_the_others():
    updates = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0))
    broken, without = updates.clone(), updates.clone()
    broken[0, 2] = float("inf")
    without[0, 2] = 0
    for found, expected in zip(directions(broken, [4, 2], 2), directions(without, [4, 2], 2), strict=True):
        torch.testing.assert_close(found, expected)


MODULES = {
    "elu in place": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv2d(1, 2, 3), nn.ELU(inplace=True), nn.Flatten(), nn.Linear(32, 3)
    ),
    "relu in place": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(32, 3)
    ),
    "rows of vectors": lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_odd_modules_are_summed_as_they_are_clipped(name):
    task = Task(MODULES[name], "cross-entropy", (6, 6), 3)
    generator = torch.Generator().manual_seed(0)
    starts = torch.randn(2, task.layout.size, generator=generator)
    x, y = torch.randn(2, 4, 6, 6, generator=generator), torch.tensor([[0, 1, 2, 0], [2, 1, 0, 1]])
    weight = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.5, 2.0, -1.0, 0.0]])
    expected = (one_at_a_time(task, starts, x, y) * weight.unsqueeze(-1)).sum(1)
    parameters = task.layout.unflatten(starts)
    for found in (
        summer(task)(parameters, x, y, weight),
        recorder(task)(parameters, x, y).weighted_sums(weight),
    ):
        torch.testing.assert_close(task.layout.flatten(found), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("epsilon", [1e-20, 1e-200])
def test_tiny_budgets_for_choices_are_refused_in_a_sentence(federation, epsilon):
    with refused("epsilon"):
        experiment(federation, IFCA(clusters=2), epsilon=epsilon).plan()


def test_the_noise_of_choices_goes_on_for_tiny_budgets():
    assert choice_noise(1e-12, 1e-3, 1) == pytest.approx(1e3 * choice_noise(1e-9, 1e-3, 1), rel=1e-6)


@pytest.mark.parametrize("device", ["meta", "cuda:99", "toaster"])
def test_devices_that_cannot_be_used_are_refused(device):
    with refused("train.device"):
        check_device(device)


def test_too_many_seeds_are_refused(config, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "plan", config, "--set", "train.seeds=100000000000")
    assert code == 2
    assert "at most 10000" in err


@pytest.mark.parametrize("budgets", ["maximum", "none"])
def test_a_statement_says_that_a_silo_spent_more_than_its_own_budget(federation, budgets):
    made = dataclasses.replace(
        experiment(federation, FedAvg(), epsilon={"each": [1.0, 4.0, 8.0]}), budgets=budgets
    )
    plan = made.plan()
    told = [json.dumps(statement_of(made, plan, 0, k)["not_covered"]) for k in range(3)]
    assert "above the silo's own budget of 1: " in told[0]
    assert ("let it spend 8" if budgets == "maximum" else "let it spend any amount") in told[0]
    assert ("own budget of 8" in told[2]) == (budgets == "none")


def test_a_chain_that_leaves_its_second_method_no_round_is_refused(federation):
    for method, rounds in ((Then(first=IFCA(clusters=2), second=MRMTL(), share=0.99), 4), (FineTune(), 1)):
        with refused("share"):
            experiment(federation, method, rounds=rounds).plan()
    with refused("share"):
        FineTune(share=0)
    assert experiment(federation, FineTune(share=1), rounds=2).plan().counts.calls
