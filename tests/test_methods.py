"""Every method passes the conformance check, and methods that break a rule do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from coterie.errors import Problem, Refused
from coterie.methods import MRMTL, FedAvg, Local
from coterie.testing import NotConforming, check_method
from tests.helpers import UNSOUND_FOR_SILOS, every_method, title


@pytest.mark.parametrize("method", every_method(), ids=title)
def test_conformance(method):
    check_method(method, "example")


@pytest.mark.parametrize("method", every_method(), ids=title)
def test_conformance_for_whole_silos(method):
    if method.name not in UNSOUND_FOR_SILOS:
        check_method(method, "silo")
        return
    with pytest.raises(Refused, match=UNSOUND_FOR_SILOS[method.name]):
        check_method(method, "silo")


@dataclass(frozen=True, kw_only=True)
class Impure(Local):
    name: ClassVar[str] = "impure"
    calls: ClassVar[list[int]] = []

    def local(self, sent, own, oracle):
        self.calls.append(1)
        return None, oracle.descend(own) + len(self.calls)


@dataclass(frozen=True, kw_only=True)
class Writes(FedAvg):
    name: ClassVar[str] = "writes"

    def merge(self, shared, uploads, merger):
        return shared.add_(merger.mean(uploads))


@dataclass(frozen=True, kw_only=True)
class Doubles(FedAvg):
    name: ClassVar[str] = "doubles"

    def merge(self, shared, uploads, merger):
        return (shared + merger.mean(uploads)).double()


@dataclass(frozen=True, kw_only=True)
class Mixes(MRMTL):
    name: ClassVar[str] = "mixes"

    def local(self, sent, own, oracle):
        trained = oracle.descend(own) + own.mean(1, keepdim=True)
        return trained - own, trained


@dataclass(frozen=True, kw_only=True)
class FirstIsSpecial(FedAvg):
    name: ClassVar[str] = "first"

    def merge(self, shared, uploads, merger):
        return shared + uploads[:, :1]


@dataclass(frozen=True, kw_only=True)
class Greedy(FedAvg):
    """Asks a second time if the model has grown: which doors are called depends on vectors."""

    name: ClassVar[str] = "greedy"

    def local(self, sent, own, oracle):
        moved = oracle.descend(sent)
        if float(moved.sum()) > 0:
            moved = oracle.descend(moved)
        return moved - sent, None


@dataclass(frozen=True, kw_only=True)
class OneSilo(FedAvg):
    name: ClassVar[str] = "one"

    def local(self, sent, own, oracle):
        return oracle.descend(sent)[:, :1] - sent, None


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Impure(), "pure"),
        (Writes(), "in place"),
        (Doubles(), "float32"),
        (Mixes(), "mixes silos"),
        (FirstIsSpecial(), "order of the silos"),
        (Greedy(), "mixes silos"),
        (OneSilo(), r"\[runs, silos, ...\]"),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_broken_methods_are_refused(broken, said):
    with pytest.raises(Refused, match=said):
        check_method(broken)


def test_a_method_must_be_frozen():
    class Plain(Local):
        __dataclass_fields__: ClassVar[dict] = {}

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)

    with pytest.raises(NotConforming, match="frozen"):
        check_method(Plain())


@pytest.mark.parametrize("lam", [-1.0, float("nan"), float("inf"), "a", None, True, [0.1, -2.0], []])
def test_settings_are_checked(lam):
    with pytest.raises(Problem, match="lam must be a number"):
        MRMTL(lam=lam)


def test_setting_sentence():
    with pytest.raises(Problem, match=r"^lam must be a number >= 0, got -1$"):
        MRMTL(lam=-1)


def test_mean_is_weighted_by_declared_sizes():
    from coterie.protocol.merging import PlainMerger
    from coterie.protocol.roster import Roster

    sizes = torch.tensor([1.0, 3.0], dtype=torch.float64)
    roster = Roster(("a", "b"), sizes, torch.ones(1, 2))
    uploads = torch.tensor([[[4.0], [8.0]]])
    merger = PlainMerger(roster)
    assert torch.equal(merger.mean(uploads), torch.tensor([[[7.0]]]))
    assert merger.mean(uploads).dtype == torch.float32
