"""The dry run: the method runs with an oracle that only counts.

Its vectors carry labels (see `labels`), so a method that is not sound in a unit is not run in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .errors import Refused
from .labels import Labelling, Sealed, check_known, is_raw, label, seal, tree_is_raw
from .merging import AS_SENT
from .messages import bytes_of
from .method import Method, PerRun, for_run
from .oracle import DUAL_AT_HOME, FISHER, Oracle, dual_door
from .roster import Roster, Steps
from .tree import Tree, leaves, map_leaves

UNITS = ("example", "silo")


@dataclass(frozen=True)
class Counts:
    """What a dry run saw: the doors called in each round, bytes of each silo in all rounds.

    `sealed` says which parts of a silo's own state only doors may read. Under the unit 'silo' also in which
    rounds uploads are merged, whether personal models are raw, and whether other sums than the mean are
    asked for.
    """

    calls: tuple[tuple[str, ...], ...]
    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]
    merged: tuple[bool, ...] = ()
    raw_personal: bool = False
    mixed: bool = False
    sealed: tuple[bool, ...] = ()


@dataclass(frozen=True, eq=False)
class Facts:
    """What is public when a training is planned."""

    roster: Roster
    rounds: int
    layers: tuple[int, ...]
    names: tuple[str, ...] = ()


def dry_run(
    method: Method,
    roster: Roster,
    layers: tuple[int, ...],
    rounds: int,
    unit: str = "example",
    present: Tensor | None = None,
    names: tuple[str, ...] = (),
) -> Counts:
    """Run a method on labelled random vectors, on their opposites and on others: the counts must agree.

    `layers` and `names` are lengths and names of the parameters; `present` says who takes part when,
    `[rounds, silos]`.
    """
    single, facts = for_run(method, 0), Facts(roster, rounds, layers, names)
    with one_thread(), Labelling():
        first, *others = (_count(single, facts, 0, unit, scale, present) for scale in (1.0, -1.0, 7.0))
    if any(other != first for other in others):
        raise Refused(
            f"'{method.name}' called other doors, or sent other bytes, for other vectors: which doors are"
            " called may depend on public facts and the round only"
        )
    return first


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: vectors here are few, and threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_pass(method: Method, facts: Facts, present: Tensor | None, run: int, unit: str = "example") -> Counts:
    """Count one run of a method that was found sound: bytes differ where others take part."""
    with one_thread(), Labelling():
        return _count(for_run(method, run), facts, run, unit, 1.0, present)


def _count(method: Method, facts: Facts, run: int, unit: str, scale: float, present: Tensor | None) -> Counts:
    silos, size, rounds = len(facts.roster), sum(facts.layers), facts.rounds
    public = CountingRoster.of(facts.roster, unit, run)
    shared, own = method.init(_RandomStart(scale, public, facts.rounds, facts.layers, _names(facts)), silos)
    check_known((shared, own))
    calls, merged, mixed, up, down = [], [], False, [0] * silos, [0] * silos
    for number in range(rounds):
        here = None if present is None else label(present, raw=False)[number].unsqueeze(0)
        sent = method.broadcast(shared)
        check_known(sent)
        _refuse(tree_is_raw(sent), "broadcast sends a raw value to the silos")
        _add_bytes(down, sent, here)
        if silos > 1 and (number == 0 or unit == "silo"):
            _check_apart(method, sent, own, (number, rounds, silos, unit, scale))
        oracle = CountingOracle(number, rounds, silos, unit, scale)
        uploads, new = method.local(sent, own, oracle)
        check_known((uploads, new))
        _check_home(uploads, new, silos, unit)
        _add_bytes(up, uploads, here)
        if here is not None:
            uploads = map_leaves(lambda leaf, who=here: _where(who, leaf, torch.zeros_like(leaf)), uploads)
            new = map_leaves(lambda old, own, who=here: _where(who, own, old), own, new)
        own = new
        asked: list[str] = []
        who = None if here is None else label(here, raw=unit == "silo")  # who came is hidden there
        merging = replace(public, present=who, asked=asked, received=tuple(leaves(uploads)))
        shared = method.merge(shared, uploads, merging)
        check_known(shared)
        _refuse(
            unit == "silo" and len(asked) > 1,
            "merge asks for two means: under the unit 'silo' the mean of a round is asked for once",
        )
        merged.append(bool(asked))
        mixed |= "mix" in asked
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
    if unit == "example":
        sealed = tuple(isinstance(leaf, Sealed) for leaf in leaves(own))
        return Counts(tuple(calls), tuple(up), tuple(down), sealed=sealed)
    return Counts(tuple(calls), tuple(up), tuple(down), tuple(merged), is_raw(personal), mixed)


def _names(facts: Facts) -> tuple[str, ...]:
    """Give the names of the parameters, or numbers in their places."""
    return facts.names or tuple(map(str, range(len(facts.layers))))


def _where(present: Tensor, new: Tensor, old: Tensor) -> Tensor:
    if isinstance(new, Sealed):
        return new
    return torch.where(present.reshape(*present.shape, *[1] * (new.dim() - 2)), new, old)


def _refuse(condition: bool, why: str) -> None:
    if condition:
        raise Refused(why)


def _check_home(uploads: Tree, own: Tree, silos: int, unit: str) -> None:
    """Check what a silo sends and keeps."""
    for what, tree in (("upload", uploads), ("own state", own)):
        for leaf in leaves(tree):
            if leaf.dim() < 2 or leaf.shape[1] != silos:
                raise Refused(f"a silo's {what} must be [runs, silos, ...], got {list(leaf.shape)}")
    if unit == "silo":
        sent = leaves(uploads)
        _refuse(
            len(sent) > 1 or not all(leaf.is_floating_point() for leaf in sent),
            "under the unit 'silo' a silo sends one real vector, which is clipped as a whole",
        )
    if unit == "example":
        _refuse(
            tree_is_raw(uploads), "an upload is raw: under the unit 'example' only released values may leave"
        )
        _refuse(
            any(is_raw(leaf) and not isinstance(leaf, Sealed) for leaf in leaves(own)),
            "a silo keeps raw state: under the unit 'example' that makes its later releases unsound",
        )


def _check_apart(method: Method, sent: Tree, own: Tree, asked: tuple[int, int, int, str, float]) -> None:
    """Refuse a `local` that is not pure, or in which one silo's state changes what another does."""

    def nudge(leaf: Tensor) -> Tensor:
        first = torch.arange(silos).reshape(1, -1, *[1] * (leaf.dim() - 2)) == 0
        return leaf + first.to(leaf.dtype) if leaf.is_floating_point() else leaf

    silos = asked[2]
    plain, again = (method.local(sent, own, CountingOracle(*asked)) for _ in range(2))
    nudged = method.local(sent, map_leaves(nudge, own), CountingOracle(*asked, nudge=nudge))
    with torch._C.DisableTorchFunction():
        for before, repeated, after in zip(leaves(plain), leaves(again), leaves(nudged), strict=True):
            if not torch.equal(before, repeated):
                raise Refused(f"'{method.name}' gave two answers to the same question: methods are pure")
            if before.dim() > 1 and not torch.equal(before[:, 1:], after[:, 1:]):
                raise Refused("local mixes silos: what one silo does must not depend on another's state")


def _add_bytes(total: list[int], tree: Tree, present: Tensor | None) -> None:
    """Add the bytes of a message of one run to the total of each silo that takes part."""
    here = [True] * len(total) if present is None else present[0].tolist()
    for k, each in enumerate(bytes_of(tree, len(total))):
        total[k] += each if here[k] else 0


@dataclass(frozen=True, eq=False)
class _RandomStart:
    scale: float
    roster: Roster
    rounds: int
    layers: tuple[int, ...]
    names: tuple[str, ...]

    def initial(self, index: int = 0, apart: bool = False) -> Tensor:
        """Give a random vector in place of an initial one."""
        return label(_random((1, 1, sum(self.layers)), self.scale, -1, index), raw=False)

    def duals(self, silos: int) -> Tensor:
        """Give a dual of zero for each example and output."""
        return label(torch.zeros(1, silos, 1, 1), raw=False)


def _random(shape: tuple[int, ...], scale: float, round_: int, call: int) -> Tensor:
    """Make random vectors; opposite scales give opposite vectors, other sizes give others."""
    seed = ((round_ + 2) * 1_000_003 + call) * 1_000_003 + round(abs(scale))
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class CountingOracle(Oracle):
    """Doors without examples: they count, check the labels, and give random vectors."""

    def __init__(
        self,
        number: int,
        rounds: int,
        silos: int,
        unit: str,
        scale: float,
        nudge: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.nudge = nudge or (lambda leaf: leaf)
        self.round = number
        self.rounds = rounds
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
        imitate: Tensor | None = None,
    ) -> Tensor:
        """Count a training."""
        given = {"start": start, "target": toward, "strength": strength, "model to imitate": imitate}
        check_known(tuple(given.values()))
        for what, value in given.items():
            if self.unit == "example" and is_raw(value):
                raise Refused(f"the {what} of 'descend' is raw: under the unit 'example' it must be released")
        self.made.append("home" if home else "descend")
        shape = (1, self.silos, start.shape[-1])
        moved = self.nudge(start.expand(shape) + _random(shape, self.scale, self.round, len(self.made)))
        inherited = any(map(is_raw, given.values()))
        return label(moved, raw=home or self.unit == "silo" or inherited)

    def fisher(self, vectors: Tensor) -> Tensor:
        """Count a look at squared gradients."""
        check_known(vectors)
        _refuse(self.unit == "example", FISHER)
        self.made.append("fisher")
        shape = (1, self.silos, vectors.shape[-1])
        return label(self.nudge(_random(shape, self.scale, self.round, len(self.made)).square()), raw=True)

    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Count a private choice."""
        check_known(candidates)
        if self.unit == "silo":
            raise Refused("what a silo chooses is raw under the unit 'silo', where it has no sound release")
        if is_raw(candidates):
            raise Refused("the candidates of 'select' are raw: they must be released")
        self.made.append(f"select {share:g}")
        drawn = _random((1, self.silos), self.scale, self.round, len(self.made)).abs() * 1e4
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
        """Count a move of duals; what is kept of one example must not have seen the others."""
        check_known((start, duals, stiffness, xi, unproven))
        whole = whole or unproven is not None
        if self.unit == "silo":
            raise Refused(DUAL_AT_HOME)
        for what, value in (("start", start), ("stiffness", stiffness), ("xi", xi)):
            if is_raw(value):
                raise Refused(f"the {what} of 'solve_dual' is raw: it must be released")
        if is_raw(duals) and not isinstance(duals, Sealed):
            raise Refused("the duals of 'solve_dual' are raw: begin with task.duals, then give back its own")
        if not whole and isinstance(duals, Sealed) and not duals.apart:
            raise Refused(
                "duals that moved one after the other have seen all examples: go on with whole=True"
            )
        self.made.append(dual_door(whole, unproven))
        shape = (1, self.silos, start.shape[-1])
        sums = start.expand(shape).tanh() + _random(shape, self.scale, self.round, len(self.made))
        return label(sums, raw=False), seal(torch.zeros(1, self.silos, 1, 1), apart=not whole)


@dataclass(frozen=True, eq=False)
class CountingRoster(Roster):
    """A roster for the dry run: under the unit 'silo' its mean is what releases raw uploads."""

    unit: str = "example"
    asked: list[str] | None = None
    received: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, roster: Roster, unit: str, run: int = 0) -> CountingRoster:
        """Wrap a roster of one run; its facts are public, so released."""
        sizes, epsilon = label(roster.sizes, raw=False), label(roster.epsilon, raw=False)
        one = label(torch.ones(1, len(roster)), raw=False)
        steps = Steps(one, one, one, one)
        return cls(roster.names, sizes.cpu(), epsilon[run : run + 1].cpu(), steps=steps, unit=unit)

    def mean(self, uploads: Tensor, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Give the mean, released under the unit 'silo'."""
        _refuse(
            self.unit == "silo" and (weights is not None or self.groups is not None),
            "under the unit 'silo' the mean is uniform over all: no weights, no groups",
        )
        self._ask("mean", uploads)
        mean = super().mean(uploads, weights, everybody)
        return label(mean, raw=False) if self.unit == "silo" else mean

    def _ask(self, what: str, uploads: Tensor) -> None:
        _refuse(self.unit == "silo" and not any(uploads is one for one in self.received), AS_SENT)
        if self.asked is not None:
            self.asked.append(what)

    def mix(self, uploads: Tensor, matrix: Tensor) -> Tensor:
        """Give sums by a public matrix, released under the unit 'silo'."""
        check_known(matrix)
        _refuse(is_raw(matrix), "uploads are mixed by a raw matrix: it must be public")
        self._ask("mix", uploads)
        mixed = super().mix(uploads, matrix)
        return label(mixed, raw=False) if self.unit == "silo" else mixed
