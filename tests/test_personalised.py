"""Ditto, Mocha, IFCA and chains: what they reduce to, and slow versions that agree with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.cohort.oracle import CohortOracle
from coterie.cohort.select import mistakes
from coterie.data.federation import from_table
from coterie.data.sources.table import Table
from coterie.errors import Problem
from coterie.experiment.config.schema import check
from coterie.experiment.from_config import make_methods
from coterie.experiment.statements import statement_of
from coterie.methods import IFCA, MRMTL, Ditto, FedAvg, FineTune, Local, Mocha, Then
from coterie.methods.ifca import Clusters, Upload, refilled
from coterie.methods.mocha import Pull, Server, pulls
from coterie.methods.omega import inverse_of as relations
from coterie.planning.example_plan import choice_noise
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from coterie.protocol.doors import DESCEND, select_door
from coterie.protocol.merging import PlainMerger
from coterie.protocol.method import HandOver
from coterie.protocol.roster import Roster
from coterie.report.statement_page import page
from tests.helpers import experiment, refused, vectors

FREE = {"epsilon": float("inf"), "rounds": 4}


def test_ditto_without_a_pull_is_local_for_the_personal_part(federation):
    """Without noise: with noise its two passes pay more."""
    full = {"batch": 1000, **FREE}
    ditto = vectors(experiment(federation, Ditto(lam=0.0), **full))
    torch.testing.assert_close(ditto, vectors(experiment(federation, Local(), **full)))


def test_ditto_pays_for_its_second_pass(federation):
    noise = [experiment(federation, m).plan().noise() for m in (MRMTL(), Ditto())]
    assert (noise[1] > 1.2 * noise[0]).all()


def test_one_cluster_is_averaging(federation):
    averaged = vectors(experiment(federation, FedAvg()))
    made = experiment(federation, IFCA(clusters=1))
    assert made.plan().silos[0][0].selections == 0
    random_start = vectors(made)
    assert random_start.shape == averaged.expand(-1, 3, -1).shape
    torch.testing.assert_close(random_start[:, 0], random_start[:, 1])


def test_one_cluster_is_averaging_to_the_bit_from_the_same_start(classes):
    from tests.helpers import task_for

    task = task_for(classes, "mlp", hidden=3)  # starts at random, so nothing is replaced
    averaged = vectors(experiment(classes, FedAvg(), task=task))
    clustered = vectors(experiment(classes, IFCA(clusters=1), task=task))
    torch.testing.assert_close(clustered, averaged.expand_as(clustered), atol=1e-6, rtol=1e-6)


def test_choices_are_priced_and_cost_about_their_share(federation):
    made = experiment(federation, IFCA(clusters=2, choosing=1.0, spend=0.2), epsilon=3.0, rounds=6)
    plain = experiment(federation, FedAvg(), epsilon=3.0, rounds=6).plan()
    plan = made.plan()
    for silo, other in zip(plan.silos[0], plain.silos[0], strict=True):
        assert silo.selections == 6
        assert silo.noise > other.noise
        choices = (Event("selection", silo.choice_noise, 1.0, 6),)
        alone = epsilon_of(choices, silo.delta)
        assert 0.3 * 0.6 < alone <= 0.6
        training = Event("gaussian", silo.noise, silo.work.rate, silo.steps)
        assert silo.epsilon == epsilon_of((training, *choices), silo.delta) <= 3.0


def test_the_noise_of_choices():
    """Concentrated privacy rho = count / (8 noise^2), turned as rho + 2 sqrt(rho log(1 / delta))."""
    noise = choice_noise(0.5, 1e-5, 7)
    rho = 7 / (8 * noise**2)
    assert rho + 2 * np.sqrt(rho * np.log(1e5)) == pytest.approx(0.5)


def chosen(classes, epsilon, rounds):
    """Let silos choose between a bad and a good model, round after round; also give the good one's lead."""
    made = experiment(classes, IFCA(clusters=2, choosing=1.0), epsilon=epsilon, rounds=3)
    trained = vectors(experiment(classes, FedAvg(), epsilon=float("inf"), rounds=30, lr=0.5))[:, :1]
    cohort, streams = made.cohort(made.plan()), made.streams()
    candidates = torch.cat([-trained, trained], 1)
    errors = [mistakes(cohort, candidates[:, c : c + 1].expand(1, len(classes), -1))[0] for c in range(2)]
    made_choices = [
        CohortOracle(cohort, streams, number, (select_door(0.1),)).select(candidates, 0.1)
        for number in range(rounds)
    ]
    return torch.cat(made_choices), errors[0] - errors[1], cohort.settings.choice[0]


def test_without_privacy_the_better_candidate_is_chosen(classes):
    found, lead, _ = chosen(classes, float("inf"), 1)
    assert (lead != 0).all()
    assert found.tolist() == [(lead > 0).long().tolist()]


def test_choices_are_those_of_the_exponential_mechanism(classes):
    """The chance of the better one is 1 / (1 + e^(-lead / scale)): measured from outside."""
    rounds = 500
    found, lead, scale = chosen(classes, 1.0, rounds)
    expected = 1 / (1 + torch.exp(-lead / scale))
    deviation = torch.sqrt(expected * (1 - expected) / rounds)
    assert ((found.double().mean(0) - expected).abs() < 5.5 * deviation).all()
    assert (expected < 0.99).all()


def test_a_cluster_that_too_few_chose_copies_the_largest():
    models = torch.arange(8.0).reshape(1, 4, 2)
    choice = torch.tensor([[1, 1, 3, 1, 3]])
    found = refilled(models, choice, 0.0)
    assert found.tolist() == [[[2, 3], [2, 3], [2, 3], [6, 7]]]
    full = torch.tensor([[0, 1, 2, 3, 3]])
    assert torch.equal(refilled(models, full, 0.0), models)
    assert torch.equal(refilled(models, full, 0.8), models)  # an even share is 1.25
    assert refilled(models, full, 0.9).tolist() == [[[6, 7], [6, 7], [6, 7], [6, 7]]]
    few = torch.cat([full, torch.full((1, 95), -1)], 1)  # who has not come yet has chosen nothing
    assert torch.equal(refilled(models, few, 0.8), models)


def test_clusters_start_again_only_while_silos_choose():
    """After the last choice a model is of those who chose it, however few."""
    method = IFCA(clusters=2, least=0.9, choosing=0.3)
    models, choice = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[0], [1], [1], [1], [1]]])
    upload = Upload(torch.zeros(1, 5, 1), choice)
    for number, sent in ((0, [2.0, 2.0]), (1, [2.0, 2.0]), (2, [1.0, 2.0]), (3, [1.0, 2.0]), (9, [1.0, 2.0])):
        roster = Roster(tuple("abcde"), torch.ones(5), torch.ones(1, 5), round=number, rounds=10)
        merged = method.merge(Clusters(models, choice), upload, PlainMerger(roster))
        assert method.broadcast(merged).flatten().tolist() == sent
        assert torch.equal(merged.choice, choice)


def test_a_chain_that_ends_clusters_while_silos_choose_hands_over_what_it_sends():
    method = IFCA(clusters=2, least=0.9, choosing=1.0)
    choice = torch.tensor([[[0], [1], [1], [1], [1]]])
    roster = Roster(tuple("abcde"), torch.ones(5), torch.ones(1, 5), round=2, rounds=10)
    shared = Clusters(torch.tensor([[[1.0], [2.0]]]), choice)
    shared = method.merge(shared, Upload(torch.zeros(1, 5, 1), choice), PlainMerger(roster))
    begun = method.hand_over(shared).vectors
    assert torch.equal(begun, method.personal(method.broadcast(shared), choice))
    assert begun.flatten().tolist() == [2.0] * 5


def test_two_groups_in_one_cluster_part_again():
    """Two kinds of silos share a cluster while one silo keeps another: they part only if that one starts again."""
    kinds = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]).repeat(3, 1)
    kinds[8] = torch.tensor([-1.0, -0.2])  # its own model suits it best, but that of its kind will do
    x = torch.randn(9, 400, 2, generator=torch.Generator().manual_seed(0))
    y = (torch.einsum("kni,ki->kn", x, kinds) > 0).long()
    silos = np.repeat(np.arange(9), 400)
    data = from_table(Table("three kinds", x.reshape(-1, 2).numpy(), y.reshape(-1).numpy(), silos))

    class Stuck(IFCA):
        def init(self, task, silos):
            shared, own = super().init(task, silos)
            rows = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-1.0, -0.2]])
            models = torch.stack([-rows, rows], 1).flatten(1)
            models = torch.cat([models, torch.zeros(3, 2)], 1).unsqueeze(0)
            choice = torch.tensor([0, 0, 1, 0, 0, 1, 0, 0, 2]).reshape(1, 9, 1)
            return Clusters(shared.models * 0 + models, 0 * shared.choice + choice), own

    for least, together in ((0.0, True), (0.5, False)):
        made = experiment(
            data, Stuck(clusters=3, choosing=1.0, least=least), epsilon=100.0, rounds=12, lr=0.5
        )
        found = vectors(made)[0]
        assert torch.equal(found[0], found[1]) == together
        assert all(torch.equal(found[k], found[k % 3]) for k in range(8))
        assert torch.equal(found[8], found[2]) != together


def test_groups_have_means_of_their_own():
    generator = torch.Generator().manual_seed(0)
    uploads = torch.randn(2, 5, 3, generator=generator)
    sizes = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    groups = torch.tensor([[0, 1, 0, 1, 2], [0, 0, 0, 0, 1]])
    present = torch.tensor([[True, True, False, True, True], [True] * 5])
    roster = Roster(tuple("abcde"), sizes, torch.ones(2, 5), present, groups)
    found = PlainMerger(roster).mean(uploads)
    for run in range(2):
        for k in range(5):
            own = [j for j in range(5) if groups[run, j] == groups[run, k] and present[run, j]]
            weight = sizes[own] / sizes[own].sum()
            expected = (weight.float().unsqueeze(1) * uploads[run, own]).sum(0)
            torch.testing.assert_close(found[run, k], expected)


def test_after_clusters_silos_learn_within_them(federation):
    """Two clusters by force: then averaging within them equals averaging of each alone."""

    class Forced(IFCA):
        def local(self, sent, own, oracle):
            uploads, _ = super().local(sent, own, oracle)
            odd = torch.arange(own.shape[1]).reshape(1, -1, 1) % 2
            return uploads._replace(choice=odd + 0 * own), odd + 0 * own

        def hand_over(self, shared):
            odd = torch.arange(shared.choice.shape[1]).expand(shared.choice.shape[0], -1) % 2
            return HandOver(shared.models[:, :1], odd)

    chain = Then(first=Forced(clusters=2, choosing=0.0), second=FedAvg(), share=0.25)
    found = vectors(experiment(federation, chain, epsilon=float("inf"), rounds=4, batch=1000))
    torch.testing.assert_close(found[:, 0], found[:, 2])
    assert not torch.allclose(found[:, 0], found[:, 1])


def test_fine_tuning_is_averaging_then_local(federation):
    """Without noise and with whole batches: the same as two trainings by hand."""
    full = {"batch": 1000, "epsilon": float("inf"), "lr": 0.1}
    tuned = vectors(experiment(federation, FineTune(share=0.5), rounds=4, **full))
    averaged = experiment(federation, FedAvg(), rounds=2, **full)
    shared = vectors(averaged)
    plan = experiment(federation, Local(), rounds=2, **full).plan()
    own = shared.expand(-1, 3, -1)
    cohort = averaged.cohort(plan)
    for number in range(2):
        own = CohortOracle(cohort, averaged.streams(), number, (DESCEND,)).descend(own)
    torch.testing.assert_close(tuned, own)
    whole = vectors(experiment(federation, FineTune(share=1.0), rounds=4, **full))
    torch.testing.assert_close(
        whole, vectors(experiment(federation, FedAvg(), rounds=4, **full)).expand(-1, 3, -1)
    )


def test_a_chain_costs_no_more_than_one_method(federation):
    noise = [experiment(federation, m).plan().noise() for m in (FedAvg(), FineTune())]
    assert torch.equal(*noise)


def test_relations_by_a_slow_computation():
    generator = np.random.default_rng(0)
    models = generator.normal(size=(4, 6))
    gram = models @ models.T
    values, basis = np.linalg.eigh(gram)
    root = (basis * np.sqrt(values)) @ basis.T
    omega = root / np.trace(root)
    expected = np.linalg.inv(4 * omega)
    found = relations(torch.from_numpy(models).float().unsqueeze(0))
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-4, atol=1e-5)
    anchor, strength = pulls(
        torch.from_numpy(models).float().unsqueeze(0), torch.from_numpy(expected).unsqueeze(0)
    )
    for k in range(4):
        gradient = sum(expected[k, j] * models[j] for j in range(4))
        pull = float(strength[0, k]) * (models[k] - anchor[0, k].numpy())
        np.testing.assert_allclose(pull, gradient, rtol=1e-4, atol=1e-4)


def test_mean_regularising_relations_are_the_pull_of_mr_mtl():
    """M = I - 11'/K pulls every silo toward the mean of all with strength 1."""
    models = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(1))
    inverse = (torch.eye(5) - 1 / 5).double().unsqueeze(0)
    anchor, strength = pulls(models, inverse)
    torch.testing.assert_close(strength * (models - anchor), models - models.mean(1, keepdim=True))


def test_equal_models_are_related_and_silent_ones_do_no_harm():
    same = torch.ones(1, 3, 4)
    anchor, strength = pulls(same, relations(same))
    assert torch.isfinite(anchor).all()
    assert torch.isfinite(strength).all()
    torch.testing.assert_close(anchor, same, atol=0.01, rtol=0.01)
    nothing = torch.zeros(1, 3, 4)
    anchor, strength = pulls(nothing, relations(nothing))
    assert torch.equal(anchor, nothing)
    roster = Roster(tuple("abc"), torch.ones(3), torch.ones(1, 3))
    merged = Mocha().merge(Server(nothing, Pull(anchor, strength)), nothing, PlainMerger(roster))
    assert torch.isfinite(merged.pull.strength).all()


def test_the_statement_of_a_chain_says_what_ran(federation):
    made = experiment(federation, Then(first=IFCA(clusters=2), second=MRMTL(lam=0.3), share=0.4), rounds=5)
    said = verify(text_of(statement_of(made, made.plan(), 0, 0)))
    assert said["method"] == made.method.title
    assert "mr-mtl lam=0.3 after ifca clusters=2" in page(said)


def test_tuning_alone_is_refused():
    content = {"privacy": {"epsilon": 1}, "method": [{"name": "tune"}]}
    with refused("'tune' trains on what silos learned together: give it `after` another method"):
        make_methods(check(content))


def test_what_cannot_be_chained(federation):
    with refused("clusters must be at most the number of silos, 3, got 4"):
        experiment(federation, IFCA(clusters=4)).plan()
    with refused("this method cannot come after another one"):
        experiment(federation, Then(first=FedAvg(), second=IFCA(clusters=2))).plan()
    with refused("'local' cannot come before another method"):
        experiment(federation, Then(first=Local(), second=FedAvg())).plan()
    with pytest.raises(Problem, match="clusters must be a single value"):
        IFCA(clusters=[2, 3])
