"""Released and raw: a test for each rule of the dry run."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from coterie.errors import Refused
from coterie.methods import MRMTL, FedAvg, Local
from coterie.planning.dry_run import dry_run
from coterie.planning.taint import FACTS, Labelled, Labelling, is_raw, label
from coterie.protocol.doors import DESCEND
from coterie.protocol.roster import Roster
from coterie.protocol.units import EXAMPLE, SILO

RAW = label(torch.tensor([1.0, 2.0]), raw=True)
FREE = label(torch.tensor([1.0, 2.0]), raw=False)


def roster(silos=3):
    return Roster(tuple("abc"[:silos]), torch.ones(silos, dtype=torch.float64), torch.ones(1, silos))


@pytest.mark.parametrize(
    "compute",
    [
        lambda v: v + 1,
        lambda v: 1 - v,
        lambda v: v.sum(),
        lambda v: torch.stack([v, v]),
        lambda v: torch.cat([FREE, v]),
        lambda v: v[0],
        lambda v: v.reshape(2, 1) @ torch.ones(1, 2),
        lambda v: torch.where(v > 0, 1.0, 0.0),
        lambda v: v.argmax(),
        lambda v: v.detach().clone(),
        lambda v: v.data,
        lambda v: torch.ones_like(v),
        lambda v: torch.ones(2)[v.long() - 1],
        lambda v: v.sort()[1],
        lambda v: v.topk(1).values,
        lambda v: v.max(0)[0],
        lambda v: torch.linalg.svd(v.reshape(1, 2))[2],
        lambda v: next(iter(v)),
        lambda v: v.double(),
        lambda v: torch.einsum("a,b->ab", v, torch.ones(2)),
    ],
)
def test_labels_propagate(compute):
    assert is_raw(compute(RAW))
    assert not is_raw(compute(FREE))


@pytest.mark.parametrize(
    "leave",
    [
        lambda v: v.numpy(),
        lambda v: v.sum().item(),
        lambda v: v.tolist(),
        lambda v: float(v[0]),
        lambda v: int(v[0]),
        lambda v: bool(v[0] > 0),
        lambda v: [] if v[0] > 0 else None,
        lambda v: v.__array__(),
        lambda v: torch.equal(v, FREE),
        lambda v: torch.allclose(v, FREE),
        lambda v: v.nonzero(),
        lambda v: torch.where(v > 1),
        lambda v: FREE[v > 1],
        lambda v: v.masked_select(v > 1),
        lambda v: v.unique(),
        lambda v: v.as_subclass(torch.Tensor),
        lambda v: v.untyped_storage(),
        lambda v: v.data_ptr(),
        lambda v: repr(v),
        lambda v: f"{v[0]}",
        lambda v: pickle.dumps(v),
        lambda v: copy.deepcopy(v),
        lambda v: range(10)[v[0].long()],
        lambda v: 3.0 in v,
        lambda v: v.is_nonzero() if v.numel() == 1 else v[0].is_nonzero(),
    ],
)
def test_raw_cannot_leave_torch(leave):
    with pytest.raises(Refused, match="raw value would leave torch"):
        leave(RAW)


def test_released_may_leave_torch_and_raw_may_tell_its_shape():
    assert FREE.tolist() == [1.0, 2.0]
    assert bool(FREE[0] > 0)
    assert RAW.shape == (2,)
    assert RAW.dtype == torch.float32
    assert len(RAW) == 2
    assert RAW.dim() == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda plain: plain.copy_(RAW),
        lambda plain: torch.add(RAW, 1, out=plain),
        lambda plain: plain.__setitem__(slice(None), RAW),
        lambda plain: plain.add_(RAW),
        lambda plain: RAW.mul_(0),
        lambda plain: FREE.copy_(RAW),
    ],
)
def test_nothing_is_written_in_place(write):
    with pytest.raises(Refused, match="in place"):
        write(torch.zeros(2))


@dataclass(frozen=True, kw_only=True)
class Base(MRMTL):
    """Calls `trick` in place of MR-MTL's work."""

    name: ClassVar[str] = "trick"

    def local(self, sent, own, oracle):
        return self.trick(sent, own, oracle)


class UploadsRawHead(Base):
    def trick(self, sent, own, oracle):
        trained = oracle.descend(sent)
        head = oracle.descend(own, home=True)
        return torch.cat([trained[..., :2], head[..., 2:]], -1) - sent, trained


class KeepsRawState(Base):
    def trick(self, sent, own, oracle):
        return oracle.descend(sent) - sent, oracle.descend(own, home=True)


class StartsRaw(Base):
    def trick(self, sent, own, oracle):
        return oracle.descend(oracle.descend(own, home=True)) - sent, own


class TargetRaw(Base):
    def trick(self, sent, own, oracle):
        return oracle.descend(own, toward=oracle.descend(own, home=True), strength=1.0) - sent, own


class StrengthRaw(Base):
    def trick(self, sent, own, oracle):
        strength = oracle.descend(own, home=True).norm(dim=-1, keepdim=True)
        return oracle.descend(own, toward=sent, strength=strength) - sent, own


@dataclass(frozen=True, kw_only=True)
class PredictsRaw(Local):
    name: ClassVar[str] = "predicts"

    def local(self, sent, own, oracle):
        return None, own

    def personal(self, sent, own):
        return label(own, raw=True)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (UploadsRawHead(), "an upload is raw"),
        (KeepsRawState(), "keeps raw state"),
        (StartsRaw(), "the start of 'descend' is raw"),
        (TargetRaw(), "the target of 'descend' is raw"),
        (StrengthRaw(), "the strength of 'descend' is raw"),
        (PredictsRaw(), "a personal model is raw"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_example_unit_refuses(method, said):
    with pytest.raises(Refused, match=said):
        dry_run(method, roster(), (4,), 2, EXAMPLE)


@pytest.mark.parametrize("kind", [UploadsRawHead, KeepsRawState, StartsRaw, TargetRaw, StrengthRaw])
def test_silo_unit_lets_raw_stay_home_and_be_averaged(kind):
    dry_run(kind(), roster(), (4,), 2, SILO)


def looks(look):
    """Make a method that merges by a function of one's own."""

    class Looks(FedAvg):
        def merge(self, shared, uploads, merger):
            return look(shared, uploads, merger)

    return Looks()


@pytest.mark.parametrize(
    "look",
    [
        lambda s, u, r: s + u.mean(1, keepdim=True),
        lambda s, u, r: s + r.mean(u) * u.max(),
        lambda s, u, r: s + r.mean(u) + torch.linalg.svd(u)[2].sum(),
        lambda s, u, r: s * u.norm(),
    ],
)
def test_silo_unit_merge_must_not_look_into_raw_uploads(look):
    with pytest.raises(Refused, match="merge looks into raw uploads"):
        dry_run(looks(look), roster(), (4,), 2, SILO)
    dry_run(looks(look), roster(), (4,), 2, EXAMPLE)


def test_silo_unit_merge_cannot_branch_on_raw_uploads():
    def branch(shared, uploads, merger):
        return shared + merger.mean(uploads) if uploads.max() > 0 else shared

    with pytest.raises(Refused, match="merge looks into raw uploads"):
        dry_run(looks(branch), roster(), (4,), 2, SILO)


def test_broadcast_must_not_be_raw():
    class Shares(FedAvg):
        def broadcast(self, shared):
            return label(shared, raw=True)

    with pytest.raises(Refused, match="broadcast sends a raw value"):
        dry_run(Shares(), roster(), (4,), 2, SILO)


def test_a_call_outside_the_plan_is_refused(federation):
    """At run time the oracle allows what the dry run counted, in that order, and no more."""
    from coterie.cohort.oracle import CohortOracle
    from coterie.protocol.streams import SeededStreams
    from tests.helpers import experiment

    made = experiment(federation, FedAvg())
    plan = made.plan()
    oracle = CohortOracle(made.cohort(plan), SeededStreams(made.keys), 0, plan.counts.calls[0])
    start = torch.zeros(1, 3, made.task.layout.size)
    oracle.descend(start)
    with pytest.raises(Refused, match="which is not in the plan"):
        oracle.descend(start)
    with pytest.raises(Refused, match="home"):
        oracle.descend(start, home=True)


def test_bytes_are_those_of_the_arrays_sent():
    counts = dry_run(MRMTL(), roster(), (7,), 5)
    assert counts.bytes_up == (5 * 7 * 4,) * 3
    assert counts.bytes_down == (5 * 7 * 4,) * 3
    assert dry_run(Local(), roster(), (7,), 5).bytes_up == (0, 0, 0)
    assert counts.calls == ((DESCEND,),) * 5


LOSES = {
    "vmap": lambda u: torch.func.vmap(torch.median)(u.reshape(-1, u.shape[-1])).amax(),
    "grad": lambda u: torch.func.grad(lambda v: (v * v).sum())(u).amax(),
    "full": lambda u: torch.full((1, 1, 4), u.amax()),
    "tensor": lambda u: torch.tensor(u).amax(1, keepdim=True),
    "constructor": lambda u: torch.Tensor(u).amax(1, keepdim=True),
    "as_tensor": lambda u: torch.as_tensor(u, dtype=torch.float64).float().amax(1, keepdim=True),
    "set": lambda u: torch.empty(0).set_(u).amax(1, keepdim=True),
    "jit": lambda u: torch.jit.trace(lambda v: v * 2, torch.ones(1, 3, 4))(u).amax(1, keepdim=True),
    "nested": lambda u: torch.nested.nested_tensor([u[0, 0], u[0, 1]]).to_padded_tensor(0.0)[:1, None],
    "new": lambda u: torch.zeros(1).new_tensor(u).amax(1, keepdim=True),
    "subclass": lambda u: torch.Tensor._make_subclass(torch.Tensor, u).amax(1, keepdim=True),
    "parameter": lambda u: torch.nn.Parameter(u).amax(1, keepdim=True),
    "fill": lambda u: torch.zeros(1, 1, 4).fill_(u.amax()),
    "linspace": lambda u: torch.linspace(u.amax(), 1.0, 4).reshape(1, 1, 4),
    "module": lambda u: torch.nn.Linear(4, 4)(u).amax(1, keepdim=True),
    "storage": lambda u: torch.tensor(u.untyped_storage()[:4]).reshape(1, 1, 4),
    "copy": lambda u: copy.copy(u).amax(1, keepdim=True),
    "clone": lambda u: torch.zeros_like(u).copy_(u).amax(1, keepdim=True),
    "autograd": lambda u: Doubled.apply(u).amax(1, keepdim=True),
    "attribute": lambda u: setattr(box := torch.zeros(1, 3, 4), "data", u) or box.amax(1, keepdim=True),
}


class Doubled(torch.autograd.Function):
    """A function of one's own."""

    @staticmethod
    def forward(ctx, value):
        return value * 2


@pytest.mark.parametrize("loses", LOSES.values(), ids=LOSES)
@pytest.mark.filterwarnings("ignore")
def test_no_way_of_making_a_tensor_loses_the_label(loses):
    """Under the unit 'silo' no function of raw uploads reaches the server's state: handles are no tensors."""
    with pytest.raises((Refused, TypeError, ValueError, RuntimeError)):
        dry_run(looks(lambda s, u, r: s + loses(u)), roster(), (4,), 1, SILO)


@pytest.mark.parametrize("loses", LOSES.values(), ids=LOSES)
@pytest.mark.filterwarnings("ignore")
def test_no_way_of_making_a_tensor_lets_raw_be_uploaded(loses):
    class Uploads(Base):
        def trick(self, sent, own, oracle):
            return oracle.descend(sent) + loses(oracle.descend(own, home=True)), own

    with pytest.raises(Refused):
        dry_run(Uploads(), roster(), (4,), 1, EXAMPLE)


@pytest.mark.filterwarnings("ignore")
def test_no_operation_of_a_tensor_hides_raw_values():
    """Whatever can be called with a raw tensor gives raw, refuses, or tells a fact of its shape."""
    failures = (Refused, TypeError, ValueError, RuntimeError, IndexError, NotImplementedError)
    called = 0
    with Labelling():
        for name in (name for name in dir(torch.Tensor) if not name.startswith("__")):
            for arguments in [(RAW,), (0, RAW), ((2,), RAW[0]), (RAW, RAW), ()]:
                taker = label(torch.zeros(2), raw=not arguments)
                before = taker.clone()
                try:
                    out = getattr(taker, name)(*arguments) if callable(getattr(taker, name)) else None
                except (*failures, AttributeError, AssertionError):
                    continue
                called += 1
                if not is_raw(taker):
                    with torch._C.DisableTorchFunction():
                        assert torch.equal(taker, before), name
                if isinstance(out, torch.Tensor):
                    assert is_raw(out) or not isinstance(out, Labelled), name
                else:
                    facts = name in FACTS or out is None or callable(out) or isinstance(out, tuple | type)
                    assert facts, name
    assert called > 200


def test_tensors_made_in_the_method_are_known_and_others_are_not():
    makes = looks(lambda s, u, r: s + torch.full((1, 1, 4), 2.0) + torch.tensor([1.0, 2, 3, 4]) + r.mean(u))
    dry_run(makes, roster(), (4,), 2, SILO)
    outside = torch.ones(4)
    with pytest.raises(Refused, match="unknown origin"):
        dry_run(looks(lambda s, u, r: s + outside), roster(), (4,), 2, SILO)
    with pytest.raises(Refused, match="unknown origin"):
        dry_run(looks(lambda s, u, r: outside.reshape(1, 1, 4)), roster(), (4,), 2, SILO)
