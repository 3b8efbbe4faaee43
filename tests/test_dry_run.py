"""The dry run of long layers: quick, and what it finds is what a pass in full length finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from coterie.errors import Refused
from coterie.experiment import estimate
from coterie.methods import MRMTL, FedAvg, Local
from coterie.planning import dry_run as module
from coterie.planning.dry_run import dry_run
from coterie.planning.schedule import Participation
from coterie.protocol.doors import DESCEND
from coterie.protocol.roster import Roster
from coterie.protocol.units import EXAMPLE, SILO
from tests.helpers import every_method, experiment, title

LAYERS, NAMES, ROUNDS = (300, 7), ("0.weight", "0.bias"), 5
PRESENT = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1]], dtype=torch.bool)


def roster():
    epsilon = torch.tensor([[1.0, 2.0, 8.0]], dtype=torch.float64)
    return Roster(tuple("abc"), torch.tensor([20.0, 30.0, 40.0], dtype=torch.float64), epsilon)


def outcome(method, unit, present):
    try:
        return dry_run(method, roster(), LAYERS, ROUNDS, unit, present, NAMES)
    except Refused as refusal:
        return str(refusal)


@pytest.mark.parametrize("present", [None, PRESENT], ids=["all", "some"])
@pytest.mark.parametrize("unit", [EXAMPLE, SILO], ids=str)
@pytest.mark.parametrize("method", every_method(), ids=title)
def test_long_layers_count_as_in_full_length(method, unit, present, monkeypatch):
    found = outcome(method, unit, present)
    monkeypatch.setattr(module, "LONG", 1000)
    assert found == outcome(method, unit, present)


@pytest.mark.parametrize("unit", [EXAMPLE, SILO], ids=str)
def test_values_are_not_made_in_full_length(unit, monkeypatch):
    """The only pass in full length is one without values."""
    seen = []
    count = module._count

    def watched(given, *rest):
        seen.append((given.facts.layers, given.facts.device))
        return count(given, *rest)

    monkeypatch.setattr(module, "_count", watched)
    dry_run(FedAvg(), roster(), LAYERS, ROUNDS, unit, names=NAMES)
    assert [device for layers, device in seen if layers == LAYERS] == ["meta"]


def test_bytes_of_further_runs():
    """Bytes of each run are those of a dry run of that run alone."""
    runs = torch.stack([PRESENT, ~PRESENT, torch.ones_like(PRESENT)], dim=1)
    found = dry_run(FedAvg(), roster(), LAYERS, ROUNDS, SILO, runs, NAMES).runs()
    alone = [dry_run(FedAvg(), roster(), LAYERS, ROUNDS, SILO, runs[:, r], NAMES) for r in range(3)]
    assert found == alone
    assert found[0].bytes_up == (3 * 4 * 307, 4 * 4 * 307, 4 * 4 * 307)


@dataclass(frozen=True, kw_only=True)
class RawIfLong(MRMTL):
    """Sends what never was noised, but only if the model is large."""

    name: ClassVar[str] = "raw-if-long"

    def local(self, sent, own, oracle):
        raw = oracle.descend(own, home=True) if own.shape[-1] > 200 else oracle.descend(own)
        return raw, own


@dataclass(frozen=True, kw_only=True)
class TwiceIfLong(Local):
    """Asks twice if the model is large."""

    name: ClassVar[str] = "twice-if-long"

    def local(self, sent, own, oracle):
        moved = oracle.descend(own)
        return None, oracle.descend(moved) if own.shape[-1] > 200 else moved


@dataclass(frozen=True, kw_only=True)
class AsksForValues(FedAvg):
    """Looks at released numbers outside torch, as it may."""

    name: ClassVar[str] = "asks-for-values"

    def merge(self, shared, uploads, merger):
        step = merger.mean(uploads)
        return shared + step / (1 + float(step.norm()))


@dataclass(frozen=True, kw_only=True)
class ChoosesByValues(FedAvg):
    """Asks again where a number happens to be positive."""

    name: ClassVar[str] = "chooses-by-values"

    def local(self, sent, own, oracle):
        moved = oracle.descend(sent)
        return (oracle.descend(moved) if float(sent.sum()) > 0 else moved) - sent, own


def test_what_is_raw_only_in_full_length_is_refused():
    with pytest.raises(Refused, match="raw"):
        dry_run(RawIfLong(), roster(), LAYERS, ROUNDS, names=NAMES)


def test_what_is_asked_only_in_full_length_is_counted():
    found = dry_run(TwiceIfLong(), roster(), LAYERS, ROUNDS, names=NAMES)
    assert found.calls == ((DESCEND, DESCEND),) * ROUNDS


def test_a_method_that_asks_for_values_is_counted_in_full_length():
    assert dry_run(AsksForValues(), roster(), LAYERS, ROUNDS, names=NAMES).bytes_up == (5 * 4 * 307,) * 3
    with pytest.raises(Refused, match="called different doors"):
        dry_run(ChoosesByValues(), roster(), LAYERS, ROUNDS, names=NAMES)


@pytest.mark.parametrize("unit", [EXAMPLE, SILO], ids=str)
def test_of_many_rounds_only_the_first_are_compared(unit, monkeypatch):
    whole = dry_run(FedAvg(), roster(), LAYERS, ROUNDS, unit, PRESENT, NAMES)
    monkeypatch.setattr(module, "COMPARED", 2)
    assert dry_run(FedAvg(), roster(), LAYERS, ROUNDS, unit, PRESENT, NAMES) == whole
    with pytest.raises(Refused, match="called different doors"):
        dry_run(ChoosesByValues(), roster(), LAYERS, ROUNDS, names=NAMES)


@pytest.mark.parametrize("present", [None, PRESENT], ids=["all", "some"])
@pytest.mark.parametrize("unit", [EXAMPLE, SILO], ids=str)
@pytest.mark.parametrize("method", every_method(), ids=title)
def test_many_rounds_count_as_one_by_one(method, unit, present, monkeypatch):
    found = outcome(method, unit, present)
    monkeypatch.setattr(module, "COMPARED", 2)
    assert found == outcome(method, unit, present)


@dataclass(frozen=True, kw_only=True)
class LateTwice(FedAvg):
    """Asks twice in one late round, which it finds by its number, by its place in time, or by a clock."""

    name: ClassVar[str] = "late-twice"
    by: ClassVar[str] = "oracle"

    def init(self, start, silos):
        shared, own = super().init(start, silos)
        return (shared, torch.zeros(1, 1, 1)), own

    def local(self, sent, own, oracle):
        late = oracle.round == 4 if self.by == "oracle" else sent[1].shape[-1] == 5
        late = float(sent[1].sum()) == 4 if self.by == "clock" else late
        moved = oracle.descend(sent[0])
        return (oracle.descend(moved) if late else moved) - sent[0], own

    def merge(self, shared, uploads, merger):
        clock = shared[1] + 1
        if self.by in ("roster", "copied"):
            roster = merger.within(None).roster if self.by == "copied" else merger.roster
            clock = clock.expand(1, 1, 5) if roster.round == 3 else clock[..., :1]
        return super().merge(shared[0], uploads, merger), clock

    def personal(self, sent, own):
        return sent[0]


@pytest.mark.parametrize("by", ["oracle", "roster", "copied", "clock"])
def test_a_late_round_that_differs_is_found(by, monkeypatch):
    monkeypatch.setattr(LateTwice, "by", by)
    monkeypatch.setattr(module, "COMPARED", 2)
    found = dry_run(LateTwice(), roster(), LAYERS, 12, names=NAMES)
    assert [len(doors) for doors in found.calls] == [1, 1, 1, 1, 2, *[1] * 7]
    monkeypatch.setattr(module, "MOST_ROUNDS", 11)
    said = "'late-twice' asks for the number of the round, or for values.* limited to 11 rounds, got 12"
    with pytest.raises(Refused, match=said):
        dry_run(LateTwice(), roster(), LAYERS, 12, names=NAMES)


@pytest.mark.parametrize("unit", [EXAMPLE, SILO], ids=str)
def test_a_million_rounds_are_counted_at_once(unit, monkeypatch):
    rounds, counted = 10**6, []
    present = torch.arange(rounds * 3).reshape(rounds, 3) % 4 > 0
    monkeypatch.setattr(module, "COMPARED", 5)
    count = module.CountingOracle.descend
    monkeypatch.setattr(module.CountingOracle, "descend", lambda *a, **k: counted.append(1) or count(*a, **k))
    found = dry_run(FedAvg(), roster(), LAYERS, rounds, unit, present, NAMES)
    assert len(counted) < 100
    assert found.calls == ((DESCEND,),) * rounds
    assert found.bytes_up == tuple(int(n) * 4 * 307 for n in present.sum(0))
    assert sum(found.merged) == (0 if unit is EXAMPLE else rounds)


def test_the_estimate_counts_calls_steps_and_who_is_there(federation, monkeypatch):
    """A call costs 2 and each step 3, here: the estimate is that of all calls, of those who come."""

    def cost(_experiment, _plan, cohort, *_):
        return 2.0 + 3.0 * cohort.work[0].steps

    monkeypatch.setattr(estimate, "_once", cost)
    for steps in (1, 4, 40):
        made = experiment(federation, FedAvg(), rounds=5, steps=steps)
        assert estimate.seconds(made, made.plan()) == pytest.approx(5 * (2 + 3 * steps))
    some = experiment(federation, FedAvg(), rounds=5, steps=4, participation=Participation(0.67))
    plan = some.plan()
    assert estimate.seconds(some, plan) == pytest.approx(5 * 14 * float(plan.present.double().mean()))
