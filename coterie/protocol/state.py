"""The state of a training between two rounds."""

from __future__ import annotations

from dataclasses import dataclass

from .tree import Tree


@dataclass(frozen=True, eq=False)
class State:
    """The state of a training after `round` rounds: what the server shares, and what silos keep."""

    round: int
    shared: Tree
    own: Tree
