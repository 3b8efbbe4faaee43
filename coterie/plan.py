"""Planning is a dry run: the method runs with an oracle that only counts.

The counts give each silo's noise, its bytes, and the refusals: the vectors of the dry run
carry labels (see `labels`), so a method that is not sound in a unit is not run in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .cohort.sampling import Work
from .errors import Refused
from .labels import Labelling, check_known, is_raw, label, tree_is_raw
from .method import Method, PerRun, for_run
from .oracle import Oracle
from .privacy.calibration import Target, calibrate
from .roster import Roster
from .tree import Tree, leaves, map_leaves

UNITS = ("example", "silo")


@dataclass(frozen=True)
class Counts:
    """What a dry run saw: the doors called in each round, bytes of each silo in all rounds."""

    calls: tuple[tuple[str, ...], ...]
    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]


@dataclass(frozen=True)
class SiloPlan:
    """What one silo will do and spend in one run."""

    name: str
    work: Work
    budget: float
    delta: float
    steps: int
    noise: float
    epsilon: float
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Plan:
    """What a training will do: `silos[run][k]` for every run and silo."""

    counts: Counts
    silos: tuple[tuple[SiloPlan, ...], ...]

    def noise(self) -> Tensor:
        """Give the multipliers `[runs, silos]`."""
        return torch.tensor([[silo.noise for silo in run] for run in self.silos])


def make_plan(
    method: Method,
    roster: Roster,
    work: Sequence[Work],
    size: int,
    rounds: int,
    delta: Tensor,
    on_progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Count what a method asks for, and find the noise that makes every silo end at its budget.

    `size` is the length of a vector; `delta` is `[runs, silos]`, as the roster's epsilon.
    """
    counts = dry_run(method, roster, size, rounds)
    each = sum(door == "descend" for calls in counts.calls for door in calls)
    steps = [each * w.steps for w in work]
    budgets = roster.epsilon.tolist()
    targets = [
        [Target(epsilon, d, w.rate, n) for epsilon, d, w, n in zip(run, deltas, work, steps, strict=True)]
        for run, deltas in zip(budgets, delta.tolist(), strict=True)
    ]
    found = calibrate((t for run in targets for t in run if t.steps), on_progress)
    silos = []
    for run in targets:
        plans = []
        for k, target in enumerate(run):
            noise, spent = (found[target].noise, found[target].epsilon) if target.steps else (0.0, 0.0)
            plans.append(
                SiloPlan(
                    roster.names[k], work[k], target.epsilon, target.delta, target.steps, noise, spent,
                    counts.bytes_up[k], counts.bytes_down[k],
                )
            )  # fmt: skip
        silos.append(tuple(plans))
    return Plan(counts, tuple(silos))


def dry_run(method: Method, roster: Roster, size: int, rounds: int, unit: str = "example") -> Counts:
    """Run a method on labelled random vectors, on their opposites and on others: the counts must agree."""
    single = for_run(method, 0)
    one = replace(roster, epsilon=roster.epsilon[:1])
    with Labelling():
        first, *others = (_count(single, one, size, rounds, unit, scale) for scale in (1.0, -1.0, 7.0))
    if any(other != first for other in others):
        raise Refused(
            f"'{method.name}' called other doors, or sent other bytes, for other vectors: which doors are"
            " called may depend on public facts and the round only"
        )
    return first


def _count(method: Method, roster: Roster, size: int, rounds: int, unit: str, scale: float) -> Counts:
    silos = len(roster)
    public = CountingRoster.of(roster, unit)
    shared, own = method.init(_RandomStart(size, scale), silos)
    check_known((shared, own))
    calls, up, down = [], [0] * silos, [0] * silos
    for number in range(rounds):
        sent = method.broadcast(shared)
        check_known(sent)
        _refuse(tree_is_raw(sent), "broadcast sends a raw value to the silos")
        _add_bytes(down, sent)
        if silos > 1 and (number == 0 or unit == "silo"):
            _check_apart(method, sent, own, number, silos, unit, scale)
        oracle = CountingOracle(number, silos, unit, scale)
        uploads, own = method.local(sent, own, oracle)
        check_known((uploads, own))
        _check_home(uploads, own, silos, unit)
        _add_bytes(up, uploads)
        shared = method.merge(shared, uploads, public)
        check_known(shared)
        _refuse(
            tree_is_raw(shared),
            "merge looks into raw uploads: under the unit 'silo' it may only ask for roster.mean(uploads)",
        )
        calls.append(tuple(oracle.made))
    personal = method.personal(method.broadcast(shared), own)
    check_known(personal)
    if personal.shape not in ((1, silos, size), (1, 1, size)):
        raise Refused(f"personal must give [runs, silos, {size}], got {list(personal.shape)}")
    _refuse(unit == "example" and is_raw(personal), "a personal model is raw: it must be released")
    return Counts(tuple(calls), tuple(up), tuple(down))


def _refuse(condition: bool, why: str) -> None:
    if condition:
        raise Refused(why)


def _check_home(uploads: Tree, own: Tree, silos: int, unit: str) -> None:
    """Check what a silo sends and keeps."""
    for what, tree in (("upload", uploads), ("own state", own)):
        for leaf in leaves(tree):
            if leaf.dim() < 2 or leaf.shape[1] != silos:
                raise Refused(f"a silo's {what} must be [runs, silos, ...], got {list(leaf.shape)}")
    if unit == "example":
        _refuse(
            tree_is_raw(uploads), "an upload is raw: under the unit 'example' only released values may leave"
        )
        _refuse(
            tree_is_raw(own),
            "a silo keeps raw state: under the unit 'example' that makes its later releases unsound",
        )


def _check_apart(
    method: Method, sent: Tree, own: Tree, number: int, silos: int, unit: str, scale: float
) -> None:
    """Refuse a `local` that is not pure, or in which one silo's state changes what another does."""

    def nudge(leaf: Tensor) -> Tensor:
        first = torch.arange(silos).reshape(1, -1, *[1] * (leaf.dim() - 2)) == 0
        return leaf + first.to(leaf.dtype) if leaf.is_floating_point() else leaf

    plain, again = (method.local(sent, own, CountingOracle(number, silos, unit, scale)) for _ in range(2))
    nudged = method.local(sent, map_leaves(nudge, own), CountingOracle(number, silos, unit, scale))
    with torch._C.DisableTorchFunction():
        for before, repeated, after in zip(leaves(plain), leaves(again), leaves(nudged), strict=True):
            if not torch.equal(before, repeated):
                raise Refused(f"'{method.name}' gave two answers to the same question: methods are pure")
            if before.dim() > 1 and not torch.equal(before[:, 1:], after[:, 1:]):
                raise Refused("local mixes silos: what one silo does must not depend on another's state")


def _add_bytes(total: list[int], tree: Tree) -> None:
    """Add the bytes of a message of one run to each silo's total."""
    each = sum(leaf[0, 0].numel() * leaf.element_size() for leaf in leaves(tree))
    total[:] = [t + each for t in total]


@dataclass(frozen=True)
class _RandomStart:
    size: int
    scale: float

    def initial(self, index: int = 0) -> Tensor:
        """Give a random vector in place of an initial one."""
        return label(_random((1, 1, self.size), self.scale, -1, index), raw=False)


def _random(shape: tuple[int, ...], scale: float, round_: int, call: int) -> Tensor:
    """Make random vectors; opposite scales give opposite vectors, other sizes give others."""
    seed = ((round_ + 2) * 1_000_003 + call) * 1_000_003 + round(abs(scale))
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class CountingOracle(Oracle):
    """Doors without examples: they count, check the labels, and give random vectors."""

    def __init__(self, number: int, silos: int, unit: str, scale: float) -> None:
        self.round = number
        self.silos = silos
        self.unit = unit
        self.scale = scale
        self.made: list[str] = []

    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
    ) -> Tensor:
        """Count a training."""
        check_known((start, toward, strength))
        for what, value in (("start", start), ("target", toward), ("strength", strength)):
            if self.unit == "example" and is_raw(value):
                raise Refused(f"the {what} of 'descend' is raw: under the unit 'example' it must be released")
        self.made.append("home" if home else "descend")
        shape = (1, self.silos, start.shape[-1])
        moved = start.expand(shape) + _random(shape, self.scale, self.round, len(self.made))
        inherited = any(map(is_raw, (start, toward, strength)))
        return label(moved, raw=home or self.unit == "silo" or inherited)


@dataclass(frozen=True, eq=False)
class CountingRoster(Roster):
    """A roster for the dry run: under the unit 'silo' its mean is what releases raw uploads."""

    unit: str = "example"

    @classmethod
    def of(cls, roster: Roster, unit: str) -> CountingRoster:
        """Wrap a roster; its facts are public, so released."""
        return cls(roster.names, label(roster.sizes, raw=False), label(roster.epsilon, raw=False), unit)

    def mean(self, uploads: Tensor) -> Tensor:
        """Give the mean, released under the unit 'silo'."""
        mean = super().mean(uploads)
        return label(mean, raw=False) if self.unit == "silo" else mean
