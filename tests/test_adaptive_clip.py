"""A clip that follows the uploads' lengths: where it goes, what its count costs, and that both are charged."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.cohort import merging
from coterie.cohort.merging import BITS, PrivateMerger
from coterie.engines.simulation import simulate
from coterie.experiment.experiment import Experiment
from coterie.experiment.statements import statement_of
from coterie.guard.session import Session
from coterie.methods import MRMTL, FedAvg, FineTune, Heads, Related
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from coterie.protocol.merging import MergeRule
from coterie.protocol.roster import Roster
from coterie.protocol.streams import SeededStreams
from coterie.report.statement_page import page
from tests.helpers import refused, task_for, vectors
from tests.measured import CHANCE, federation_of, reference_of


def made_of(federation, method=None, quantile=0.5, epsilon=6.0, clip=0.5, **more):
    privacy = Privacy(epsilon=epsilon, delta=1e-2, clip=clip, unit="silo", quantile=quantile)
    training = Training(**{"rounds": 4, "batch": 8, "lr": 0.3} | more)
    made = Experiment(federation, task_for(federation), method or FedAvg(), privacy, training)
    made.check()
    return made


@pytest.mark.parametrize("how", [None, Participation(0.5, "poisson"), Participation(0.5)])
@pytest.mark.parametrize("method", [FedAvg(), MRMTL(lam=0.4), Related(), FineTune()], ids=lambda m: m.name)
def test_engines_agree(federation, method, how):
    made = made_of(federation, method, participation=how, seeds=(0, 3), clip=[0.5, 2.0])
    found = vectors(made)
    for run in range(4):
        torch.testing.assert_close(found[run], reference_of(made, run), atol=1e-5, rtol=1e-4)


def clips_of(made):
    plan = made.plan()
    states = simulate(
        made.running, made.cohort(plan), plan, made.roster, [0] * len(made.keys), SeededStreams(made.keys)
    )
    return [float(state.shared.clip[0, 0, 0]) for state in states]


@pytest.mark.parametrize("first", [0.01, 3.0])
def test_almost_without_noise_the_clip_finds_the_median(first):
    """Of silos whose only gradient has length 1, 2, ... 5, the clip ends between those of 2 and 4."""
    lengths = [1.0, 2.0, 3.0, 4.0, 5.0]
    federation = federation_of([torch.ones(4, 1)] * 5, [torch.full((4,), -length / 2) for length in lengths])
    privacy = Privacy(noise=0.01, delta=1e-2, clip=first, unit="silo", quantile=0.5)
    training = Training(rounds=90, steps=1, batch=100, lr=1e-3)
    made = Experiment(federation, task_for(federation, bias=False), FedAvg(), privacy, training)
    assert 2e-3 < clips_of(made)[-1] < 4e-3 * 1.05


def counted(votes_within, silos=4, noise=1.3, seed=0, present=None, quantile=0.5):
    """Count so many uploads within a clip of 1, of silos whose other uploads are longer."""
    roster = Roster(tuple(f"s{k}" for k in range(silos)), torch.ones(silos), torch.ones(1, silos))
    how = MergeRule(torch.tensor([noise]), torch.tensor([1.0]), float(silos), quantile=quantile)
    uploads = torch.full((1, silos, 3), 9.0)
    uploads[0, :votes_within] = 0.1
    facts = dataclasses.replace(roster, present=present, round=3)
    one = PrivateMerger.of(facts, how, SeededStreams(((seed, 0),)), uploads)
    one.mean(uploads)
    return one


def test_the_count_is_right_and_moves_the_clip():
    clip = torch.ones(1, 1, 1)
    for within, share in ((4, 1.0), (1, 0.25), (0, 0.0)):
        one = counted(within, noise=0.0)
        assert float(one.counted[0]) / 4 + 0.5 == share
        assert float(one.next_clip(clip)) == pytest.approx(math.exp(-0.2 * (share - 0.5)))
    here = torch.tensor([[True, True, False, False]])
    assert float(counted(4, noise=0.0, present=here).counted[0]) == 1.0  # two halves


def test_one_silo_moves_the_count_by_a_half():
    here = torch.tensor([[True, True, True, False]])
    for within in range(5):
        whole, without = counted(within, noise=0.0), counted(within, noise=0.0, present=here)
        assert abs(float(whole.counted[0] - without.counted[0])) == 0.5


def test_noise_on_count_and_uploads_together_is_what_is_charged(monkeypatch):
    """Their multipliers compose to that of the plan: one over the square is the sum of both."""

    def measured():
        votes, sums = [], []
        for seed in range(3000):
            one = counted(2, seed=seed)
            votes.append(float(one.counted[0]))
        roster = Roster(("a", "b"), torch.ones(2), torch.ones(1, 2))
        how = MergeRule(torch.tensor([1.3]), torch.tensor([1.0]), 2.0, quantile=0.5)
        uploads = torch.zeros(1, 2, 3000)
        moved = PrivateMerger.of(roster, how, SeededStreams(((9, 0),)), uploads).mean(uploads)
        sums = 2 * moved.double().flatten().numpy()
        return np.array(votes), sums

    votes, sums = measured()
    count, upload = 1.3 / math.sqrt(BITS), 1.3 / math.sqrt(1 - BITS)
    assert stats.kstest(votes / (count / 2), "norm").pvalue > CHANCE
    assert stats.kstest(sums / upload, "norm").pvalue > CHANCE
    assert 1 / count**2 + 1 / upload**2 == pytest.approx(1 / 1.3**2)
    both = (Event("gaussian", count), Event("gaussian", upload))
    assert epsilon_of(both, 1e-5) == pytest.approx(epsilon_of((Event("gaussian", 1.3),), 1e-5))
    monkeypatch.setattr(merging, "BITS", 0.2)
    votes, _ = measured()
    assert stats.kstest(votes / (count / 2), "norm").pvalue < CHANCE


def test_the_noise_of_the_count_is_not_that_of_the_uploads():
    one = counted(2, seed=4)
    drawn = SeededStreams(((4, 0),)).merging(0, merging.SERVER, 3).noisy(np.zeros((1, 3)), 1.0)
    noise = float(one.counted[0]) / (1.3 / math.sqrt(BITS) / 2)
    assert not np.isclose(drawn, noise).any()


def test_charges_are_those_of_a_fixed_clip(federation):
    a, b = (made_of(federation, quantile=q).plan().silos[0][0] for q in (0.5, None))
    assert (a.noise, a.epsilon) == (b.noise, b.epsilon)


def test_statements_say_it_and_can_be_recomputed(federation):
    made = made_of(federation, Heads(head="1.weight"))
    content = statement_of(made, made.plan(), 0, 0)
    assert content["merges"]["quantile"] == 0.5
    assert verify(text_of(content)) == content
    assert "then to a noisy 0.5-quantile of their lengths" in page(content)


def test_a_training_goes_on_with_its_clip(federation, tmp_path):
    class Stop(Exception):
        pass

    def stop(number, _):
        if number == 4:
            raise Stop

    made = made_of(federation, MRMTL(lam=0.4), rounds=6)
    whole = made.train().vectors[0]
    with pytest.raises(Stop):
        made.train(on_round=stop, session=Session(tmp_path / "point", "key", every=2))
    again = made.train(session=Session(tmp_path / "point", "key", every=2)).vectors[0]
    assert torch.equal(whole, again)


@pytest.mark.parametrize(
    "settings",
    [
        {"quantile": 0.0, "unit": "silo"},
        {"quantile": 1.0, "unit": "silo"},
        {"quantile": 0.5},
        {"quantile": 0.5, "unit": "silo", "noise_by": "silos"},
    ],
)
def test_what_is_refused(settings):
    with refused("privacy.quantile: expected a number in (0, 1), with unit = 'silo'"):
        Privacy(epsilon=1.0, **settings)
