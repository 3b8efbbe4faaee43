"""The dry run: the method runs against an oracle that only counts.

Its vectors carry labels (see `taint`), so a method that is not sound under a unit is refused before training.

**Many rounds.** Where vectors have no values, a round of a pure method follows from the shapes, types and
labels of the state it starts from (and the values of tensors that the method made itself), and from the
round's number. So if a round ends with the state it began with, and the method did not ask for the number,
all later rounds are the same: they are counted at once. Other methods are run round by round, up to
`MOST_ROUNDS`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._threads import one_thread
from ..errors import Problem, Refused, first_line
from ..protocol.doors import Door
from ..protocol.handles import hide_uploads
from ..protocol.messages import bytes_of
from ..protocol.method import Method
from ..protocol.oracle import doors_of
from ..protocol.roster import Roster
from ..protocol.settings import for_run
from ..protocol.tree import Tree, leaves, map_leaves
from ..protocol.units import EXAMPLE, Unit
from .dry_doors import CountingMerger, CountingOracle, RandomStart, public_roster, refuse
from .taint import Labelling, check_known, is_apart, is_raw, is_sealed, label, tree_is_raw, values_of

# Layers longer than this, or than twice the number of silos, are shortened where lengths do not matter.
LONG = 64
# This many first rounds are also run with other values. Later rounds need not be: training itself refuses
# a door that is not in the plan.
COMPARED = 1000
# If they do not become alike within this many rounds, they are run one by one.
FEW = 8
# More rounds are planned only if they are all alike: one by one they take about five minutes.
MOST_ROUNDS = 50_000


@dataclass(frozen=True)
class Counts:
    """What a dry run saw: the doors called in each round, and each silo's bytes over all rounds.

    `sealed` marks the parts of a silo's own state that only doors may read. Under the unit 'silo', `merged`
    marks the rounds in which uploads are merged, `raw_personal` says whether personal models are raw, and
    `mixed` whether the method asks for sums other than the mean; `lengths` counts the numbers of one silo's
    upload in each round. `more` holds the bytes, up and down, of further runs in which other silos take part.
    """

    calls: tuple[tuple[Door, ...], ...]
    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]
    merged: tuple[bool, ...] = ()
    raw_personal: bool = False
    mixed: bool = False
    sealed: tuple[bool, ...] = ()
    more: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    lengths: tuple[int, ...] = ()

    def like(self, other: Counts) -> bool:
        """Return whether everything except the sizes of messages is equal."""
        return self._without_sizes() == other._without_sizes()

    def _without_sizes(self) -> Counts:
        return replace(self, bytes_up=(), bytes_down=(), more=(), lengths=())

    def first(self, rounds: int) -> Counts:
        """Return the counts of the first rounds, without the sizes of messages."""
        counts = replace(self, calls=self.calls[:rounds], merged=self.merged[:rounds])
        return counts._without_sizes()

    def runs(self) -> list[Counts]:
        """Return the counts of this run followed by those of the other runs."""
        rest = [replace(self, bytes_up=up, bytes_down=down, more=()) for up, down in self.more]
        return [replace(self, more=()), *rest]


@dataclass(frozen=True, eq=False)
class Facts:
    """The public facts from which a training is planned.

    On the device "meta", vectors have shapes and labels but no values.
    """

    roster: Roster
    rounds: int
    layers: tuple[int, ...]
    names: tuple[str, ...] = ()
    device: str = "cpu"

    @property
    def shape(self) -> tuple[Roster, tuple[int, ...], int]:
        """The roster, the lengths of the parameters, and the number of rounds."""
        return self.roster, self.layers, self.rounds

    def shortened(self, unit: Unit) -> Facts:
        """Return the facts with long layers shortened; uploads that a merge may look into keep their rank."""
        most = max(LONG, 2 * len(self.roster)) if unit.noise_in_doors else LONG
        return replace(self, layers=tuple(min(length, most) for length in self.layers))


class Tally:
    """The bytes of each silo in each of some runs.

    `present` says which silos take part in which rounds, `[rounds, runs, silos]`.
    """

    def __init__(self, silos: int, present: Tensor | None) -> None:
        self.present = None if present is None else present.cpu().numpy()
        runs = 1 if self.present is None else self.present.shape[1]
        self.bytes = np.zeros((runs, silos), dtype=np.int64)

    def add(self, first: int, last: int, tree: Tree) -> None:
        """Add the bytes of a message in rounds `first` up to `last` for the silos that take part in them."""
        each = np.array(bytes_of(tree, self.bytes.shape[1]), dtype=np.int64)
        self.bytes += each * (last - first if self.present is None else self.present[first:last].sum(0))


def dry_run(
    method: Method,
    roster: Roster,
    layers: tuple[int, ...],
    rounds: int,
    unit: Unit = EXAMPLE,
    present: Tensor | None = None,
    names: tuple[str, ...] = (),
) -> Counts:
    """Return the counts of a method, found by running it on labelled random vectors.

    The method also runs on the opposite vectors and on other ones; raise `Refused` unless all counts agree.
    These further passes cover only the first rounds, because training refuses a door that is not in the plan.

    `layers` and `names` are the lengths and names of the parameters. `present` says which silos take part in
    which rounds: `[rounds, silos]`, or `[rounds, runs, silos]` to count the bytes of several runs (see
    `Counts.more`). If layers are long, the checks use shortened ones, and doors, bytes and labels come from
    one pass in full length without values. If the method asks for values, every pass is in full length. Of
    many rounds that are all alike, only the first ones run.
    """
    single, facts = for_run(method, 0), Facts(roster, rounds, layers, names)
    short = facts.shortened(unit)
    if rounds > COMPARED:
        alike = _all_alike(Pass(single, facts, unit, present))
        if alike is not None:
            start = _checked(single, short, unit, present, COMPARED)
            if start.like(alike.first(COMPARED)):
                return alike
        if rounds > MOST_ROUNDS:
            raise Refused(
                f"'{method.name}' asks for the number of the round, or for values, so its rounds are planned"
                f" one by one, which is limited to {MOST_ROUNDS:,} rounds, got {rounds:,}: train fewer rounds"
            )
    if short.layers == layers:
        return _checked(single, facts, unit, present)
    checked = _checked(single, short, unit, present)
    try:
        whole = one_pass(single, replace(facts, device="meta"), present, 0, unit)
    except Refused:
        raise
    except (RuntimeError, TypeError, ValueError):  # the method asked for a value
        return _checked(single, facts, unit, present)
    return whole if whole.like(checked) else _checked(single, facts, unit, present)


def _checked(
    method: Method, facts: Facts, unit: Unit, present: Tensor | None, last: int | None = None
) -> Counts:
    whole = Pass(method, facts, unit, present, last=last)
    first, start = whole.count(), replace(whole, last=COMPARED)
    others = [replace(start, scale=scale).count() for scale in (-1.0, 7.0)]
    compared = first if len(first.calls) <= COMPARED else start.count()
    if any(other != compared for other in others):
        raise Refused(
            f"'{method.name}' called different doors, or sent different bytes, for different vectors: the"
            " doors it calls may depend only on public facts and the round"
        )
    return first


def one_pass(method: Method, facts: Facts, present: Tensor | None, run: int, unit: Unit = EXAMPLE) -> Counts:
    """Return the counts of one run of a method already found sound; bytes depend on who takes part."""
    whole = Pass(for_run(method, run), facts, unit, present, run)
    alike = _all_alike(whole) if facts.rounds > COMPARED and facts.device != "meta" else None
    return alike or whole.count()


def _all_alike(whole: Pass) -> Counts | None:
    """Return the counts of a pass whose rounds become all alike, found without values; else None."""
    try:
        return replace(whole, facts=replace(whole.facts, device="meta"), alike=True).count()
    except Refused:
        raise
    except (_Differ, RuntimeError, TypeError, ValueError):  # the method asked for the round, or for a value
        return None


class _Differ(Exception):
    """Rounds that should be alike are not, as far as can be seen."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One run of a method on vectors of one `scale`: all of its rounds, or only those before `last`.

    With `alike`, the rounds from the second one on must be alike, so that only the first ones run.
    """

    method: Method
    facts: Facts
    unit: Unit
    present: Tensor | None
    run: int = 0
    scale: float = 1.0
    last: int | None = None
    alike: bool = False

    def count(self) -> Counts:
        """Return the counts of this pass; bytes also of the further runs in `present`."""
        present, silos = self.present, len(self.facts.roster)
        if present is not None and present.dim() == 2:
            present = present.unsqueeze(1)
        up, down = Tally(silos, present), Tally(silos, present)
        first = None if present is None else present[:, 0].to(self.facts.device)
        with one_thread(), Labelling():  # there are few vectors: threads would only wait for each other
            counts = _count(self, first, up, down)
        runs = [(tuple(u), tuple(d)) for u, d in zip(up.bytes.tolist(), down.bytes.tolist(), strict=True)]
        return replace(counts, bytes_up=runs[0][0], bytes_down=runs[0][1], more=tuple(runs[1:]))


def _count(given: Pass, present: Tensor | None, up: Tally, down: Tally) -> Counts:
    method, facts, unit = given.method, given.facts, given.unit
    silos, size, rounds = len(facts.roster), sum(facts.layers), facts.rounds
    public = public_roster(facts.roster, rounds, given.run, facts.device)
    start = RandomStart(given.scale, public, rounds, facts.layers, _names(facts), facts.device)
    shared, own = _pair(method, "init", ("the server's state", "the silos' own"), start, silos)
    calls, merged, lengths, mixed = [], [], [], False
    for number in range(rounds)[: given.last]:
        before, end = _signature((shared, own)) if given.alike else "", number + 1
        taking_part = None if present is None else label(present, raw=False)[number].unsqueeze(0)
        sent = _ask(method, "broadcast", shared)
        refuse(tree_is_raw(sent), "broadcast sends a raw value to the silos")
        asking = (number, rounds, silos, unit, given.scale, facts.device)
        if silos > 1 and (number == 0 or not unit.noise_in_doors) and facts.device != "meta":
            _check_apart(method, sent, own, asking)
        oracle = CountingOracle(*asking)
        uploads, new = _local(method, sent, own, oracle)
        _check_home(uploads, new, silos, unit)
        message = uploads
        if taking_part is not None:
            uploads = map_leaves(
                lambda leaf, who=taking_part: _where(who, leaf, torch.zeros_like(leaf)), uploads
            )
            new = map_leaves(lambda old, own, who=taking_part: _where(who, own, old), own, new)
        own = new
        # Under the unit 'silo', which silos took part is hidden.
        who = None if taking_part is None else label(taking_part, raw=not unit.noise_in_doors)
        roster = replace(public, present=who, round=number, watch=oracle.watch)
        merger = CountingMerger(roster, unit, tuple(leaves(uploads)))
        shared = _merge(method, shared, uploads, merger)
        refuse(
            not unit.noise_in_doors and len(merger.asked) > 1,
            "merge asks for more than one mean: under the unit 'silo' it may ask for one mean per round",
        )
        mixed |= "mix" in merger.asked
        refuse(
            tree_is_raw(shared),
            "merge looks into raw uploads: under the unit 'silo' it may only ask for merger.mean(uploads)",
        )
        if given.alike and number >= 1:
            if oracle.watch.asked or number > FEW:
                raise _Differ
            end = rounds if _signature((shared, own)) == before else end
        up.add(number, end, message)
        down.add(number, end, sent)
        calls += [tuple(oracle.opened)] * (end - number)
        merged += [bool(merger.asked)] * (end - number)
        lengths += [_length(message)] * (end - number)
        if end == rounds:
            break
    personal = _ask(method, "personal", _ask(method, "broadcast", shared), own)
    if not isinstance(personal, Tensor):
        raise Problem(
            f"'{method.name}': personal must return vectors [runs, silos, {size}], got {_kind(personal)}"
        )
    refuse(unit.noise_in_doors and is_raw(personal), "a personal model is raw: it must be released")
    if personal.shape not in ((1, silos, size), (1, 1, size)):
        raise Refused(f"personal must return [runs, silos, {size}], got {list(personal.shape)}")
    if unit.noise_in_doors:
        sealed = tuple(map(is_sealed, leaves(own)))
        return Counts(tuple(calls), (), (), sealed=sealed)
    return Counts(tuple(calls), (), (), tuple(merged), is_raw(personal), mixed, lengths=tuple(lengths))


def _length(upload: Tree) -> int:
    """Return how many numbers one silo sends."""
    with torch._C.DisableTorchFunction():
        return sum(math.prod(leaf.shape[2:]) for leaf in leaves(upload))


def _signature(tree: Tree) -> str:
    """Return everything about a tree except values on the device "meta", where there are none."""

    def facts(leaf: Tensor) -> tuple[Any, ...]:
        inner = values_of(leaf)
        values = None if inner.is_meta else inner.tolist()
        kind = type(leaf).__name__, is_raw(leaf), is_sealed(leaf), is_apart(leaf)
        return kind, tuple(inner.shape), str(inner.dtype), values

    with torch._C.DisableTorchFunction():
        return repr(map_leaves(facts, tree))


def _merge(method: Method, shared: Tree, uploads: Tree, merger: CountingMerger) -> Tree:
    """Return what the method merges; under the unit 'silo' it gets handles, as in training."""
    if merger.unit.noise_in_doors:
        return _ask(method, "merge", shared, uploads, merger)
    watch = getattr(merger.roster, "watch", None)
    asked = watch is not None and watch.asked
    handles, closed = hide_uploads(merger, uploads)
    if watch is not None:
        watch.asked = asked  # hiding copies the roster, which is not the method's asking
    return _ask(method, "merge", shared, handles, closed)


def _ask(method: Method, name: str, *arguments: Any) -> Any:
    """Return what a function of a method returns, checked; what goes wrong in it is a `Problem`."""
    try:
        returned = getattr(method, name)(*arguments)
    except Problem:
        raise
    except Exception as error:  # an author's code may raise anything
        said = re.sub(r"\b_?(CountingOracle|Doors)\.", "oracle.", first_line(error))
        more = "; give all but `start` by name" if "oracle." in said and "positional" in said else ""
        raise Problem(f"'{method.name}': {name} fails on made-up vectors: {said}{more}") from error
    try:
        leaves(returned)
    except TypeError as error:
        raise Problem(f"'{method.name}': {name} must return torch tensors: {error}") from error
    check_known(returned)
    return returned


def _pair(method: Method, name: str, parts: tuple[str, str], *arguments: Any) -> tuple[Tree, Tree]:
    """Return the two things that a function of a method returns."""
    returned = _ask(method, name, *arguments)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise Problem(
            f"'{method.name}': {name} must return two things, {parts[0]} and {parts[1]}, got"
            f" {_kind(returned)}"
        )
    return returned


def _local(method: Method, sent: Tree, own: Tree, oracle: CountingOracle) -> tuple[Tree, Tree]:
    return _pair(method, "local", ("the upload", "the new own state"), sent, own, doors_of(oracle))


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)}"
    if isinstance(value, Tensor):
        return "one tensor"
    return "None" if value is None else f"a {type(value).__name__}"


def _names(facts: Facts) -> tuple[str, ...]:
    """Return the names of the parameters, or their numbers if they have no names."""
    return facts.names or tuple(map(str, range(len(facts.layers))))


def _where(present: Tensor, new: Tensor, old: Tensor) -> Tensor:
    if is_sealed(new) or new is old:
        return new
    return torch.where(present.reshape(*present.shape, *[1] * (new.dim() - 2)), new, old)


def _check_home(uploads: Tree, own: Tree, silos: int, unit: Unit) -> None:
    """Raise `Refused` if a silo may not send or keep what `local` returned."""
    with torch._C.DisableTorchFunction():
        for what, tree in (("upload", uploads), ("own state", own)):
            for leaf in leaves(tree):
                if leaf.dim() < 2 or leaf.shape[1] != silos:
                    raise Refused(f"a silo's {what} must be [runs, silos, ...], got {list(leaf.shape)}")
    if not unit.noise_in_doors:
        sent = leaves(uploads)
        refuse(
            len(sent) > 1 or not all(leaf.is_floating_point() for leaf in sent),
            "under the unit 'silo' a silo sends one real vector, which is clipped as a whole",
        )
    if unit.noise_in_doors:
        refuse(
            tree_is_raw(uploads),
            "an upload is raw: under the unit 'example' only released values may leave a silo",
        )
        refuse(
            any(is_raw(leaf) and not is_sealed(leaf) for leaf in leaves(own)),
            "a silo keeps raw state: under the unit 'example' that makes its later releases unsound",
        )


def _check_apart(
    method: Method, sent: Tree, own: Tree, asked: tuple[int, int, int, Unit, float, str]
) -> None:
    """Raise `Refused` if `local` is not pure, or if one silo's state changes what another silo does."""

    def nudge(leaf: Tensor) -> Tensor:
        first = torch.arange(silos).reshape(1, -1, *[1] * (leaf.dim() - 2)) == 0
        return leaf + first.to(leaf.dtype) if leaf.is_floating_point() else leaf

    silos = asked[2]
    plain, again = (_local(method, sent, own, CountingOracle(*asked)) for _ in range(2))
    nudged = _local(method, sent, map_leaves(nudge, own), CountingOracle(*asked, nudge=nudge))
    with torch._C.DisableTorchFunction():
        trees = zip(leaves(plain), leaves(again), leaves(nudged), strict=True)
        for before, repeated, after in (tuple(map(values_of, found)) for found in trees):
            if not torch.equal(before, repeated):
                raise Refused(
                    f"'{method.name}' gave two different answers to the same question: methods must be pure"
                )
            if before.dim() > 1 and not torch.equal(before[:, 1:], after[:, 1:]):
                raise Refused("local mixes silos: what one silo does must not depend on another's state")
