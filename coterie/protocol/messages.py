"""Messages between silos and the server as bytes: trees of tensors in the safetensors format."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import Problem
from .tensor_bytes import from_bytes, to_bytes
from .tree import Tree, is_record, make_record, map_leaves, record, record_name

TYPES = {
    name: getattr(torch, name)
    for name in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "bool",
    )
}


@record
class Only(NamedTuple):
    """A part of a message that only some silos send or get: `sends` `[runs, silos, 1]` is public."""

    sends: Tensor
    value: Tensor


def pack(tree: Tree) -> bytes:
    """Return a tree as bytes."""
    tensors: dict[str, Tensor] = {}
    outline = _outline(tree, tensors)
    return to_bytes(tensors, json.dumps(outline))


def unpack(data: bytes | memoryview, most: int | None = None, share: bool = False) -> Tree:
    """Return the tree that `pack` turned into bytes.

    Parts that nobody sent are filled with zeros; `most` limits their bytes too, for data from elsewhere. With
    `share`, tensors may be parts of the data's own memory.
    """
    tensors, text = from_bytes(data, share)
    outline = json.loads(text)
    if most is not None and _absent_bytes(outline) > most:
        raise Problem(f"a message leaves out more than {most:,} bytes: it is not one of this training")
    return _fill(outline, tensors)


def _absent_bytes(outline: Any) -> int:
    """Return the bytes of the parts that nobody sent."""
    if isinstance(outline, list):
        return sum(map(_absent_bytes, outline))
    if not isinstance(outline, dict):
        return 0
    if set(outline) == {"nothing"}:
        shape = outline["nothing"][1]
        if not all(type(size) is int and 0 <= size < 2**53 for size in shape):
            raise Problem("a message leaves out a part of impossible shape")
        return 8 * int(math.prod(shape))
    return sum(map(_absent_bytes, outline.values()))


def only(who: Tensor, value: Tensor) -> Only:
    """Return a part of a message that only some silos send or get; `who` is `[runs, silos, 1]`, public."""
    shape = (*who.shape[:2], *[1] * (value.dim() - 2))
    return Only(who, torch.where(who.reshape(shape), value, torch.zeros_like(value)))


def bytes_of(tree: Tree, silos: int) -> list[int]:
    """Return the number of bytes of each silo's message.

    Silos that do not send a part (see `only`) send no bytes for it; which silos send it is public.
    """
    if isinstance(tree, Only):
        sends = tree.sends[0].reshape(-1).expand(silos).tolist()
        return [size if flag else 0 for size, flag in zip(bytes_of(tree.value, silos), sends, strict=True)]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple | list):
        parts = [bytes_of(part, silos) for part in tree]
        return [sum(sizes) for sizes in zip(*parts, strict=True)] if parts else [0] * silos
    if tree is None:
        return [0] * silos
    with torch._C.DisableTorchFunction():  # shapes are public, and propagating labels is slow
        return [math.prod(tree.shape[2:]) * tree.element_size()] * silos


def addressed(sent: Tree, k: int, silos: int) -> Tree:
    """Return what silo k gets of a message that has a part for each silo."""
    return map_leaves(lambda leaf: leaf[:, k : k + 1] if leaf.shape[1] == silos else leaf, sent)


def _outline(tree: Tree, tensors: dict[str, Tensor]) -> Any:
    """Return the outline of a tree, with its tensors put into `tensors`; omit parts that nobody sends."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        number = len(tensors)
        tensors[str(number)] = tree.detach().cpu().contiguous()
        return number
    if isinstance(tree, Only) and not bool(tree.sends.any()):
        shape = list(tree.value.shape)
        return {"nothing": [_outline(tree.sends, tensors), shape, str(tree.value.dtype).split(".")[-1]]}
    if isinstance(tree, dict):
        return {"dict": {key: _outline(value, tensors) for key, value in tree.items()}}
    if is_record(tree):
        return {"record": [record_name(tree), [_outline(value, tensors) for value in tree]]}
    kind = "tuple" if isinstance(tree, tuple) else "list"
    return {kind: [_outline(value, tensors) for value in tree]}


def _fill(outline: Any, tensors: dict[str, Tensor]) -> Tree:
    if outline is None:
        return None
    if isinstance(outline, int):
        return tensors[str(outline)]
    ((kind, content),) = outline.items()
    if kind == "nothing":
        mask, shape, dtype = content
        if dtype not in TYPES:
            raise Problem(f"a message leaves out numbers of the unknown type '{dtype}'")
        return Only(_fill(mask, tensors), torch.zeros(shape, dtype=TYPES[dtype]))
    if kind == "dict":
        return {key: _fill(value, tensors) for key, value in content.items()}
    if kind == "record":
        name, parts = content
        return make_record(name, [_fill(value, tensors) for value in parts])
    parts = [_fill(value, tensors) for value in content]
    return tuple(parts) if kind == "tuple" else parts
