"""The public facts about the silos of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Steps:
    """How silos step, all `[runs, silos]`: public facts.

    `count` is the number of steps per call of a training door, `lr` and `clip` are theirs. `noise` is the
    deviation of the privacy noise in the mean gradient of one step, for each coordinate: multiplier x clip
    / expected batch.
    """

    count: Tensor
    lr: Tensor
    clip: Tensor
    noise: Tensor


@dataclass(frozen=True, eq=False)
class Roster:
    """Names, declared sizes `[silos]` and budgets (epsilon `[runs, silos]`) of the silos.

    `present` says which silos take part in the round, `groups` which learn together (one number per
    group), both `[runs, silos]`. None means every silo, and all silos together. Engines fill in the rest:
    `steps`, how silos train (all ones in a dry run, where the noise is not known yet), and `round`, the
    number of the round, from 0, of `rounds`.

    If persons are protected, `sizes` counts persons, each of whom has `each` rows at most.
    """

    names: tuple[str, ...]
    sizes: Tensor
    epsilon: Tensor
    present: Tensor | None = None
    groups: Tensor | None = None
    steps: Steps | None = None
    round: int = 0
    rounds: int = 1
    each: int = 1

    def __len__(self) -> int:
        return len(self.names)

    def at(self, present: Tensor | None) -> Roster:
        """Return the roster of a round in which these silos take part."""
        return replace(self, present=present)

    def within(self, groups: Tensor | None) -> Roster:
        """Return the roster in which silos learn within groups."""
        return replace(self, groups=groups)

    def after(self, rounds: int) -> Roster:
        """Return the roster that counts rounds from the end of the first few, as a second method sees it."""
        return replace(self, round=self.round - rounds, rounds=self.rounds - rounds)
