"""The oracle, merger and start of a dry run: they count and check labels, and never see examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import Refused
from ..protocol.doors import DESCEND, DESCEND_AT_HOME, FISHER, Door, select_door, solve_dual_door
from ..protocol.merging import AS_SENT, UNIFORM, Merger, matrix_sums, weighted_mean
from ..protocol.oracle import Oracle
from ..protocol.roster import Roster, Steps
from ..protocol.settings import PerRun
from ..protocol.units import Unit
from .taint import check_known, is_apart, is_raw, is_sealed, label, seal


def refuse(condition: bool, why: str) -> None:
    """Raise `Refused(why)` if the condition holds."""
    if condition:
        raise Refused(why)


class Watch:
    """Whether a method asked for the number of the round."""

    def __init__(self) -> None:
        self.asked = False


@dataclass(frozen=True, eq=False)
class WatchedRoster(Roster):
    """A roster that notes whether its `round` was read; copying it counts as reading."""

    watch: Watch | None = None

    def __getattribute__(self, name: str) -> Any:
        if name == "round" and self.watch is not None:
            self.watch.asked = True
        return super().__getattribute__(name)


@dataclass(frozen=True, eq=False)
class RandomStart:
    """The start of a dry run: random vectors and public facts."""

    scale: float
    roster: Roster
    rounds: int
    layers: tuple[int, ...]
    names: tuple[str, ...]
    device: str

    def initial(self, index: int = 0, apart: bool = False) -> Tensor:
        """Return a random vector in place of an initial model."""
        return label(_random((1, 1, sum(self.layers)), self.scale, -1, index, self.device), raw=False)

    def duals(self, silos: int) -> Tensor:
        """Return zero duals, for one example and output."""
        return label(torch.zeros(1, silos, 1, 1, device=self.device), raw=False)


def _random(shape: tuple[int, ...], scale: float, round_: int, call: int, device: str) -> Tensor:
    """Return random vectors: opposite ones for opposite scales, unrelated ones for other sizes."""
    if device == "meta":
        return torch.empty(shape, device=device)
    seed = ((round_ + 2) * 1_000_003 + call) * 1_000_003 + round(abs(scale))
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class CountingOracle(Oracle):
    """An oracle without examples: its doors count calls, check labels and return random vectors."""

    def __init__(
        self,
        number: int,
        rounds: int,
        silos: int,
        unit: Unit,
        scale: float,
        device: str = "cpu",
        nudge: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.nudge = nudge or (lambda leaf: leaf)
        self.watch = Watch()
        self._number = number
        self.rounds = rounds
        self.silos = silos
        self.unit = unit
        self.scale = scale
        self.device = device
        self.opened: list[Door] = []

    @property
    def round(self) -> int:  # type: ignore[override]
        """The number of the round; reading it is noted."""
        self.watch.asked = True
        return self._number

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return _random(shape, self.scale, self._number, len(self.opened), self.device)

    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
        imitate: Tensor | None = None,
    ) -> Tensor:
        """Count a call of `descend`."""
        given = {"start": start, "target": toward, "strength": strength, "model to imitate": imitate}
        check_known(tuple(given.values()))
        for what, value in given.items():
            if self.unit.noise_in_doors and is_raw(value):
                raise Refused(f"the {what} of 'descend' is raw: under the unit 'example' it must be released")
        self.opened.append(DESCEND_AT_HOME if home else DESCEND)
        shape = (1, self.silos, start.shape[-1])
        moved = self.nudge(start.expand(shape) + self._random(shape))
        inherited = any(map(is_raw, given.values()))
        return label(moved, raw=home or not self.unit.noise_in_doors or inherited)

    def fisher(self, vectors: Tensor) -> Tensor:
        """Count a call of `fisher`."""
        check_known(vectors)
        self.unit.check(FISHER)
        self.opened.append(FISHER)
        shape = (1, self.silos, vectors.shape[-1])
        return label(self.nudge(self._random(shape).square()), raw=True)

    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Count a private choice."""
        check_known(candidates)
        self.unit.check(select_door(share))
        if is_raw(candidates):
            raise Refused("the candidates of 'select' are raw: they must be released")
        self.opened.append(select_door(share))
        drawn = self._random((1, self.silos)).abs() * 1e4
        return label(drawn.long() % candidates.shape[1], raw=False)

    def solve_dual(
        self,
        start: Tensor,
        duals: Tensor,
        *,
        stiffness: Tensor,
        xi: PerRun = 1.0,
        whole: bool = False,
        unproven: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Count a move of duals; check that a sampled dual has not seen other examples."""
        check_known((start, duals, stiffness, xi, unproven))
        whole = whole or unproven is not None
        self.unit.check(solve_dual_door(whole, unproven is not None))
        for what, value in (("start", start), ("stiffness", stiffness), ("xi", xi)):
            if is_raw(value):
                raise Refused(f"the {what} of 'solve_dual' is raw: it must be released")
        if is_raw(duals) and not is_sealed(duals):
            raise Refused(
                "the duals of 'solve_dual' are raw: begin with start.duals, then pass back what it returned"
            )
        if not whole and is_sealed(duals) and not is_apart(duals):
            raise Refused(
                "duals that moved one after the other have seen all examples: continue with whole=True"
            )
        self.opened.append(solve_dual_door(whole, unproven is not None))
        shape = (1, self.silos, start.shape[-1])
        sums = start.expand(shape).tanh() + self._random(shape)
        moved = torch.zeros(1, self.silos, 1, 1, device=self.device)
        return label(sums, raw=False), seal(moved, apart=not whole)


def public_roster(roster: Roster, rounds: int, run: int = 0, device: str = "cpu") -> WatchedRoster:
    """Return the roster of one run for a dry run, labelled as released because its facts are public."""
    ones = label(torch.ones(1, len(roster), device=device), raw=False)
    return WatchedRoster(
        roster.names,
        label(roster.sizes, raw=False).to(device),
        label(roster.epsilon, raw=False)[run : run + 1].to(device),
        steps=Steps(ones, ones, ones, ones),
        rounds=rounds,
    )


@dataclass(frozen=True, eq=False)
class CountingMerger(Merger):
    """A merger for the dry run; under the unit 'silo' it releases the raw `uploads`, and nothing else.

    `asked` lists what the method asked for; all copies of a merger share it.
    """

    unit: Unit
    uploads: tuple[Tensor, ...]
    asked: list[str] = field(default_factory=list)

    def mean(self, uploads: Tensor, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Return the mean, released under the unit 'silo'."""
        grouped = self.roster.groups is not None
        refuse(not self.unit.noise_in_doors and (weights is not None or grouped), UNIFORM)
        self._ask("mean", uploads)
        mean = weighted_mean(uploads, self.roster, weights, everybody)
        return mean if self.unit.noise_in_doors else label(mean, raw=False)

    def mix(self, uploads: Tensor, matrix: Tensor) -> Tensor:
        """Return sums weighted by a public matrix, released under the unit 'silo'."""
        check_known(matrix)
        refuse(is_raw(matrix), "uploads are mixed by a raw matrix: it must be public")
        self._ask("mix", uploads)
        mixed = matrix_sums(uploads, self.roster, matrix)
        return mixed if self.unit.noise_in_doors else label(mixed, raw=False)

    def _ask(self, what: str, uploads: Tensor) -> None:
        refuse(not self.unit.noise_in_doors and not any(uploads is sent for sent in self.uploads), AS_SENT)
        self.asked.append(what)
