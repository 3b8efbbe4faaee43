"""Small trees of tensors, which methods keep and send.

A tree is a tensor, None, or a tuple, list or dict of trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tree = Any


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Return a tree with a function applied to every tensor (and its counterparts in the other trees)."""
    if tree is None:
        return None
    if isinstance(tree, torch.Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {k: map_leaves(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(map_leaves(function, *parts) for parts in zip(tree, *others, strict=True))
    raise TypeError(f"a tree may hold tensors, tuples, lists, dicts and None, got {type(tree).__name__}")


def leaves(tree: Tree) -> list[torch.Tensor]:
    """Return the tensors of a tree, in order."""
    tensors: list[torch.Tensor] = []
    map_leaves(tensors.append, tree)
    return tensors


def concatenate(trees: Sequence[Tree], dim: int) -> Tree:
    """Return trees of the same shape joined along a dimension, tensor by tensor."""
    return map_leaves(lambda *parts: torch.cat(parts, dim), trees[0], *trees[1:])
