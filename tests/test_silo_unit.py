"""Whole silos protected: what is merged, what is charged, against whom, and how it is stated."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.cohort import merging
from coterie.cohort.merging import PrivateMerger, clipped_sum
from coterie.errors import Problem, Refused
from coterie.experiment.experiment import Experiment
from coterie.experiment.statements import statement_of
from coterie.methods import IFCA, MRMTL, PFA, Ditto, FedAvg, FedProx, Local, MRMTLAuto
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.accountant import epsilon, epsilon_of
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from coterie.privacy.merges import MergeEvents
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from coterie.protocol.merging import MergeRule
from coterie.protocol.roster import Roster
from coterie.protocol.streams import SeededStreams
from coterie.report.statement_page import page
from tests.helpers import refused, task_for, vectors
from tests.measured import CHANCE, federation_of, reference_of

DRAWS = [None, Participation(0.5, "poisson"), Participation(0.5)]


def protected(federation, method, *, epsilon=6.0, delta=1e-2, clip=0.5, noise_by="server", task=None, **more):
    more = {"rounds": 4, "batch": 8, "lr": 0.3} | more
    privacy = Privacy(epsilon=epsilon, delta=delta, clip=clip, unit="silo", noise_by=noise_by)
    made = Experiment(federation, task or task_for(federation), method, privacy, Training(**more))
    made.check()
    return made


@pytest.mark.parametrize("how", DRAWS, ids=["all", "poisson", "fixed"])
@pytest.mark.parametrize("noise_by", ["server", "silos"])
@pytest.mark.parametrize("method", [Local(), FedAvg(), FedProx(), MRMTL(lam=0.4), Ditto()])
def test_engines_agree(federation, method, noise_by, how):
    made = protected(federation, method, noise_by=noise_by, participation=how, seeds=(0, 5))
    found = vectors(made)
    for run in range(2):
        torch.testing.assert_close(found[run], reference_of(made, run), atol=1e-5, rtol=1e-4)


def merged(sizes, noise_by="server", present=None, width=20_000, seed=0, zero=True):
    """Merge uploads of zeros by silos of these sizes: what comes out is noise."""
    silos = len(sizes)
    roster = Roster(tuple(f"s{k}" for k in range(silos)), torch.tensor(sizes), torch.full((1, silos), 4.0))
    how = MergeRule(torch.tensor([1.5]), torch.tensor([2.0]), float(silos), noise_by)
    uploads = torch.zeros(1, silos, width) if zero else torch.full((1, silos, width), 5.0)
    facts = dataclasses.replace(roster, present=present, round=3)
    one = PrivateMerger.of(facts, how, SeededStreams(((seed, 0),)), uploads)
    return one.mean(uploads)[0, 0].double().numpy()


def is_noise(found, deviation):
    return stats.kstest(found / deviation, "norm").pvalue > CHANCE


@pytest.mark.parametrize("sizes", [[500.0, 500.0, 500.0], [10_000.0, 1000.0, 500.0]])
def test_unequal_sizes_do_not_change_the_noise(sizes):
    assert is_noise(merged(sizes), 1.5 * 2.0 / 3)
    assert is_noise(merged(sizes, "silos"), 1.5 * 2.0 * math.sqrt(3) / 3)


def test_a_mean_weighted_by_sizes_under_the_noise_of_a_uniform_one(monkeypatch):
    """Elsewhere the noise of a uniform mean was put on one weighted by sizes of 10000, 1000 and 500."""

    def reach():
        roster = Roster(("a", "b", "c"), torch.tensor([10_000.0, 1000.0, 500.0]), torch.full((1, 3), 4.0))
        how = MergeRule(torch.tensor([0.0]), torch.tensor([1.0]), 3.0)
        uploads = torch.ones(1, 3, 4)
        without = uploads.clone()
        without[:, 0] = 0
        means = [
            PrivateMerger.of(roster, how, SeededStreams(((0, 0),)), x).mean(x) for x in (uploads, without)
        ]
        return 3 * float((means[0] - means[1]).norm())

    assert reach() <= 1 + 1e-6
    plain = merging.clipped_sum

    def weighted(uploads, clip, present):
        weights = 3 * torch.tensor([10_000.0, 1000.0, 500.0]) / 11_500
        return plain(uploads, clip.new_tensor([math.inf]), present) * 0 + (
            plain_rows(uploads) * weights.reshape(1, 3, 1)
        ).sum(1, keepdim=True)

    def plain_rows(uploads):
        rows = uploads.double()
        return rows / rows.norm(dim=-1, keepdim=True).clamp(min=1)

    monkeypatch.setattr(merging, "clipped_sum", weighted)
    assert reach() > 2.5


def test_one_upload_reaches_no_further_than_the_clip():
    generator = torch.Generator().manual_seed(0)
    clip = torch.tensor([0.7, 3.0])
    for scale in (1e-3, 1.0, 1e30):
        uploads = scale * torch.randn(2, 5, 9, generator=generator)
        without = uploads.clone()
        without[:, 2] = 0
        reach = (clipped_sum(uploads, clip, None) - clipped_sum(without, clip, None)).norm(dim=-1).squeeze()
        assert (reach <= clip).all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_an_upload_that_is_not_finite_counts_as_nothing(bad):
    uploads = torch.ones(1, 3, 4)
    uploads[0, 1, 2] = bad
    expected = clipped_sum(torch.ones(1, 2, 4), torch.tensor([10.0]), None)
    torch.testing.assert_close(clipped_sum(uploads, torch.tensor([10.0]), None), expected)


def test_odd_uploads():
    zero = clipped_sum(torch.zeros(1, 3, 4), torch.tensor([1.0]), None)
    assert torch.equal(zero, torch.zeros(1, 1, 4, dtype=torch.float64))
    single = clipped_sum(torch.full((1, 3), 9.0), torch.tensor([1.0]), None)  # a 0-d parameter a silo
    assert single.shape == (1, 1)
    assert 3 * (1 - 1e-4) < float(single) <= 3
    with pytest.raises(Refused, match="uploads must be real vectors"):
        clipped_sum(torch.ones(1, 3, 4, dtype=torch.int64), torch.tensor([1.0]), None)


def test_the_mean_is_uniform_and_asked_for_once():
    roster = Roster(("a", "b"), torch.ones(2), torch.ones(1, 2))
    rule, uploads = MergeRule(torch.zeros(1), torch.ones(1), 2.0), torch.ones(1, 2, 3)
    one = PrivateMerger.of(roster, rule, SeededStreams(((0, 0),)), uploads)
    with pytest.raises(Refused, match="uniform"):
        one.mean(uploads, torch.ones(1, 2))
    with pytest.raises(Refused, match="uniform"):
        one.within(torch.zeros(1, 2)).mean(uploads)
    one.mean(uploads)
    with pytest.raises(Refused, match="once"):
        one.mean(uploads)


def test_the_denominator_is_the_planned_cohort_also_when_nobody_comes():
    nobody = torch.zeros(1, 3, dtype=torch.bool)
    assert is_noise(merged([1.0, 1.0, 1.0], present=nobody, zero=False), 1.5 * 2.0 / 3)


def test_noise_differs_by_run_round_and_silo():
    streams = SeededStreams(((0, 0), (0, 1)))
    drawn = {
        float(streams.merging(run, silo, number).noisy(np.zeros(()), 1.0))
        for run in (0, 1)
        for silo in (merging.SERVER, "a", "b")
        for number in (0, 1)
    }
    assert len(drawn) == 12


def silent(federation, **more):
    """Silos whose examples are null: what moves the shared model is the noise of merges."""
    made = federation_of(torch.zeros(6, 10, 3000))
    return protected(made, FedAvg(), task=task_for(made, bias=False), rounds=3, **more)


@pytest.mark.parametrize("how", DRAWS, ids=["all", "poisson", "fixed"])
@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_what_runs_is_what_is_charged(federation, noise_by, how):
    """The noise on the shared model, measured from outside, is that of the events."""
    made = silent(federation, participation=how, noise_by=noise_by)
    plan = made.plan()
    silo = plan.silos[0][0]
    cohort = silo.merges.cohort
    draws = 3
    if noise_by == "silos":
        draws = 18 if how is None else int(plan.present[:, 0].sum())
    deviation = silo.noise * 0.5 / cohort * math.sqrt(draws)
    assert is_noise(vectors(made)[0, 0].double().numpy(), deviation)


@pytest.mark.parametrize(
    ("how", "noise_by", "expected"),
    [
        (None, "server", lambda z, came: epsilon(z, 1.0, 5, 1e-2)),
        (Participation(0.4, "poisson"), "server", lambda z, came: epsilon(z, 0.4, 5, 1e-2)),
        (Participation(0.4), "server", lambda z, came: epsilon(z, 1.0, came, 1e-2)),
        (None, "silos", lambda z, came: epsilon(z, 1.0, 5, 1e-2)),
        (Participation(0.4, "poisson"), "silos", lambda z, came: epsilon(z, 1.0, came, 1e-2)),
    ],
)
def test_what_a_budget_pays_for(classes, how, noise_by, expected):
    made = protected(classes, MRMTL(), participation=how, noise_by=noise_by, rounds=5, seeds=(0, 3))
    for row in made.plan().silos:
        for silo in row:
            want = expected(silo.noise, silo.merges.came) if silo.merges.came or how is None or (
                how.sampler == "poisson" and noise_by == "server") else 0.0  # fmt: skip
            assert silo.epsilon == pytest.approx(want)
            assert silo.epsilon <= silo.budget
        assert max(silo.epsilon for silo in row) > 0.99 * row[0].budget


def merges(**facts):
    given = {"noise": 2.0, "clip": 1.0, "silos": 10, "rate": 0.3, "sampler": "poisson", "merges": 20,
             "came": 7, "noise_by": "server", "raw_personal": True}  # fmt: skip
    return MergeEvents(**given | facts)


def test_against_whom():
    delta = 1e-3
    sampled, known = epsilon(2.0, 0.3, 20, delta), epsilon(2.0, 1.0, 7, delta)
    assert merges().against(delta) == {"server": None, "silos": sampled, "shared": sampled, "personal": None}
    fixed = merges(sampler="fixed").against(delta)
    bound = min(known, epsilon_of((Event("gaussian", 2.0, 0.3, 20, "fixed"),), delta))
    assert fixed == {"server": None, "silos": known, "shared": bound, "personal": None}
    local = merges(noise_by="silos", raw_personal=False).against(delta)
    assert local == {"server": known, "silos": known, "shared": known, "personal": known}
    together = epsilon(2.0 * math.sqrt(3), 1.0, 7, delta)
    local = merges(noise_by="silos", sampler="fixed").against(delta)
    assert local == {"server": known, "silos": known, "shared": together, "personal": None}
    nothing = merges(merges=0, came=0).against(delta)
    assert nothing == {"server": 0.0, "silos": 0.0, "shared": 0.0, "personal": None}
    absent = merges(came=0, noise_by="silos").against(delta)
    assert absent["server"] == 0.0
    assert merges(noise=0.0).against(delta)["shared"] is None


def test_a_silo_cannot_come_more_often_than_there_are_merges():
    with refused("cannot take part in 21 of 20 merges"):
        merges(came=21)


def statement_for(federation, **more):
    made = protected(federation, MRMTL(), **more)
    return statement_of(made, made.plan(), 0, 0)


@pytest.mark.parametrize("how", DRAWS, ids=["all", "poisson", "fixed"])
@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_statements_are_recomputed(federation, noise_by, how):
    made = statement_for(federation, noise_by=noise_by, participation=how, seeds=(4,))
    found = verify(text_of(made))
    assert found["guarantee"]["unit"] == "silo"
    assert (found["adversaries"]["server"]["epsilon"] is None) == (noise_by == "server")
    assert any("sees the raw uploads" in line for line in found["not_covered"]) == (noise_by == "server")
    assert "billboard" in page(found)
    assert "compared with a null silo in its place" in page(found)
    assert ("the server adds noise to the sum" in page(found)) == (noise_by == "server")
    assert "divided by a fixed number" in page(found)
    assert ("all silos, every time" in page(found)) == (how is None)
    assert ("draws at rate" in page(found)) == (how is not None and found["doors"][0]["rate"] < 1)


def test_without_privacy_and_without_uploads(federation):
    made = protected(federation, MRMTL(), epsilon=math.inf)
    free = verify(text_of(statement_of(made, made.plan(), 0, 0)))
    assert free["guarantee"]["epsilon"] is None
    made = protected(federation, Local())
    alone = verify(text_of(statement_of(made, made.plan(), 0, 0)))
    assert alone["guarantee"]["epsilon"] == 0
    assert alone["adversaries"]["server"]["epsilon"] == 0
    assert alone["adversaries"]["personal"]["epsilon"] is None


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("merges", "noise"), 9.0),
        (("merges", "came"), 1),
        (("merges", "merges"), 1),
        (("merges", "rate"), 0.1),
        (("merges", "noise_by"), "silos"),
        (("merges", "raw_personal"), False),
        (("merges",), None),
        (("guarantee", "unit"), "example"),
        (("guarantee", "epsilon"), 0.5),
        (("adversaries", "server", "epsilon"), 1.0),
        (("adversaries", "silos", "epsilon"), 0.1),
        (("adversaries", "shared", "epsilon"), None),
        (("doors",), []),
        (("not_covered",), []),
    ],
)
def test_forged_statements_are_found(federation, place, value):
    from coterie.privacy.statement.build import checksum

    forged = json.loads(json.dumps(statement_for(federation)))
    at = forged
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    forged["checksum"] = checksum(forged)
    with pytest.raises(Problem, match="statement: "):
        verify(text_of(forged))


def test_without_clip_and_noise_it_is_mr_mtl_without_privacy(classes):
    equal = federation_of([torch.randn(12, 3, generator=torch.Generator().manual_seed(k)) for k in range(4)])
    made = protected(equal, MRMTL(lam=0.5), epsilon=math.inf, task=task_for(equal))
    other = dataclasses.replace(made, privacy=Privacy(epsilon=math.inf))
    other.check()
    torch.testing.assert_close(vectors(made), vectors(other), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (IFCA(clusters=2), "choice is raw"),
        (PFA(divide="top", top=0.7), "unit 'silo'"),
        (MRMTLAuto(), "unit 'silo'"),
    ],
)
def test_methods_that_look_at_uploads_are_refused(federation, method, why):
    with pytest.raises(Refused, match=why):
        protected(federation, method).plan()


def test_one_clip_for_all(federation):
    least = protected(federation, FedAvg(), epsilon={"each": [1.0, 2.0]})
    least = dataclasses.replace(least, budgets="minimum")
    assert {silo.budget for silo in least.plan().silos[0]} == {1.0}
    with refused("privacy.clip: the merge of all silos has one noise"):
        protected(federation, FedAvg(), clip={"each": [1.0, 2.0]}).plan()
    with refused("'uniform' is allowed only with unit = 'example'"):
        dataclasses.replace(least, budgets="uniform").plan()


def test_where_noise_may_be_added():
    with refused("expected one of server, silos"):
        Privacy(epsilon=1.0, unit="silo", noise_by="nobody")
    with refused("privacy.noise_by: allowed only with unit = 'silo'"):
        Privacy(epsilon=1.0, noise_by="silos")


def test_a_second_mean_in_a_round_is_refused(federation):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Twice(FedAvg):
        name = "twice"

        def merge(self, shared, uploads, merger):
            return shared + merger.mean(uploads) + merger.mean(uploads)

    with pytest.raises(Refused, match="more than one mean"):
        protected(federation, Twice()).plan()


def test_two_vectors_in_an_upload_are_refused(federation):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Two(FedAvg):
        name = "two"

        def local(self, sent, own, oracle):
            upload, own = super().local(sent, own, oracle)
            return {"a": upload, "b": upload}, own

        def merge(self, shared, uploads, merger):
            return shared + merger.mean(uploads["a"])

    with pytest.raises(Refused, match="one real vector"):
        protected(federation, Two()).plan()


def test_training_at_home_is_free(federation):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Home(FedAvg):
        name = "home"

        def local(self, sent, own, oracle):
            upload, own = super().local(sent, own, oracle)
            oracle.descend(sent, home=True)
            return upload, own

    made = protected(federation, Home())
    assert made.plan().silos[0][0].noise == protected(federation, FedAvg()).plan().silos[0][0].noise
    made.train()


def test_several_budgets_at_once(federation):
    made = protected(federation, MRMTL(), epsilon=[2.0, 8.0], seeds=(0, 1))
    noise = [row[0].noise for row in made.plan().silos]
    assert noise[0] == noise[1] > noise[2] == noise[3]
    assert np.isfinite([run.score for run in made.train().runs]).all()
    assert SimpleNamespace(**vars(made.plan().merge)).cohort == len(federation)


def test_without_privacy_who_sends_nothing_still_gets_a_statement(federation):
    made = protected(federation, Local(), epsilon=math.inf)
    content = statement_of(made, made.plan(), 0, 0)
    assert content["guarantee"]["epsilon"] == 0
    assert verify(text_of(content)) == content
    assert "0" in page(content)
