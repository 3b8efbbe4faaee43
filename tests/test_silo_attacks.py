"""Methods that would leak whole silos: each is refused, in the plan or when it runs."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from coterie.cohort.merging import PrivateMerger
from coterie.errors import Problem, Refused
from coterie.experiment.experiment import Experiment
from coterie.experiment.statements import statement_of
from coterie.methods import MRMTL, FedAvg, Related, Then
from coterie.methods.relations import Relations
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.privacy.merges import MergeEvents
from coterie.privacy.published.merges import merge_warnings
from coterie.privacy.statement.build import HIDDEN, checksum, text_of
from coterie.privacy.statement.verify import verify
from coterie.protocol.merging import MergeRule
from coterie.protocol.roster import Roster
from coterie.protocol.streams import SeededStreams
from coterie.report.statement_page import page
from tests.helpers import task_for, vectors


@dataclass(frozen=True, kw_only=True)
class MergesAtZero(FedAvg):
    """Merges only a model of zeros, which the dry run's random vectors never are."""

    name: ClassVar[str] = "merges-at-zero"

    def merge(self, shared, uploads, merger):
        return shared + merger.mean(uploads) if not bool(shared.any()) else shared


@dataclass(frozen=True, kw_only=True)
class MergesWithoutNoise(FedAvg):
    """Merges only where there is no noise; in the dry run all steps have some."""

    name: ClassVar[str] = "merges-without-noise"

    def merge(self, shared, uploads, merger):
        quiet = bool(merger.roster.steps.noise.max() == 0)
        return shared + merger.mean(uploads) if quiet else shared


@dataclass(frozen=True, kw_only=True)
class Normed(FedAvg):
    """Scales all uploads by the longest of them: one silo moves all the others'."""

    name: ClassVar[str] = "normed"

    def merge(self, shared, uploads, merger):
        return shared + merger.mean(uploads / uploads.norm(dim=-1, keepdim=True).amax(1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class NormedByMatrix(FedAvg):
    name: ClassVar[str] = "normed-by-matrix"

    def merge(self, shared, uploads, merger):
        scaled = uploads / uploads.norm(dim=-1, keepdim=True).amax(1, keepdim=True)
        return shared + merger.mix(scaled, torch.ones(1, len(merger.roster)))


@dataclass(frozen=True, kw_only=True)
class Summed(FedAvg):
    """Adds uploads up before they are clipped."""

    name: ClassVar[str] = "summed"

    def merge(self, shared, uploads, merger):
        return shared + merger.mean(uploads.sum(1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class NormedAtHome(FedAvg):
    """Mixes silos in what doors gave."""

    name: ClassVar[str] = "normed-at-home"

    def local(self, sent, own, oracle):
        moved = oracle.descend(sent) - sent
        return moved / moved.norm(dim=-1, keepdim=True).amax(1, keepdim=True), None


@dataclass(frozen=True, kw_only=True)
class TellsWhoCame(FedAvg):
    """Sends on who took part, which the draw hides."""

    name: ClassVar[str] = "tells-who-came"

    def merge(self, shared, uploads, merger):
        came = 0 if merger.roster.present is None else merger.roster.present.float().mean()
        return shared + merger.mean(uploads) + came


def made_of(federation, method, **more):
    privacy = Privacy(epsilon=4.0, delta=1e-2, unit="silo")
    training = Training(**{"rounds": 3, "batch": 8, "lr": 0.3} | more)
    return Experiment(federation, task_for(federation), method, privacy, training)


@pytest.mark.parametrize("method", [MergesAtZero(), MergesWithoutNoise()], ids=lambda m: m.name)
def test_a_merge_that_was_not_planned_is_refused(federation, method):
    with pytest.raises(Refused, match="a merge that is not in the plan"):
        vectors(made_of(federation, method))


@pytest.mark.parametrize("method", [Normed(), NormedByMatrix(), Summed()], ids=lambda m: m.name)
def test_uploads_are_merged_as_they_were_sent(federation, method):
    with pytest.raises(Refused, match="merged as they were sent"):
        made_of(federation, method).plan()


def test_uploads_are_merged_as_they_were_sent_also_when_it_runs():
    roster = Roster(("a", "b"), torch.ones(2), torch.ones(1, 2))
    uploads = torch.ones(1, 2, 3)
    rule = MergeRule(torch.zeros(1), torch.ones(1), 2.0)
    one = PrivateMerger.of(roster, rule, SeededStreams(((0, 0),)), uploads)
    with pytest.raises(Refused, match="merged as they were sent"):
        one.mean(2 * uploads)
    with pytest.raises(Refused, match="merged as they were sent"):
        one.mix(uploads.clone(), torch.eye(2))
    one.mean(uploads)


def test_silos_are_not_mixed_in_what_doors_give(federation):
    with pytest.raises(Refused, match="local mixes silos"):
        made_of(federation, NormedAtHome()).plan()


@pytest.mark.parametrize("how", [Participation(0.5, "poisson"), Participation(0.5)])
def test_who_came_is_not_told(federation, how):
    with pytest.raises(Refused, match="merge looks at who took part"):
        made_of(federation, TellsWhoCame(), participation=how).plan()


def test_an_absent_silo_is_not_made_present():
    roster = Roster(("a", "b"), torch.ones(2), torch.ones(1, 2))
    how = MergeRule(torch.zeros(1), torch.tensor([math.inf]), 2.0)
    uploads, came = torch.ones(1, 2, 1), roster.at(torch.tensor([[True, False]]))
    one = PrivateMerger.of(came, how, SeededStreams(((0, 0),)), uploads)
    copy = one.within(None).after(0).clipping(torch.full((1, 1, 1), math.inf))
    assert float(copy.mean(uploads)) == 0.5
    with pytest.raises(Refused, match="only once per round"):
        one.mean(uploads)


def test_a_method_cannot_have_the_noise_of_another_round():
    """Noise that comes back in another round could be subtracted: rosters may count rounds, mergers draw."""
    roster = dataclasses.replace(Roster(("a", "b"), torch.ones(2), torch.ones(1, 2)), round=3, rounds=5)
    rule, uploads = MergeRule(torch.ones(1), torch.ones(1), 2.0), torch.zeros(1, 2, 7)

    def merger(number):
        facts = dataclasses.replace(roster, round=number)
        return PrivateMerger.of(facts, rule, SeededStreams(((0, 0),)), uploads)

    later = merger(3).after(2)
    assert (later.roster.round, later.roster.rounds) == (1, 3)
    noise = later.mean(uploads)
    assert torch.equal(noise, merger(3).mean(uploads))
    assert not torch.equal(noise, merger(1).mean(uploads))


def test_noise_in_the_silos_does_not_go_with_a_quantile():
    with pytest.raises(ValueError, match="noise of the server"):
        MergeRule(torch.ones(1), torch.ones(1), 2.0, "silos", quantile=0.5)


def stated(federation, method=None, how=None, **privacy):
    given = {"epsilon": 4.0, "delta": 1e-2, "unit": "silo"} | privacy
    if "noise" in privacy:
        given.pop("epsilon")
    training = Training(rounds=3, batch=8, lr=0.3, participation=how)
    made = Experiment(federation, task_for(federation), method or FedAvg(), Privacy(**given), training)
    made.check()
    content = statement_of(made, made.plan(), 0, 0)
    assert verify(text_of(content)) == content
    return made, content


def test_a_statement_does_not_tell_what_its_epsilon_needs_hidden(federation):
    how = Participation(0.5, "poisson")
    made, content = stated(federation, how=how)
    came = made.present[:, 0].sum(0).tolist()
    assert came != [3] * len(federation)
    for k in range(len(federation)):
        content = statement_of(made, made.plan(), 0, k)
        assert content["merges"]["came"] == content["doors"][0]["calls"] == 3
    assert HIDDEN in content["not_covered"]
    assert HIDDEN not in stated(federation)[1]["not_covered"]
    content["not_covered"].remove(HIDDEN)
    content["checksum"] = checksum(content)
    with pytest.raises(Problem, match="not_covered: the sentence"):
        verify(text_of(content))


def test_silos_that_are_charged_are_not_noted_as_absent(federation):
    made, _ = stated(federation, how=Participation(0.05, "poisson"))
    assert not any("nothing is released or charged" in note for note in (*made.notes, *made.plan().notes))


def test_where_no_bound_is_known_the_page_says_so(federation):
    _, content = stated(federation, how=Participation(0.5, "poisson"), delta=1e-12)
    assert content["guarantee"]["replace_one"] is None
    assert "no bound is known" in page(content)


def test_where_silos_differ_no_lower_bound_is_claimed(federation):
    names = federation.names
    omega = Relations(names, omega=((4, -4, 0), (-4, 4, 0), (0, 0, 1)))
    _, content = stated(federation, Related(relations=omega))
    assert content["guarantee"]["lower"] == 0
    assert content["warnings"] == []


def test_a_delta_above_the_chance_of_coming_is_refused(federation):
    with pytest.raises(Problem, match="the chance that a silo takes part at all"):
        stated(federation, how=Participation(0.001, "poisson"), noise=0.01)


def test_a_noise_that_is_given_does_not_go_without_budgets(federation):
    privacy = Privacy(noise=1.0, delta=1e-2, unit="silo")
    made = Experiment(
        federation, task_for(federation), FedAvg(), privacy, Training(rounds=2, batch=8), budgets="none"
    )
    with pytest.raises(Problem, match="'none' is not allowed with"):
        made.plan()


def test_a_fixed_draw_is_warned_of_by_what_other_silos_know():
    merges = MergeEvents(2.0, 1.0, 20, 0.1, "fixed", 40, 10, "server", True)
    (line,) = merge_warnings(merges, 1e-2)
    assert "Hu, Wu, Smith 2023" in line


def test_chains_of_lists_are_refused():
    with pytest.raises(Problem, match="lam of 'mr-mtl' must be a single value in a chain"):
        Then(first=FedAvg(), second=MRMTL(lam=(0.1, 1.0)))


def test_relations_of_other_content_have_another_name():
    one, other = (Relations(("a", "b"), groups=groups) for groups in (("x", "y"), ("x", "z")))
    assert str(one) != str(other)
