"""Whole silos with differing budgets: one noise on the merge, a clip for each silo that ends at its budget."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.cohort.merging import PrivateMerger
from coterie.experiment.statements import statement_of
from coterie.guard.meter import make_meter
from coterie.guard.session import Session
from coterie.methods import MRMTL, FedAvg, Related
from coterie.planning.schedule import Participation
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.merges import MergeEvents
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from coterie.protocol.merging import MergeRule
from coterie.protocol.roster import Roster
from coterie.protocol.streams import SeededStreams
from tests.helpers import call, refused, vectors
from tests.measured import reference_of
from tests.test_related import related_to
from tests.test_silo_unit import DRAWS, is_noise, protected

BUDGETS = {"each": [1.0, 4.0]}


@pytest.mark.parametrize("how", DRAWS, ids=["all", "poisson", "fixed"])
@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_every_silo_ends_at_its_own_budget(federation, noise_by, how):
    plan = protected(federation, FedAvg(), epsilon=BUDGETS, noise_by=noise_by, participation=how).plan()
    often = max(silo.merges.came for silo in plan.silos[0])
    for silo in plan.silos[0]:
        assert silo.epsilon <= silo.budget
        if silo.merges.came == often or silo.merges.hidden:
            assert silo.epsilon >= 0.99 * silo.budget
        assert silo.noise * silo.merges.clip == pytest.approx(float(plan.merge.noise * plan.merge.clip))
    clips = {silo.budget: silo.merges.clip for silo in plan.silos[0]}
    assert clips[4.0] == float(plan.merge.clip)
    assert clips[1.0] < 0.5 * clips[4.0]


def test_differing_clips_are_told(federation):
    notes = protected(federation, FedAvg(), epsilon=BUDGETS).plan().notes
    assert any("fedavg: budgets differ" in note and "to 0.5; small budgets" in note for note in notes)


def test_equal_budgets_have_one_clip(federation):
    assert protected(federation, FedAvg(), epsilon=2.0).plan().merge.share is None


def merger_of(merge, uploads, number=0):
    silos = uploads.shape[1]
    roster = Roster(tuple(f"s{k}" for k in range(silos)), torch.ones(silos), torch.full((1, silos), 4.0))
    facts = dataclasses.replace(roster, round=number)
    return PrivateMerger.of(facts, merge, SeededStreams(((0, 0),)), uploads)


def reaches(merge, scale=50.0):
    """Measure how far each silo moves the sum when its upload is replaced by nothing."""
    uploads = scale * torch.randn(1, 3, 40, generator=torch.Generator().manual_seed(1))
    whole = merger_of(merge, uploads).mean(uploads).double()
    found = []
    for k in range(3):
        without = uploads.clone()
        without[:, k] = 0
        found.append(float((whole - merger_of(merge, without).mean(without).double()).norm()) * merge.cohort)
    return found


SHARES = torch.tensor([[0.25, 1.0, 0.5]])


def test_each_silo_reaches_as_far_as_its_own_clip(monkeypatch):
    merge = MergeRule(torch.tensor([1.5]), torch.tensor([2.0]), 3.0, share=SHARES)
    assert reaches(merge) == pytest.approx([0.5, 2.0, 1.0], rel=1e-4)
    monkeypatch.setattr(MergeRule, "limits", lambda self, _: self.clip)  # the bug: all have the whole clip
    assert reaches(merge)[0] > 1.9


def test_sums_by_a_matrix_keep_to_each_silos_clip():
    merge = MergeRule(torch.tensor([0.0]), torch.tensor([2.0]), 3.0, share=SHARES)
    uploads = torch.full((1, 3, 16), 9.0)
    found = merger_of(merge, uploads).mix(uploads, torch.eye(3))
    assert found[0].norm(dim=-1).tolist() == pytest.approx([0.5, 2.0, 1.0], rel=1e-4)


@pytest.mark.parametrize(("where", "times"), [("server", 1.0), ("silos", math.sqrt(3))])
def test_the_noise_is_that_of_the_whole_clip(where, times):
    merge = MergeRule(torch.tensor([1.5]), torch.tensor([2.0]), 3.0, where, share=SHARES)
    uploads = torch.zeros(1, 3, 20_000)
    found = merger_of(merge, uploads, number=7).mean(uploads)[0, 0].double().numpy()
    assert is_noise(found, 1.5 * 2.0 * times / 3)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, math.nan])
def test_a_share_is_part_of_the_clip(share):
    with pytest.raises(ValueError, match="a share of the clip"):
        MergeRule(torch.ones(1), torch.ones(1), 3.0, share=torch.tensor([[1.0, share]]))


@pytest.mark.parametrize("how", DRAWS, ids=["all", "poisson", "fixed"])
@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_engines_agree(federation, noise_by, how):
    settings = {"noise_by": noise_by, "participation": how, "clip": 0.01}
    made = protected(federation, MRMTL(lam=0.4), epsilon=BUDGETS, seeds=(0, 5), **settings)
    found = vectors(made)
    for run in range(2):
        torch.testing.assert_close(found[run], reference_of(made, run), atol=1e-5, rtol=1e-4)


def test_engines_agree_on_groups(federation):
    made = protected(
        federation, Related(lam=0.3, relations=related_to(federation)), epsilon=BUDGETS, clip=0.01
    )
    torch.testing.assert_close(vectors(made)[0], reference_of(made, 0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_statements_tell_each_silos_clip_and_epsilon(federation, noise_by):
    made = protected(federation, FedAvg(), epsilon=BUDGETS, noise_by=noise_by)
    plan = made.plan()
    for k, silo in enumerate(plan.silos[0]):
        content = statement_of(made, plan, 0, k)
        verify(text_of(content))
        assert content["guarantee"]["epsilon"] == pytest.approx(silo.epsilon)
        assert content["doors"][0]["clip"] == silo.merges.clip


def test_ledgers_charge_each_silo_its_own(tmp_path, federation):
    made = protected(federation, FedAvg(), epsilon=BUDGETS)
    plan = made.plan()
    budgets = [(silo.budget, silo.delta) for silo in plan.silos[0]]
    meter = make_meter(tmp_path, federation, budgets, "silo")
    made.train(plan, session=Session(meter=meter))
    for ledger, silo in zip(meter.ledgers, plan.silos[0], strict=True):
        spent = check_ledger(ledger.path).totals["silo"]["silos"][0]
        assert 0.99 * silo.budget <= spent <= silo.budget


def true_delta(epsilon, noise, clip, other, rate):
    """Integrate one merge of a silo drawn with chance `rate`, whose place else another one takes, worst case."""
    deviation = noise * clip
    grid = np.linspace(-12 * deviation - other, 12 * deviation + other, 400_001)
    elsewhere = (1 - rate) * stats.norm.pdf(grid, other, deviation)
    found = []
    for upload in (clip, -clip):
        pair = [rate * stats.norm.pdf(grid, at, deviation) + elsewhere for at in (upload, 0.0)]
        for one, two in (pair, pair[::-1]):
            found.append(np.trapezoid(np.maximum(one - math.exp(epsilon) * two, 0), grid))
    return max(found)


def test_who_takes_the_place_of_a_silo_in_a_fixed_draw_may_have_a_larger_clip():
    """So a fixed draw hides nothing where clips differ; with equal ones it does."""
    noise, clip, delta = 3.749, 0.161, 1e-5
    made = MergeEvents(noise, clip, 20, 0.05, "fixed", 1, 1, "server", False)
    said = made.against(delta)["shared"]
    assert true_delta(said, noise, clip, clip, 0.05) <= delta
    assert true_delta(said, noise, clip, 1.0, 0.05) > 50 * delta  # what the bug would have stated
    apart = dataclasses.replace(made, unequal=True).against(delta)
    assert apart["shared"] == apart["silos"] == apart["personal"] > said
    assert true_delta(apart["shared"], noise, clip, 1.0, 0.05) <= delta


def test_a_plan_says_that_clips_are_unequal_run_by_run(federation):
    made = protected(federation, FedAvg(), epsilon=[2.0, BUDGETS], participation=Participation(0.5))
    flags = [{silo.merges.unequal for silo in row} for row in made.plan().silos]
    assert flags == [{False}, {True}]


def test_ledgers_that_a_run_makes_have_each_silos_budget(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(
        '[data]\nsource = "digits"\nsilos = 4\n[train]\nrounds = 2\n[privacy]\nepsilon = { each = [1, 4] }\n'
        'delta = 1e-2\nunit = "silo"\n[[method]]\nname = "fedavg"\n'
    )
    assert call(monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--out", "out")[0] == 0
    found = json.loads(call(monkeypatch, capsys, "ledger", "show", "kept", "--json")[1])["ledgers"]
    assert sorted(one["budgets"]["silo"]["epsilon"] for one in found) == [1, 1, 4, 4]


def test_what_does_not_go_with_differing_budgets(federation):
    with refused("all silos have a budget or none has"):
        protected(federation, FedAvg(), epsilon={"each": [1.0, math.inf]}).plan()
    with refused("privacy.quantile: all silos share a clip that follows the uploads"):
        made = protected(federation, FedAvg(), epsilon=BUDGETS)
        dataclasses.replace(made, privacy=dataclasses.replace(made.privacy, quantile=0.5)).plan()
