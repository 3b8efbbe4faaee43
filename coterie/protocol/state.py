"""Where a training stands."""

from __future__ import annotations

from dataclasses import dataclass

from .tree import Tree


@dataclass(frozen=True, eq=False)
class State:
    """Where a training stands after `round` rounds."""

    round: int
    shared: Tree
    own: Tree
