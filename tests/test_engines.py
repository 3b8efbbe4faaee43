"""The engines agree, and methods reduce to each other."""

from __future__ import annotations

import pytest
import torch

from coterie.methods import MRMTL, FedAvg, FedProx, Local
from tests.helpers import (
    UNSOUND_FOR_SILOS,
    every_method,
    experiment,
    reference_vectors,
    task_for,
    title,
    vectors,
)

ALL = every_method()


@pytest.mark.parametrize("method", ALL, ids=title)
def test_reference_engine_gives_the_same_vectors(federation, method):
    made = experiment(federation, method, epsilon={"each": [2.0, 5.0]}, seeds=(0, 7))
    fast = vectors(made)
    for run in range(2):
        torch.testing.assert_close(fast[run], reference_vectors(made, run), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", [method for method in ALL if not method.linear], ids=title)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_reference_engine_on_networks(classes, method, model):
    options = {"hidden": 5} if model == "mlp" else {"channels": 2}
    budgets = {"each": [2.0, 5.0]}
    made = experiment(classes, method, task=task_for(classes, model, **options), rounds=2, epsilon=budgets)
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_reference_engine_without_privacy(federation):
    made = experiment(federation, MRMTL(lam=0.5), epsilon=float("inf"))
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_reference_engine_with_settings_that_differ(federation):
    lr = {"silo-0": 0.1, "default": 0.3}
    made = experiment(federation, MRMTL(lam=[0.1, 1.0]), lr=lr, clip={"silo-2": 0.2, "default": 1.5})
    fast = vectors(made)
    for run in range(2):
        torch.testing.assert_close(fast[run], reference_vectors(made, run), atol=1e-5, rtol=1e-4)


def test_mean_regularisation_of_zero_is_local_to_the_bit(federation):
    local = vectors(experiment(federation, Local(), seeds=(0, 1)))
    assert torch.equal(vectors(experiment(federation, MRMTL(lam=0.0), seeds=(0, 1))), local)
    assert not torch.equal(vectors(experiment(federation, MRMTL(lam=0.1), seeds=(0, 1))), local)


def test_proximal_term_of_zero_is_averaging_to_the_bit(federation):
    averaged = vectors(experiment(federation, FedAvg(), seeds=(0, 1)))
    assert torch.equal(vectors(experiment(federation, FedProx(mu=0.0), seeds=(0, 1))), averaged)
    assert not torch.equal(vectors(experiment(federation, FedProx(mu=0.1), seeds=(0, 1))), averaged)


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn"])
def test_one_silo_alone_is_that_silo_in_the_cohort(classes, model):
    task = task_for(classes, model)
    together = vectors(experiment(classes, Local(), task=task))
    for k, name in enumerate(classes.names):
        alone = vectors(experiment(classes.pick([name]), Local(), task=task))
        torch.testing.assert_close(alone[0, 0], together[0, k], atol=1e-5, rtol=1e-4)


def test_runs_together_are_runs_alone(federation):
    """Runs that differ in seed, lam, lr, epsilon and clip train together as they would alone."""
    together = experiment(
        federation, MRMTL(lam=[0.1, 0.9]), lr=[0.1, 0.2], epsilon=[2.0, 6.0], clip=[0.5, 1.0], seeds=(0, 5)
    )
    found = vectors(together)
    assert len(found) == 32
    for run in (0, 13, 31):
        torch.testing.assert_close(found[run], reference_vectors(together, run), atol=1e-5, rtol=1e-4)


def test_no_two_runs_or_silos_share_noise(federation):
    """Runs of equal seed and setting but another variant number still draw other noise."""
    made = experiment(federation, Local(), epsilon=[3.0, 3.0], seeds=(0, 1))
    moved = vectors(made).flatten(0, 1)
    for i in range(len(moved)):
        for j in range(i):
            assert not torch.equal(moved[i], moved[j])


def test_runs_of_different_methods_do_not_share_noise(federation):
    """Local and MR-MTL with lam 0 are the same method; trained for real they draw other noise."""
    made = [experiment(federation, method) for method in (Local(), MRMTL(lam=0.0), MRMTL(lam=0.5))]
    first = [m.streams().dice(0, "silo-0", 0, 0)[1].random(4).tolist() for m in made]
    assert first[0] != first[1] != first[2] != first[0]
    results = [m.train().vectors[0] for m in made[:2]]
    assert not torch.equal(*results)


def test_adding_and_reordering_silos_changes_nobody_else(federation):
    whole = vectors(experiment(federation, Local()))
    turned = vectors(experiment(federation.pick(["silo-2", "silo-0"]), Local()))
    torch.testing.assert_close(turned[0, 0], whole[0, 2], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(turned[0, 1], whole[0, 0], atol=1e-5, rtol=1e-4)


def test_little_memory_gives_the_same_numbers(classes):
    task = task_for(classes, "cnn")
    made = experiment(classes, FedAvg(), task=task, epochs=2.0)
    from coterie.cohort.gradients.clipping import bytes_of_a_row

    tight = experiment(classes, FedAvg(), task=task, epochs=2.0, memory=bytes_of_a_row(task) + 1)
    torch.testing.assert_close(vectors(made), vectors(tight), atol=1e-5, rtol=1e-4)


def test_same_seed_same_bits(federation):
    assert torch.equal(
        vectors(experiment(federation, MRMTL(lam=0.4))), vectors(experiment(federation, MRMTL(lam=0.4)))
    )


def test_a_silo_that_leaves_keeps_its_model_and_the_others_go_on(federation):
    """From round 2 on silo 1 is gone: to the bit as if the others had been alone with what was merged."""
    from coterie.engines.simulation import simulate

    made = experiment(federation, MRMTL(lam=0.5), rounds=4)
    plan = made.plan()
    cohort, streams = made.cohort(plan), made.streams()
    given = (made.running, cohort, plan, made.roster, [0], streams)
    whole = list(simulate(*given))
    present = {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 2], 3: []}
    left = list(simulate(*given, before=lambda number: present[number]))
    assert torch.equal(left[2].shared, whole[2].shared)
    assert torch.equal(left[3].own[:, 1], left[2].own[:, 1])
    assert not torch.equal(left[3].own[:, 0], left[2].own[:, 0])
    moved = left[3].own[:, [0, 2]] - left[2].own[:, [0, 2]]
    share = torch.tensor(federation.sizes, dtype=torch.float64)
    share = (share / share.sum())[[0, 2]].float()  # the model of who left stays in the mean
    expected = left[2].shared + (moved * share[None, :, None]).sum(1, keepdim=True)
    torch.testing.assert_close(left[3].shared, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(left[3].own[:, [0, 2]], whole[3].own[:, [0, 2]], atol=1e-6, rtol=1e-5)
    assert left[4].round == 4
    assert torch.equal(left[4].shared, left[3].shared)


@pytest.mark.parametrize("method", ALL, ids=title)
@pytest.mark.parametrize("at", [1, 2])
def test_going_on_from_any_round_gives_the_same_to_the_bit(federation, method, at):
    from coterie.engines.simulation import simulate
    from coterie.protocol.messages import pack, unpack
    from coterie.protocol.state import State

    made = experiment(federation, method, seeds=(0, 3))
    plan = made.plan()
    given = (made.running, made.cohort(plan), plan, made.roster, [0, 3])
    states = list(simulate(*given, made.streams()))
    kept = unpack(pack((states[at].shared, states[at].own)))
    again = list(simulate(*given, made.streams(), start=State(at, *kept)))
    assert [state.round for state in again] == list(range(at, 4))
    assert pack((again[-1].shared, again[-1].own)) == pack((states[-1].shared, states[-1].own))


@pytest.mark.parametrize("unit", ["example", "silo"])
@pytest.mark.parametrize("method", ALL, ids=title)
def test_few_silos_train_as_if_all_were_there(federation, method, unit, monkeypatch):
    """Where few silos come only they are computed; nothing else changes."""
    from dataclasses import replace

    from coterie.engines import simulation as engine
    from coterie.errors import Problem
    from coterie.planning.schedule import Participation

    made = experiment(federation, method, seeds=(0,), participation=Participation(0.34), rounds=4)
    made = replace(made, privacy=replace(made.privacy, unit=unit))
    if unit == "silo" and method.name in UNSOUND_FOR_SILOS:
        with pytest.raises(Problem):
            made.plan()
        return
    picked = []
    groups = engine._groups
    monkeypatch.setattr(engine, "_groups", lambda *given: picked.extend(groups(*given)) or picked[-1:])
    quick = vectors(made)
    assert [some if some is None else len(some) for some in picked] == [None if method.linear else 1] * 4
    monkeypatch.setattr(engine, "_groups", lambda *given: [None])
    torch.testing.assert_close(quick, vectors(made), atol=1e-5, rtol=1e-4)
