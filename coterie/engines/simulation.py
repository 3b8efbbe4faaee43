"""The fast engine: all silos and all runs in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..cohort.dp_sgd import Cohort, Settings
from ..cohort.merging import PrivateMerger
from ..cohort.oracle import CohortOracle
from ..planning.plan import Plan
from ..protocol.doors import Work
from ..protocol.handles import hide_uploads, refuse_handles
from ..protocol.merging import PlainMerger
from ..protocol.method import Method
from ..protocol.oracle import doors_of
from ..protocol.roster import Roster, Steps
from ..protocol.state import State
from ..protocol.streams import Streams
from ..protocol.tree import Tree, map_leaves
from .start import SeededStart


def steps_of(work: Sequence[Work], settings: Settings) -> Steps:
    """Return how silos with this work and these settings step."""
    count = torch.tensor([[float(each.steps) for each in work]], device=settings.lr.device)
    expected = torch.tensor([[each.expected for each in work]], device=settings.lr.device)
    noise = torch.where(settings.noise == 0, 0.0, settings.noise * settings.clip) / expected
    return Steps(count.expand_as(noise), settings.lr, settings.clip, noise)


def simulate(
    method: Method,
    cohort: Cohort,
    plan: Plan,
    roster: Roster,
    seeds: Sequence[int],
    streams: Streams,
    start: State | None = None,
    before: Callable[[int], Sequence[int]] | None = None,
    drawn: Callable[[int], Tensor] | None = None,
) -> Iterator[State]:
    """Train; yield the state before the first round (or `start`, to resume from it) and after each round.

    `before` is called before each round and returns the indices of the silos that may take part. Silos that
    do not take part keep their state, and `merge` sees nothing of them. `drawn(round)` says who takes part in
    a round, `[runs, silos]`, in place of the plan, by secret coins. Silos then work one at a time: together,
    the last bits of one silo's upload could depend on who else was drawn, which nobody may learn.
    """
    rounds = len(plan.counts.calls)
    state, roster = start, replace(roster, steps=steps_of(cohort.work, cohort.settings), rounds=rounds)
    if state is None:
        first = SeededStart(cohort.task, seeds, roster, rounds, cohort.device)
        state = State(0, *method.init(first, len(roster)))
    yield state
    for number in range(state.round, rounds):
        places = before(number) if before is not None else None
        present = plan.present_at(number, cohort.runs, places, drawn(number) if drawn is not None else None)
        at_once = _groups(present, method.linear, drawn is not None)
        everybody = torch.ones(cohort.runs, len(roster), dtype=torch.bool)
        adding = plan.present_at(number, cohort.runs, places, everybody)
        facts = replace(roster, round=number)
        state = _round(method, cohort, plan, facts, streams, state, present, at_once, adding)
        yield state


def _round(
    method: Method,
    cohort: Cohort,
    plan: Plan,
    roster: Roster,
    streams: Streams,
    state: State,
    present: Tensor | None,
    at_once: Sequence[Tensor | None],
    adding: Tensor | None,
) -> State:
    """Return the state after a round; the silos of each group in `at_once` work together (None: all).

    `adding` says who adds noise to a secure sum if silos are drawn for it in secret (None: all).
    """
    own, sent, uploads = state.own, method.broadcast(state.shared), None
    for some in at_once:
        work = LocalWork(method, cohort, plan, roster, streams, present, some)
        uploads, own = _local(work, sent, own, uploads)
    facts = roster.at(_on(present, cohort.device))
    shared = _merge(method, plan, facts, streams, state.shared, uploads, adding)
    return State(state.round + 1, shared, own)


class LocalWork(NamedTuple):
    """The local work of some silos in one round; `some` are their places, or None for all silos."""

    method: Method
    cohort: Cohort
    plan: Plan
    roster: Roster
    streams: Streams
    present: Tensor | None
    some: Tensor | None


def _local(work: LocalWork, sent: Tree, own: Tree, uploads: Tree) -> tuple[Tree, Tree]:
    """Return all uploads and all states after the work of some silos; `uploads` may be None at first."""
    method, cohort, plan, roster, streams, present, some = work
    silos, steps, all_own = len(roster), plan.steps_at(roster.round), own
    if some is not None:
        cohort, present = cohort.pick(some.tolist()), present[:, some]  # type: ignore[index]
        sent, own = (map_leaves(lambda leaf: _of(leaf, some, silos), tree) for tree in (sent, own))
        steps = None if steps is None else steps[:, some]
    before, calls = own, plan.counts.calls[roster.round]
    oracle = CohortOracle(cohort, streams, roster.round, calls, roster.rounds, present, plan.unit, steps)
    made, own = method.local(sent, own, doors_of(oracle))
    if present is not None:
        here = present.to(cohort.device)
        made = map_leaves(lambda leaf: leaf.masked_fill(~_beside(here, leaf), 0), made)
        own = map_leaves(lambda old, new: _kept(here, old, new), before, own)
    if some is None:
        return made, own
    uploads = map_leaves(lambda leaf: _among(leaf, silos), made) if uploads is None else uploads
    uploads = map_leaves(lambda whole, leaf: whole.index_copy(1, some.to(leaf.device), leaf), uploads, made)
    return uploads, map_leaves(lambda all_, old, new: _put(all_, some, old, new), all_own, before, own)


def _merge(
    method: Method,
    plan: Plan,
    roster: Roster,
    streams: Streams,
    shared: Tree,
    uploads: Tree,
    adding: Tensor | None,
) -> Tree:
    """Return the server's new state; under the unit 'silo' the method gets handles of the uploads."""
    if plan.merge is None:
        return method.merge(shared, uploads, PlainMerger(roster))
    planned = plan.counts.merged[roster.round]
    merger = PrivateMerger.of(roster, plan.merge, streams, uploads, planned, adding)
    merged = method.merge(shared, *hide_uploads(merger, uploads))
    refuse_handles(merged)
    return merged


def _groups(present: Tensor | None, linear: bool, apart: bool) -> list[Tensor | None]:
    """Return which silos work together: those that take part in any run, or all of them (None).

    All work together if more than half take part, and where doors of duals keep a layout of all examples.
    If they must work `apart`, each silo is a group of its own; if none takes part, so does the first.
    """
    if present is None:
        return [None]
    some = present.cpu().any(0).nonzero().flatten()
    if apart:
        return list(some.split(1)) if len(some) else [torch.tensor([0])]
    return [some if not linear and 0 < 2 * len(some) <= present.shape[1] else None]


def _on(present: Tensor | None, device: str) -> Tensor | None:
    return None if present is None else present.to(device)


def _of(leaf: Tensor, some: Tensor, silos: int) -> Tensor:
    """Return the part of some silos, if a leaf has a part for each silo."""
    return leaf[:, some.to(leaf.device)] if leaf.shape[1] == silos else leaf


def _among(leaf: Tensor, silos: int) -> Tensor:
    """Return zeros for what all silos send."""
    return leaf.new_zeros(leaf.shape[0], silos, *leaf.shape[2:])


def _put(whole: Tensor, some: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Return the whole state with the new state of some silos in its place; unchanged if none is new."""
    return whole if new is old else whole.index_copy(1, some.to(whole.device), new)


def _kept(present: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Return the new state of the silos that take part, and the old state of the others."""
    return old if new is old else torch.where(_beside(present, new), new, old)


def _beside(present: Tensor, leaf: Tensor) -> Tensor:
    """Return `present` `[runs, silos]` with as many axes as a leaf."""
    return present.reshape(*present.shape, *[1] * (leaf.dim() - 2))


def personal_vectors(method: Method, state: State, silos: int) -> Tensor:
    """Return the vectors that silos predict with: `[runs, silos, P]`."""
    return method.personal(method.broadcast(state.shared), state.own).expand(-1, silos, -1)
