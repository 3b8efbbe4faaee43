"""What a plan is computed from: public facts only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ..protocol.doors import Work
from ..protocol.method import Method
from ..protocol.roster import Roster
from .schedule import Participation, Schedule

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class MergeTerms:
    """How the noise of merges is specified under the unit 'silo'.

    The noise multiplier follows from the budgets, unless `noise` `[runs, silos]` sets it. It multiplies the
    clip or, with the `sensitivity` "paper", the sensitivity of an upload according to Wu, Chen and Wang
    (2020); see `heads_sensitivity`. `noise_by` says whether the server adds the noise, or each silo to its
    own upload, and whether these are added up securely, with so many `dropouts` and `colluding` silos. With
    a `quantile`, the clip follows the uploads' lengths.
    """

    noise: Tensor | None = None
    noise_by: str = "server"
    sensitivity: str = "certified"
    quantile: float | None = None
    dropouts: int = 0
    colluding: int = 0


@dataclass(frozen=True, eq=False)
class Request:
    """Everything that determines a plan.

    `layers` are the lengths of the model's parameters and `names` their names. `delta` and `clip` are
    `[runs, silos]`, like the roster's epsilon. `schedule` says which silos take part in which
    rounds, `participation` how that was drawn, and `spending` how silos use their budgets (see
    `experiment.notes.BUDGETS`).
    """

    method: Method
    roster: Roster
    work: tuple[Work, ...]
    layers: tuple[int, ...]
    rounds: int
    delta: Tensor
    clip: Tensor
    names: tuple[str, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    participation: Participation | None = None
    spending: str = "own"
    merging: MergeTerms = field(default_factory=MergeTerms)
    on_progress: Progress | None = None
