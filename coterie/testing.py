"""The check that every method must pass, ours and yours.

>>> from coterie.methods import MRMTL
>>> check_method(MRMTL(lam=0.5))
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .cohort.merging import PrivateMerger
from .cohort.oracle import CohortOracle
from .data.federation import Federation, from_table
from .data.sources.table import Table
from .engines.reference import Terms, run_reference
from .engines.simulation import personal_vectors, simulate, steps_of
from .engines.start import SeededStart
from .errors import Problem, Refused, nearest, plainly, shown
from .experiment.experiment import Experiment
from .experiment.from_arguments import expanded
from .methods import METHODS
from .planning.dry_run import dry_run
from .planning.training import Training
from .privacy.budget import Privacy
from .protocol.handles import hide_uploads
from .protocol.merging import Merger, PlainMerger
from .protocol.messages import pack, unpack
from .protocol.method import Method
from .protocol.oracle import doors_of
from .protocol.settings import settings_of
from .protocol.streams import SeededStreams
from .protocol.tree import Tree, leaves, map_leaves
from .protocol.units import UNITS
from .tasks.task import make_task


class NotConforming(Refused):
    """A method broke a rule of the protocol."""


@plainly
def check_method(method: Method, unit: str = "example") -> None:
    """Try a method on a small made-up federation; raise `NotConforming` if it breaks a rule.

    The method must be a frozen record with a name, sound in its unit (labels), and pure, and must keep
    float32. The order of silos must not matter, and silos must not be mixed. The method must call the doors
    that were planned, its state and messages must survive as bytes, and one silo per node must give the same
    vectors.
    """
    _check_instance(method)
    if unit not in UNITS:
        raise Problem(f"check_method: unknown unit '{unit}'; {nearest(unit, UNITS)}")
    _require(dataclasses.is_dataclass(method), "a method must be a dataclass")
    _require(bool(getattr(type(method), "name", "")), "a method must have a name")
    try:
        for name in [*settings_of(method), "name"]:
            setattr(method, name, None)
            raise NotConforming("a method must be frozen: @dataclass(frozen=True)")
    except dataclasses.FrozenInstanceError:
        pass
    for each in expanded(method):
        _check_one(each, unit)


def _check_instance(method: Any) -> None:
    if isinstance(method, Method):
        return
    kind = METHODS.get(method) if isinstance(method, str) else method
    name = kind.__name__ if inspect.isclass(kind) and issubclass(kind, Method) else "Mine"
    raise Problem(f"check_method: expected a method, got {shown(method)}: give an instance, as in {name}()")


def _check_one(method: Method, unit: str) -> None:
    made = _experiment(method, _federation(unit == "person"), unit)
    layers, names = tuple(made.task.layout.lengths), tuple(made.task.layout.names)
    dry_run(made.running, made.roster, layers, made.training.rounds, UNITS[unit], names=names)
    _check_round(made)
    vectors = _train(made)
    _check_order(method, made, vectors)
    _check_reference(made, vectors)


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise NotConforming(sentence)


def _experiment(method: Method, federation: Federation | None = None, unit: str = "example") -> Experiment:
    federation = federation or _federation()
    model, options = ("linear", {}) if method.linear else ("mlp", {"hidden": 3})
    task = make_task(model, shape=federation.shape, classes=0, options=options)
    privacy = Privacy(epsilon={"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0}, delta=1e-3)
    if unit == "person":
        privacy = replace(privacy, unit=unit)
    if unit == "silo":
        privacy = Privacy(epsilon=8.0, delta=1e-2, unit=unit)
    return Experiment(federation, task, method, privacy, Training(rounds=3, batch=4, lr=0.3))


def _federation(persons: bool = False) -> Federation:
    """Return made-up silos; with `persons`, some of these have several rows, more than are used."""
    generator = np.random.default_rng(0)
    sizes = {"a": 10, "b": 15, "c": 6, "d": 12}
    rows = sum(sizes.values())
    x = generator.normal(size=(rows, 2)).astype(np.float32)
    y = (x.sum(1) + generator.normal(size=rows)).astype(np.float32)
    silo = np.repeat(list(sizes), list(sizes.values()))
    if not persons:
        return from_table(Table("made up", x, y, silo))
    return from_table(Table("made up", x, y, silo, person=np.arange(rows) // 2 % 9), rows_per_person=2)


def _check_round(made: Experiment) -> None:
    """Check one round, run by hand: pure, float32, as planned, and the same from a stored state."""
    plan, method = made.plan(), made.running
    cohort, streams = made.cohort(plan), SeededStreams(made.keys)
    roster = replace(made.roster, steps=steps_of(cohort.work, cohort.settings), rounds=made.training.rounds)
    shared, own = method.init(SeededStart(made.task, [0], roster, made.training.rounds), len(roster))
    before = _copy((shared, own))
    answers = []
    for kept_shared, kept_own in ((shared, own), unpack(pack((shared, own)))):  # as from a checkpoint
        oracle = CohortOracle(cohort, streams, 0, plan.counts.calls[0], made.training.rounds, unit=plan.unit)
        sent = method.broadcast(kept_shared)
        uploads, kept = method.local(sent, kept_own, doors_of(oracle))
        given: tuple[Tree, Merger] = uploads, PlainMerger(roster)
        if plan.merge is not None:
            given = hide_uploads(PrivateMerger.of(roster, plan.merge, streams, uploads), uploads)
        merged = method.merge(kept_shared, *given)
        answers.append(_copy((sent, uploads, kept, merged, method.personal(sent, kept))))
        _require(
            tuple(oracle.made) == plan.counts.calls[0],
            f"'{method.name}' called {oracle.made} where {list(plan.counts.calls[0])} was planned",
        )
    _require(_same((shared, own), before), f"'{method.name}' changed its inputs, but methods must be pure")
    _require(
        _same(*answers), f"'{method.name}' gave two answers for the same inputs, but methods must be pure"
    )
    for leaf in leaves(answers[0]):
        _require(
            not leaf.is_floating_point() or leaf.dtype == torch.float32,
            f"'{method.name}' made a {leaf.dtype}, but vectors must stay float32",
        )


def _train(made: Experiment) -> Tensor:
    plan = made.plan()
    streams = SeededStreams(made.keys)
    *_, last = simulate(made.running, made.cohort(plan), plan, made.roster, [0], streams)
    return personal_vectors(made.running, last, len(made.federation))


def _check_order(method: Method, made: Experiment, vectors: Tensor) -> None:
    order = [2, 0, 3, 1]
    names = [made.federation.names[k] for k in order]
    turned = _train(_experiment(method, made.federation.pick(names), made.privacy.unit))
    _require(
        _close(turned, vectors[:, order]),
        f"'{method.name}' depends on the order of the silos",
    )


def _check_reference(made: Experiment, vectors: Tensor) -> None:
    plan = made.plan()
    settings = made.cohort(plan).settings
    lr, clip, noise = (part[0].tolist() for part in (settings.lr, settings.clip, plan.noise()))
    terms = [
        Terms(silo.work, lr[k], clip[k], noise[k], silo.choice_noise, settings.optimizer)
        for k, silo in enumerate(plan.silos[0])
    ]
    roster = replace(made.roster, epsilon=made.roster.epsilon[:1])
    slow = run_reference(
        made.running, made.task, made.federation, plan, roster, terms, 0, SeededStreams(made.keys)
    )
    _require(
        _close(slow, vectors[0]),
        f"'{made.method.name}' gives different vectors with one silo per node",
    )


def _copy(tree: Tree) -> Tree:
    return map_leaves(lambda leaf: leaf.clone(), tree)


def _same(one: Tree, other: Tree) -> bool:
    return all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-5, rtol=1e-4)
