"""Small trees of tensors: what methods keep and send.

A tree is a tensor, None, or a tuple, list, dict or record of trees. A record is a `NamedTuple` with `@record`
above its class: methods name with it what they keep and send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from ..errors import Problem

Tree = Any
Kind = TypeVar("Kind", bound=type[tuple[Any, ...]])

_DECLARED: dict[str, type[tuple[Any, ...]]] = {}


def record(kind: Kind) -> Kind:
    """Declare a `NamedTuple` that trees may hold, so that it comes back from bytes as the same class.

    Bytes carry the name of a record and its fields, never code: only what is declared where they are read is
    made of them.
    """
    _DECLARED[_name(kind)] = kind
    return kind


def record_name(tree: Tree) -> str:
    """Return the name by which bytes know a record."""
    name = _name(type(tree))
    if _DECLARED.get(name) is not type(tree):
        raise Problem(f"a tree holds '{name}', which is not declared: put @record above the class")
    return name


def make_record(name: str, parts: Sequence[Tree]) -> Tree:
    """Return the record of a name with these parts, if it is declared here."""
    kind: Any = _DECLARED.get(name)
    if kind is None or len(kind._fields) != len(parts):
        raise Problem(f"bytes hold '{name}' with {len(parts)} parts, which is not declared here")
    return kind(*parts)


def is_record(tree: Tree) -> bool:
    """Return whether a tree is a `NamedTuple`."""
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to every tensor of a tree (and of trees of the same shape)."""
    if tree is None:
        return None
    if isinstance(tree, torch.Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {k: map_leaves(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [map_leaves(function, *each) for each in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if is_record(tree) else type(tree)(parts)
    raise TypeError(
        f"a tree holds tensors, tuples, lists, dicts, records and None, got {type(tree).__name__}"
    )


def leaves(tree: Tree) -> list[torch.Tensor]:
    """List the tensors of a tree, in order."""
    tensors: list[torch.Tensor] = []
    map_leaves(tensors.append, tree)
    return tensors


def concatenate(trees: Sequence[Tree], dim: int) -> Tree:
    """Join trees of one shape, tensor by tensor."""
    return map_leaves(lambda *parts: torch.cat(parts, dim), trees[0], *trees[1:])


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
