"""Ways to get at duals, past the noise or past the charge, that must stay closed."""

from __future__ import annotations

import math
import stat
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import coterie
from coterie.data.federation import Federation, Silo
from coterie.errors import Problem, Refused
from coterie.guard.checkpoint import Checkpoint, save
from coterie.methods import Dual, FedAvg
from coterie.planning.schedule import Participation
from coterie.privacy.budget import Privacy
from coterie.protocol.state import State
from tests.helpers import refused

BUDGET = Privacy(0.5, 1e-5, 1.0)


def federation_of(targets=(), row=None):
    """Two silos of short examples; some targets, and one row, of the first are given."""
    generator, silos = torch.Generator().manual_seed(0), []
    for k in range(2):
        x, y = torch.rand(20, 2, generator=generator) / 2, torch.rand(20, generator=generator)
        if k == 0:
            for place, target in enumerate(targets):
                x[place], y[place] = torch.tensor([1.0, 0.0]), target
            if row is not None:
                x[0] = row
        silos.append(Silo(f"s{k}", x, y, x[5:7].clone(), y[5:7].clone()))
    return Federation("made up", tuple(silos))


def train(federation, method, privacy=BUDGET, **more):
    settings = {"loss": "squared", "model_options": {"bias": False}, "rounds": 3, "batch": 20}
    return coterie.run(federation, method, privacy, **settings | more)


@pytest.mark.parametrize("form", ["examples", "upload"])
@pytest.mark.parametrize("loss", ["squared"])
def test_targets_that_add_up_to_infinity_do_not_pass_the_noise(form, loss):
    given = federation_of((1.6e38, 1.6e38))
    found = train(given, Dual(form=form, lam=100.0, inner=0), loss=loss).vectors[0]
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("form", ["examples", "upload"])
def test_features_that_are_no_numbers(form):
    """Refused under privacy; without it the example counts as nothing."""
    given = federation_of(row=float("nan"))
    with refused("norm is above 1 or not a number"):
        train(given, Dual(form=form, inner=0))
    free = train(given, Dual(form=form, inner=0), Privacy(float("inf"), 1e-5, 1.0))
    assert torch.isfinite(free.vectors[0]).all()


def test_a_refusal_tells_no_length():
    with pytest.raises(Problem) as told:
        train(federation_of(row=3.0), Dual(inner=0))
    assert "4.2" not in str(told.value)


@dataclass(frozen=True, kw_only=True)
class Peeks(Dual):
    """Adds duals to the upload where there are several examples, as there never are in the dry run."""

    name: ClassVar[str] = "peeks"

    def local(self, sent, own, oracle):
        up, new = super().local(sent, own, oracle)
        for i in range(1, new.shape[2]):
            up = up + new[:, :, i].abs()
        return up, new


@dataclass(frozen=True, kw_only=True)
class Predicts(Dual):
    """Predicts with duals where there are several."""

    name: ClassVar[str] = "predicts"

    def personal(self, sent, own):
        return sent.model if own.shape[2] == 1 else own.abs().sum((2, 3), keepdim=False).unsqueeze(-1)


@dataclass(frozen=True, kw_only=True)
class Unseals(Dual):
    """Says that what is sealed is not raw."""

    name: ClassVar[str] = "unseals"

    def local(self, sent, own, oracle):
        up, new = super().local(sent, own, oracle)
        object.__setattr__(new, "raw", False)
        return up + new.sum(), new


@dataclass(frozen=True, kw_only=True)
class Counts(Dual):
    """Asks how many duals there are."""

    name: ClassVar[str] = "counts"

    def local(self, sent, own, oracle):
        up, new = super().local(sent, own, oracle)
        return up + new.numel(), new


@pytest.mark.parametrize("method", [Peeks(), Predicts(), Unseals(), Counts()], ids=lambda m: m.name)
def test_not_even_the_shape_of_duals_is_told(method):
    with pytest.raises(Refused, match="to look into state that only a door may read"):
        train(federation_of(), method)


def test_relations_are_learned_without_duals():
    """What is published of relations is made of what is shared; duals are not given."""

    @dataclass(frozen=True, kw_only=True)
    class Leaky(Dual):
        name: ClassVar[str] = "leaky"

        def learned_relations(self, shared, own):
            raise AssertionError("duals were given")

    with pytest.raises(TypeError, match="own"):
        train(federation_of(), Leaky(inner=1))


@dataclass(frozen=True, kw_only=True)
class AsksAgain(FedAvg):
    """Asks twice after rounds in which the first silo was away: a public fact, but not of all runs."""

    name: ClassVar[str] = "asks-again"

    def init(self, task, silos):
        shared, own = super().init(task, silos)
        return {"model": shared, "again": torch.zeros_like(shared[:, :, :1])}, own

    def broadcast(self, shared):
        return shared

    def local(self, sent, own, oracle):
        moved = oracle.descend(sent["model"])
        if bool((sent["again"] > 0).any()):
            moved = oracle.descend(moved)
        return moved - sent["model"], own

    def merge(self, shared, uploads, merger):
        again = torch.zeros_like(shared["again"])
        if merger.roster.present is not None:
            again = (~merger.roster.present[:, :1]).float().unsqueeze(-1)
        return {"model": shared["model"] + merger.mean(uploads), "again": again}

    def personal(self, sent, own):
        return sent["model"]


def test_runs_that_ask_for_other_doors_do_not_train_together(federation):
    how = Participation(0.6, "poisson")
    settings = {"rounds": 6, "batch": 8, "participation": how}
    coterie.run(federation, AsksAgain(), BUDGET, seeds=(5,), **settings)
    with refused("calls different doors in different runs"):
        coterie.run(federation, AsksAgain(), BUDGET, seeds=(5, 2), **settings)


def test_only_the_owner_reads_a_checkpoint(tmp_path):
    path = tmp_path / "out" / "checkpoint"
    save(path, "key", Checkpoint(State(1, torch.zeros(1), torch.zeros(1)), [], []))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("settings", [{"lam": 1e-46}, {"lam": 1e300}, {"beta": 1e-50}, {"lam": float("nan")}])
def test_numbers_that_float32_does_not_have(settings):
    with pytest.raises(Problem):
        Dual(**settings)


@pytest.mark.parametrize("norm", [0, -1, float("nan"), float("inf")])
def test_bounds_that_are_none(norm):
    what = "a number > 0" if math.isfinite(norm) else "a finite number"
    with refused(f"data.norm: expected {what}, got {norm}"):
        coterie.load("digits", silos=3, norm=norm)
