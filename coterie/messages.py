"""Messages between silos and server as bytes: a tree of tensors, in the safetensors format."""

from __future__ import annotations

import json
from typing import Any

from safetensors import deserialize
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from .tree import Tree, leaves


def pack(tree: Tree) -> bytes:
    """Turn a tree into bytes."""
    counter = iter(range(10**9))
    tensors = {str(i): leaf.detach().cpu().contiguous() for i, leaf in enumerate(leaves(tree))}
    return save_tensors(tensors, {"shape": json.dumps(_outline(tree, counter))})


def unpack(data: bytes) -> Tree:
    """Turn bytes back into a tree."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    deserialize(data)  # checks the lengths before anything is read
    return _fill(json.loads(header["__metadata__"]["shape"]), load_tensors(data))


def _outline(tree: Tree, counter: Any) -> Any:
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return next(counter)
    if isinstance(tree, dict):
        return {"dict": {key: _outline(value, counter) for key, value in tree.items()}}
    kind = "tuple" if isinstance(tree, tuple) else "list"
    return {kind: [_outline(value, counter) for value in tree]}


def _fill(outline: Any, tensors: dict[str, Tensor]) -> Tree:
    if outline is None:
        return None
    if isinstance(outline, int):
        return tensors[str(outline)]
    ((kind, content),) = outline.items()
    if kind == "dict":
        return {key: _fill(value, tensors) for key, value in content.items()}
    parts = [_fill(value, tensors) for value in content]
    return tuple(parts) if kind == "tuple" else parts
