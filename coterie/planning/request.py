"""What a plan is made from: public facts only."""

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
    """How noise on merges is asked for, under the unit 'silo'.

    The noise multiplier follows from the budgets, unless `noise` `[runs, silos]` gives it. It multiplies the
    clip or, with the `sensitivity` "paper", what Wu, Chen and Wang (2020) take for the sensitivity of an
    upload (see `heads_sensitivity`). The server adds the noise, or each silo to its own upload (`noise_by`).
    With a `quantile` the clip follows the uploads' lengths.
    """

    noise: Tensor | None = None
    noise_by: str = "server"
    sensitivity: str = "certified"
    quantile: float | None = None


@dataclass(frozen=True, eq=False)
class Request:
    """Everything that a plan follows from.

    `layers` are the lengths of the model's parameters and `names` their names. `delta` and `clip` are
    `[runs, silos]`, like the roster's epsilon. `schedule` says who takes part when, `participation` how that
    was drawn, and `spending` what silos make of their budgets (see `experiment.BUDGETS`).
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
