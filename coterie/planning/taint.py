"""Released and raw: labels that vectors carry through the dry run.

A tensor of the dry run is *released*, or *raw* (computed from a silo's examples without protection). Anything
computed from a raw tensor is raw. Raw values cannot leave torch, and no tensor can be written in place.

Labels are kept here, by the identity of each tensor, and not in the tensors: nothing that a method writes to
a tensor changes its label. A raw tensor has a shape but no memory: its values are kept here too. An operation
that gets around the labels (`torch._C.DisableTorchFunction`, `torch.ops`, `.data`, another subclass) finds
nothing to compute with and is refused.

Formal guarantee: a label cannot be lost. Within `Labelling` every new tensor gets a label, and a tensor
without one is refused because its origin is unknown (`vmap`, `jit` and old constructors strip labels). What
this is worth: code in the same process can reach anything, this module included. Labels catch mistakes in
methods; they are no wall against an author who means harm.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from ..errors import Refused
from ..protocol.handles import Handle, refuse_handles
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


BELOW = (
    "a method uses '{}' on a raw value below the level at which labels are followed: use plain torch"
    " operations"
)


class Label(NamedTuple):
    """What is known about a tensor: whether it is raw or sealed, and the values of one that is.

    It is `apart` if it is sealed, and the state of each example follows from that example and released values
    alone.
    """

    tensor: _Key
    raw: bool
    values: torch.Tensor | None = None
    sealed: bool = False
    apart: bool = False


class _Key(weakref.ref[torch.Tensor]):
    """A weak reference that forgets the label when the tensor is gone."""

    __slots__ = ("key",)
    key: int


_LABELS: dict[int, Label] = {}


def _forget(reference: Any) -> None:
    _LABELS.pop(reference.key, None)


def _remember(tensor: torch.Tensor, raw: bool, **more: Any) -> None:
    reference = _Key(tensor, _forget)
    reference.key = id(tensor)
    _LABELS[id(tensor)] = Label(reference, raw, **more)


def _label_of(value: Any) -> Label | None:
    """Return the label of a tensor, or None if it has none."""
    found = _LABELS.get(id(value))
    return found if found is not None and found.tensor() is value else None


class Labelled(torch.Tensor):
    """A tensor of the dry run. What it may be used for is not decided by its class but by its label."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise Refused(
            f"a method wrote to the attribute '{name}' of a tensor: methods must be pure, so create a new one"
        )

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


class Raw(Labelled):
    """A raw tensor: it has a shape, a type and a device, but no memory. Its values are with its label."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
        """Raise `Refused`: operations that follow labels never get here."""
        raise Refused(BELOW.format(_name(func)))


class Sealed(Raw):
    """Raw state that a door returned and only a door may read: any operation on it is refused."""

    def __repr__(self) -> str:  # type: ignore[override]
        raise Refused(SEALED.format("repr"))


Kind = TypeVar("Kind", bound=Raw)


class Labelling(TorchFunctionMode):
    """A context that labels every new tensor and refuses tensors without a label."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Label the results of all operations, including those without tensor inputs."""
        inputs = _tensors((args, kwargs)) if kwargs else _tensors(args)
        _check_all_known(inputs)
        return _label_result(func, args, kwargs or {}, inputs)


def check_known(value: Any) -> None:
    """Raise `Refused` for a tensor without a label, and for a released one whose memory was taken away."""
    tensors = _tensors(value)
    _check_all_known(tensors)
    for tensor in tensors:
        if not is_raw(tensor) and torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
            raise Refused(UNKNOWN)


def _check_all_known(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        if _label_of(tensor) is None:
            raise Refused(UNKNOWN)


def _label_result(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[torch.Tensor]
) -> Any:
    raw, sealed, name = False, False, _name(func)
    for value in inputs:  # a plain loop, because this runs for every operation of every round
        found = _LABELS.get(id(value))
        if found is not None:
            raw |= found.raw
            sealed |= found.sealed
    if sealed and name not in FACTS_OF_SEALED:
        raise Refused(SEALED.format(name))
    if raw and (name in WAYS_OUT or _picks_by_raw(name, args)):
        raise Refused(
            f"a raw value would leave torch through '{name}': keep it in torch, or release it first"
        )
    if raw and name != "__hash__":
        args, kwargs = _with_values(args), _with_values(kwargs)
        inputs = _tensors((args, kwargs))
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
        values = values_of(value).detach()
        if raw:
            return _without_memory(Raw, values)
        labelled = torch.Tensor.as_subclass(values, Labelled)
    _remember(labelled, False)
    return labelled


def seal(value: torch.Tensor, apart: bool) -> Sealed:
    """Return a tensor that is raw and that only doors may read."""
    with torch._C.DisableTorchFunction():
        return _without_memory(Sealed, values_of(value).detach(), sealed=True, apart=apart)


def _without_memory(kind: type[Kind], values: torch.Tensor, **more: Any) -> Kind:
    """Return a raw tensor like some values, which it does not hold."""
    tensor: Kind = torch.Tensor._make_wrapper_subclass(
        kind, values.shape, strides=values.stride(), dtype=values.dtype, device=values.device
    )
    _remember(tensor, True, values=values, **more)
    return tensor


def values_of(value: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor: for the dry run itself, never for a method."""
    found = _label_of(value)
    return value if found is None or found.values is None else found.values


def is_raw(value: Any) -> bool:
    """Return whether a tensor is labelled raw or sealed; a tensor without a label counts as released."""
    found = _label_of(value)
    return found is not None and found.raw


def is_sealed(value: Any) -> bool:
    """Return whether only doors may read a tensor."""
    found = _label_of(value)
    return found is not None and found.sealed


def is_apart(value: Any) -> bool:
    """Return whether a sealed tensor's state of each example follows from it and released values alone."""
    found = _label_of(value)
    return found is not None and found.apart


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
        elif isinstance(part, Handle):
            refuse_handles(part)
        elif isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, tuple | list):
            waiting.extend(part)
    return tensors


def _with_values(value: Any) -> Any:
    """Return arguments with the values of raw tensors in their places."""
    if isinstance(value, torch.Tensor):
        return values_of(value)
    if isinstance(value, dict):
        return {key: _with_values(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [_with_values(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
