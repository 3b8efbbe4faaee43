"""Released and raw: labels that vectors carry through the dry run.

A `Labelled` tensor is *released*, or *raw* (computed from a silo's examples without protection). Anything
computed from a raw tensor is raw. Raw values cannot leave torch, and no tensor can be written in place.

Formal guarantee: a label cannot be lost. Within `Labelling` every new tensor gets a label, and a tensor
without one is refused because its origin is unknown (`vmap`, `jit` and old constructors strip labels).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import Refused
from ..protocol.tree import Tree, leaves, map_leaves

# What may be read from a raw tensor outside torch: facts that do not depend on its values.
FACTS = frozenset(
    "shape dtype device ndim layout is_leaf requires_grad is_sparse is_cuda is_quantized is_meta names size"
    " dim ndimension numel nelement element_size itemsize nbytes stride is_contiguous is_floating_point"
    " is_complex is_signed __len__ get_device result_type can_cast broadcast_shapes __hash__ _version"
    " grad_fn grad _is_view is_inference is_tensor storage_offset is_same_size is_set_to"
    " _use_count".split()
)
# A sealed tensor hides even its shape, which may differ between dry run and training: a method that
# could see it might behave differently in the two.
FACTS_OF_SEALED = frozenset("dtype device is_floating_point is_complex __hash__ requires_grad".split())
# Operations whose result has a shape that depends on values, or that strip the label.
WAYS_OUT = frozenset(
    "nonzero argwhere masked_select unique unique_consecutive bincount repeat_interleave as_subclass"
    " _unique2 nonzero_static data_ptr storage untyped_storage __reduce_ex__ __deepcopy__ __dlpack__"
    " to_dlpack".split()
)


# Writes that do not change a tensor's version.
WRITES = frozenset("set_ __set__ resize_ resize_as_ swap_tensors".split())
UNKNOWN = (
    "a tensor of unknown origin is used: create tensors inside the method's functions, and use plain torch"
    " operations, not torch.func, torch.jit or torch.Tensor(...)"
)


SEALED = (
    "a method uses '{}' to look into state that only a door may read: keep it unchanged and pass it back to"
    " the door"
)


class Labelled(torch.Tensor):
    """A tensor that knows whether it is raw; if its label was never set, it counts as raw."""

    raw: bool = True

    def as_subclass(self, cls):  # type: ignore[no-untyped-def]
        """Raise `Refused`: this would strip the label."""
        raise Refused(
            "a raw value would leave torch through 'as_subclass': keep it in torch, or release it first"
        )

    def set_(self, *source):  # type: ignore[no-untyped-def]
        """Raise `Refused`: values would change under the same label (torch does not ask a subclass here)."""
        raise Refused(
            "a method wrote to a tensor in place ('set_'): methods must be pure, so create a new tensor"
        )

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run the operation on plain tensors and return its labelled result."""
        return _label_result(func, args, kwargs or {}, _tensors((args, kwargs)))


class Sealed(Labelled):
    """Raw state that a door returned and only a door may read: any operation on it is refused.

    It is `apart` if the state of each example follows from that example and released values alone.
    """

    apart: bool = False

    def __repr__(self) -> str:  # type: ignore[override]
        raise Refused(SEALED.format("repr"))


class Labelling(TorchFunctionMode):
    """A context that labels every new tensor and refuses tensors without a label."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Label the results of all operations, including those without tensor inputs."""
        inputs = _tensors((args, kwargs)) if kwargs else _tensors(args)
        _check_all_known(inputs)
        return _label_result(func, args, kwargs or {}, inputs)


def check_known(value: Any) -> None:
    """Raise `Refused` for a tensor without a label."""
    _check_all_known(_tensors(value))


def _check_all_known(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        if not isinstance(tensor, Labelled):
            raise Refused(UNKNOWN)


def _label_result(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[torch.Tensor]
) -> Any:
    raw, name = False, _name(func)
    for value in inputs:  # a plain loop, because this runs for every operation of every round
        raw |= is_raw(value)
    if raw and name not in FACTS_OF_SEALED and any(isinstance(value, Sealed) for value in inputs):
        raise Refused(SEALED.format(name))
    if raw and (name in WAYS_OUT or _picks_by_raw(name, args)):
        raise Refused(
            f"a raw value would leave torch through '{name}': keep it in torch, or release it first"
        )
    with torch._C.DisableTorchFunctionSubclass():
        before = [value._version for value in inputs]
        out = func(*args, **kwargs)
        written = [value._version for value in inputs] != before
    if written or name in WRITES:
        raise Refused(
            f"a method wrote to a tensor in place ('{name}'): methods must be pure, so create a new tensor"
        )
    if isinstance(out, torch.Tensor):
        return label(out, raw)
    if isinstance(out, tuple | list) and out and all(isinstance(o, torch.Tensor) for o in out):
        return type(out)([label(o, raw) for o in out])
    if raw and name not in FACTS:
        raise Refused(
            f"a raw value would leave torch through '{name}': keep it in torch, or release it first"
        )
    return out


def label(value: torch.Tensor, raw: bool) -> Labelled:
    """Return a tensor with a label."""
    with torch._C.DisableTorchFunction():
        labelled = torch.Tensor.as_subclass(value.detach(), Labelled)
        labelled.raw = raw
    return labelled


def seal(value: torch.Tensor, apart: bool) -> Sealed:
    """Return a tensor that is raw and that only doors may read."""
    with torch._C.DisableTorchFunction():
        sealed = torch.Tensor.as_subclass(value.detach(), Sealed)
        sealed.raw, sealed.apart = True, apart
    return sealed


def is_raw(value: Any) -> bool:
    """Return whether a tensor is labelled raw or sealed; a tensor without a label counts as released."""
    return isinstance(value, Labelled) and (value.raw or isinstance(value, Sealed))


def label_tree(tree: Tree, raw: bool) -> Tree:
    """Return a tree with every tensor labelled."""
    return map_leaves(lambda value: label(value, raw), tree)


def tree_is_raw(tree: Tree) -> bool:
    """Return whether any tensor of a tree is raw."""
    return any(is_raw(value) for value in leaves(tree))


def _name(func: Any) -> str:
    """Return the name of a torch function; for a property's getter, the property's name."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        return str(getattr(func.__self__, "__name__", name))
    return str(name)


def _picks_by_raw(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether the shape of an operation's result depends on raw values."""
    if name == "where" and len(args) == 1:
        return True
    if name != "__getitem__":
        return False
    return any(is_raw(index) and index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1:]))


def _tensors(value: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, torch.Tensor):
            tensors.append(part)
        elif isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, tuple | list):
            waiting.extend(part)
    return tensors
