"""Small trees of tensors: what methods keep and send.

A tree is a tensor, None, or a tuple, list or dict of trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tree = Any


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to every tensor of a tree (and of trees of the same shape)."""
    if tree is None:
        return None
    if isinstance(tree, torch.Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {k: map_leaves(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(map_leaves(function, *parts) for parts in zip(tree, *others, strict=True))
    raise TypeError(f"a tree holds tensors, tuples, lists, dicts and None, got {type(tree).__name__}")


def leaves(tree: Tree) -> list[torch.Tensor]:
    """List the tensors of a tree, in order."""
    found: list[torch.Tensor] = []
    map_leaves(found.append, tree)
    return found


def concatenate(trees: Sequence[Tree], dim: int) -> Tree:
    """Join trees of one shape, tensor by tensor."""
    return map_leaves(lambda *parts: torch.cat(parts, dim), trees[0], *trees[1:])
