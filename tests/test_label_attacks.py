"""Methods that try to get rid of the label 'raw': what they return is refused, and they learn no number."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from coterie.errors import Refused
from coterie.methods import MRMTL
from coterie.planning.dry_run import dry_run
from coterie.planning.taint import Labelled, Labelling, Raw, is_raw, label, seal, values_of
from coterie.protocol.roster import Roster
from coterie.protocol.units import EXAMPLE

FAILURES = (Refused, RuntimeError, ValueError, TypeError, AttributeError)
ROSTER = Roster(tuple("abc"), torch.ones(3, dtype=torch.float64), torch.ones(1, 3))


class Evil(torch.Tensor):
    """A subclass that lets nobody see what is done with it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))


class Duck:
    """Something that torch asks before it works on tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return args[0] * 1


class Passes(TorchDispatchMode):
    """A mode that sees every operation below torch's functions."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def without(how, compute):
    """Compute while torch does not ask about labels."""

    def attack(u):
        with how():
            return compute(u)

    return attack


def sets_attribute(u):
    u.raw = False
    return u


def sets_behind(u):
    for name in ("raw", "apart", "sealed", "values"):
        object.__setattr__(u, name, False)
    return u


def copies_attributes(u):
    u.__dict__.update(torch.zeros(1).__dict__)
    return u


def changes_class(u):
    object.__setattr__(u, "__class__", Labelled)
    return u


def swaps(u):
    free = torch.zeros(u.shape)
    torch._C._swap_tensor_impl(free, u)
    return free


def reads_memory(u):
    with torch._C.DisableTorchFunction():
        address, count = u.data_ptr(), u.numel()
    if not address:
        raise RuntimeError("there is no memory")
    numbers = (ctypes.c_float * count).from_address(address)
    return torch.tensor(list(numbers)).reshape(u.shape)


OFF, SUBCLASS = torch._C.DisableTorchFunction, torch._C.DisableTorchFunctionSubclass
ATTACKS = {
    "attribute": sets_attribute,
    "object.__setattr__": sets_behind,
    "__dict__": copies_attributes,
    "__class__": changes_class,
    "swap": swaps,
    "off": without(OFF, lambda u: u * 1),
    "off, clone": without(OFF, lambda u: u.clone()),
    "off, detach": without(OFF, lambda u: u.detach()),
    "off, data": without(OFF, lambda u: u.data),
    "off, same": without(OFF, lambda u: u),
    "off, item": lambda u: torch.zeros(u.shape) + without(OFF, lambda v: v.sum().item())(u),
    "off, float": lambda u: torch.zeros(u.shape) + without(OFF, lambda v: float(v.reshape(-1)[0]))(u),
    "off, numpy": lambda u: torch.tensor(without(OFF, lambda v: v.numpy())(u)),
    "off, asarray": lambda u: torch.tensor(without(OFF, np.asarray)(u)),
    "off, tolist": lambda u: torch.tensor(without(OFF, lambda v: v.tolist())(u)),
    "off, dlpack": without(OFF, torch.from_dlpack),
    "off, storage": lambda u: torch.tensor(without(OFF, lambda v: bytes(v.untyped_storage()[:4]))(u)[0]),
    "off, branch": lambda u: torch.ones(u.shape) * (1 if without(OFF, lambda v: bool(v.max() > 0))(u) else 2),
    "off, as_subclass": without(OFF, lambda u: torch.Tensor.as_subclass(u, torch.Tensor)),
    "off, labelled": without(OFF, lambda u: torch.Tensor.as_subclass(u * 1, Labelled)),
    "off, alias": without(OFF, lambda u: torch.ops.aten.alias(u)),
    "off, evil": without(OFF, lambda u: torch.Tensor._make_subclass(Evil, u)),
    "off, wrapper": without(OFF, lambda u: torch.Tensor._make_wrapper_subclass(Raw, u.shape)),
    "off, write": lambda u: (z := torch.zeros(u.shape), without(OFF, lambda v: z.copy_(v))(u))[0],
    "off, set_data": lambda u: (z := torch.zeros(u.shape), without(OFF, lambda v: setattr(z, "data", v))(u))[0],
    "subclass off": without(SUBCLASS, lambda u: u * 1),
    "subclass off, item": lambda u: torch.zeros(u.shape) + without(SUBCLASS, lambda v: v.sum().item())(u),
    "as_subclass": lambda u: u.as_subclass(torch.Tensor),
    "unbound as_subclass": lambda u: torch.Tensor.as_subclass(u, torch.Tensor),
    "unbound base": lambda u: torch._C.TensorBase.as_subclass(u, torch.Tensor),
    "unbound add": lambda u: torch.Tensor.add(u, 0),
    "unbound item": lambda u: torch.zeros(u.shape) + torch.Tensor.item(u.sum()),
    "aten": lambda u: torch.ops.aten.add(u, 0),
    "aten overload": lambda u: torch.ops.aten.add.Tensor(u, torch.zeros(1)),
    "evil": lambda u: torch.zeros(u.shape).as_subclass(Evil) + u,
    "duck": lambda u: torch.add(u, Duck()),
    "dispatch mode": without(Passes, lambda u: u * 1),
    "no modes": without(_disable_current_modes, lambda u: u * 1),
    "slice": lambda u: torch.zeros(1, 3, 4)[:, :, : (u.amax() * 0 + 4).long()],
    "memory": reads_memory,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Attacks(MRMTL):
    """Uploads what a trick makes of a raw vector."""

    name: ClassVar[str] = "attacks"

    def local(self, sent, own, oracle):
        trick = ATTACKS[self.name.partition(": ")[2]]
        return trick(oracle.descend(own, home=True)), oracle.descend(sent)


def attacking(which):
    return type("Attacking", (Attacks,), {"name": f"attacks: {which}"})()


@pytest.mark.parametrize("which", ATTACKS)
def test_a_raw_vector_is_not_uploaded_as_released(which):
    with pytest.raises(FAILURES):
        dry_run(attacking(which), ROSTER, (4,), 2, EXAMPLE)


@pytest.mark.parametrize("which", ATTACKS)
def test_no_trick_returns_a_number_of_a_raw_vector(which):
    """A trick fails, or returns what is raw or unknown, or numbers that have nothing to do with it."""
    plain = torch.tensor([[[3.25, -7.5, 11.125, 0.0625]] * 3])
    with Labelling():
        try:
            out = ATTACKS[which](label(plain, raw=True))
        except FAILURES:
            return
        if is_raw(out):
            return
        with torch._C.DisableTorchFunction():
            try:
                numbers = out.as_subclass(torch.Tensor).flatten().tolist()
            except FAILURES:
                return
    assert not set(numbers) & set(plain.flatten().tolist())
    assert abs(numbers[0]) < 3


@pytest.mark.parametrize("make", [lambda v: label(v, raw=True), lambda v: seal(v, apart=True)])
def test_a_raw_tensor_has_no_memory_and_no_reference_to_its_values(make):
    values = torch.arange(6.0).reshape(2, 3)
    raw = make(values)
    assert raw.dtype == torch.float32
    with torch._C.DisableTorchFunction():
        assert raw.data_ptr() == 0
        assert raw.shape == (2, 3)
    assert not vars(raw)
    assert torch.equal(values_of(raw), values)


def test_labels_are_forgotten_with_their_tensors():
    from coterie.planning import taint

    gc.collect()
    before = len(taint._LABELS)
    kept = [label(torch.zeros(2), raw=bool(k % 2)) for k in range(10)]
    assert len(taint._LABELS) == before + 10
    del kept
    gc.collect()
    assert len(taint._LABELS) == before
