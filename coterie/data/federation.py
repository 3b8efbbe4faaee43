"""Silos and their examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._inputs import Input
from ..errors import Problem, nearest, plain_methods
from ..privacy.ledger.ledger import Identity
from ..privacy.ledger.names import silo_key, tidy, tidy_silo
from . import preprocess
from .cut import DEFAULT_SILOS, Cut
from .partition import Partition, split_into_silos
from .persons import (
    MOST_ROWS,
    check_rows_per_person,
    needs_persons,
    numbered,
)
from .preparation import Preparation, SiloSteps, plan_preparation
from .recipe import Recipe
from .remarks import remarks_on
from .several import check_several, names_for, target_names
from .silo import Silo as Silo
from .sources.catalogue import find_table
from .sources.memory import read as read_memory
from .sources.rules import RULES, rules_of
from .sources.table import Table, some_rows
from .split import check_labels, check_persons, held_out_persons, held_out_rows, natural_silos


@plain_methods
@dataclass(frozen=True, eq=False)
class Federation:
    """Silos that share a task.

    `classes` are the labels in order of their numbers (empty if the target is a number).
    uint8 features stay uint8 until they are used, and are then multiplied by `scale`.
    `not_covered` names what was done to the data outside the privacy accounting.
    `preparation` is how raw rows became these examples (none for a federation made of tensors).
    `source` names the data in ledgers, together with how silos were cut from it: a silo that was cut in
    another way is another data set. It defaults to the `name`; data without a name has no ledgers.
    `cut` knows what older ledgers call the same data (none for a federation made by hand).
    `recipe` is the [data] table of a configuration that loads the same federation, if there is one.
    With `ids`, features are whole numbers that a model looks up in a table; with several `inputs`, an example
    is a flat row of them.
    `targets` are the names of several targets; the `classes` are then the two labels that each may be.
    `notes` say what a user should know about the data; plans and results repeat them.
    `rows_per_person` is the most rows of one person that a training uses if it protects persons.
    """

    name: str
    silos: tuple[Silo, ...]
    classes: tuple[str, ...] = ()
    scale: float = 1.0
    not_covered: tuple[str, ...] = ()
    preparation: Preparation | None = None
    source: str | None = None
    recipe: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    cut: Cut | None = None
    rows_per_person: int = MOST_ROWS
    ids: bool = False
    inputs: tuple[Input, ...] = ()
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", tidy(self.name if self.source is None else self.source))
        if self.recipe is not None:
            object.__setattr__(self, "recipe", Recipe(self.recipe))
        if not self.silos:
            raise Problem(f"data: '{self.name}' has no silo")
        if len(set(self.names)) != len(self.names):
            raise Problem(f"data: two silos of '{self.name}' have the same name")
        object.__setattr__(self, "targets", names_for([silo.y for silo in self.silos], self.targets))
        if self.preparation is not None and self.preparation.scale != self.scale:
            object.__setattr__(self, "preparation", replace(self.preparation, scale=self.scale))

    def __repr__(self) -> str:
        train, test = sum(self.sizes), sum(len(silo.test_y) for silo in self.silos)
        kind = f"{len(self.classes)} classes" if self.classes else "a numeric target"
        if self.targets:
            kind = f"{len(self.targets)} {'labels' if self.classes else 'numeric targets'}"
        shape = " x ".join(map(str, self.shape))
        return (
            f"Federation('{self.name}': {len(self)} silos, {train:,} training and {test:,} test examples of"
            f" {shape} numbers, {kind})"
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the silos."""
        return tuple(silo.name for silo in self.silos)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Declared, public number of training examples of each silo."""
        return tuple(len(silo.y) for silo in self.silos)

    @property
    def knows_persons(self) -> bool:
        """Whether it is known whose rows are whose, in every silo."""
        return all(silo.persons is not None for silo in self.silos)

    def protected_sizes(self, unit: str) -> tuple[int, ...]:
        """Return, for each silo, how many training examples it has, or persons under the unit "person"."""
        if unit != "person":
            return self.sizes
        needs_persons(self.knows_persons)
        return tuple(silo.persons.train for silo in self.silos if silo.persons is not None)

    def rows_each(self, unit: str) -> int | None:
        """Return the most rows of one person that a training uses; None if rows need not be told apart.

        That is so unless the unit is "person" and some person has several rows.
        """
        if unit != "person":
            return None
        needs_persons(self.knows_persons)
        largest = max(silo.persons.largest for silo in self.silos if silo.persons is not None)
        return None if largest == 1 else min(self.rows_per_person, largest)

    @cached_property
    def identities(self) -> tuple[Identity, ...]:
        """Each silo's identity in its ledger: the source, its name and its size, including test examples."""
        if not self.source:
            raise Problem(
                "data: a ledger must find the same data set again, and this one has no name: give it one,"
                " as in load(frame, name='clinics', ...)"
            )
        keys = Counter(map(silo_key, self.names))
        if twice := next((name for name in self.names if keys[silo_key(name)] > 1), None):
            raise Problem(f"data: ledgers cannot tell silo '{twice}' from another one: rename one of the two")
        return tuple(self._identity(self.source, silo, tidy_silo(silo.name)) for silo in self.silos)

    @cached_property
    def former_identities(self) -> tuple[tuple[Identity, ...], ...]:
        """Who each silo was in the ledgers of older versions."""
        sources = () if self.cut is None else self.cut.former_sources
        return tuple(tuple(self._identity(text, silo, silo.name) for text in sources) for silo in self.silos)

    def _identity(self, source: str, silo: Silo, name: str) -> Identity:
        return Identity(source, name, len(silo.y) + len(silo.test_y))

    def is_ledger_of(self, identity: Identity, k: int) -> bool:
        """Return whether a ledger is that of silo k, although its identity is written in another way."""
        own = self.identities[k]
        source = identity.source if self.cut is None else self.cut.today(identity.source)
        return (source, silo_key(identity.silo), identity.size) == (own.source, silo_key(own.silo), own.size)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example's features."""
        return tuple(self.silos[0].x.shape[1:])

    def __len__(self) -> int:
        return len(self.silos)

    def pick(self, names: Sequence[str]) -> Federation:
        """Return the federation of some of the silos, in the order named; their ledgers stay the same."""
        by_name = dict(zip(self.names, self.silos, strict=True))
        names = [str(name) for name in names]
        for name in names:
            if name not in by_name:
                raise Problem(f"data: '{self.name}' has no silo '{name}'; {nearest(name, self.names)}")
        preparation = None if self.preparation is None else self.preparation.pick(names)
        silos = tuple(by_name[name] for name in names)
        return replace(self, silos=silos, preparation=preparation, recipe=None)

    def facts(self) -> dict[str, Any]:
        """Return the public facts as plain data."""
        return {
            "name": self.name,
            "shape": self.shape,
            "classes": self.classes,
            "silos": {s.name: {"train": len(s.y), "test": len(s.test_y)} for s in self.silos},
        }

    def without_examples(self) -> Federation:
        """Return the public facts: the same silos and sizes, every example replaced by zeros.

        The preparation stays, with the mean and deviation of each silo's examples where features were
        standardized: saved models need them.
        """

        def blank(values: Tensor) -> Tensor:
            return values.new_zeros(()).expand(values.shape)  # one number, however large the shape

        silos = (
            Silo(s.name, blank(s.x), blank(s.y), blank(s.test_x), blank(s.test_y), about=s.persons)
            for s in self.silos
        )
        return replace(self, silos=tuple(silos))


def load(
    source: Any = "digits",
    *,
    data_dir: str | Path | None = None,
    name: str | None = None,
    silo_column: str | None = None,
    target_column: str | Sequence[str] | None = None,
    drop: Sequence[str] = (),
    person_column: str | None = None,
    **options: Any,
) -> Federation:
    """Load a federation from a name (see `coterie data list`), a file, a folder, or data in memory.

    The columns (`drop`: those to leave out) are those of a CSV or Parquet file, of a DataFrame or of a dict
    of columns. `name` is for data in memory, whose ledgers are found by it. Further options are those of
    `from_table`, and the rules by which columns become numbers (`sources.rules.rules_of`).

    >>> len(load("digits", silos=5))
    5
    """
    rules = rules_of(**{key: options.pop(key) for key in RULES if key in options})
    how = [options.get(key) for key in ("feature_range", "standardize", "features")]
    chosen: dict[str, Any] = {
        "silo_column": silo_column,
        "target_column": target_column,
        "drop": drop,
        "person_column": person_column,
        "rules": rules.asked(*how),
    }
    if silo_column is not None and options.get("partition") is not None:
        raise Problem(
            f"data.partition: the silos are those of the column '{silo_column}'; leave out one of the two"
        )
    if not isinstance(source, str | Path):
        if data_dir is not None:
            raise Problem("data_dir: data in memory needs no folder; leave it out")
        return from_table(read_memory(source, name or "", **chosen), **options)
    if name is not None:
        raise Problem(f"name: '{source}' already has a name; pass a name only with data in memory")
    return from_table(find_table(str(source), data_dir, **chosen), **options)


def from_table(
    table: Table,
    *,
    silos: int | None = None,
    partition: str | Partition | None = None,
    shards: int = 2,
    alpha: float = 0.5,
    rotations: int = 4,
    mask: float = 0.1,
    test: float | str = 0.2,
    seed: int = 0,
    features: str = "auto",
    feature_range: preprocess.Ranges | None = None,
    norm: float | None = None,
    standardize: preprocess.Scales | None = None,
    positive: str | None = None,
    target_range: tuple[float, float] | None = None,
    kind: str = "auto",
    min_examples: int = 2,
    rows: int | None = None,
    rows_per_person: int | None = None,
) -> Federation:
    """Return a federation made from rows.

    Data that already has silos keeps them, and `silos` keeps only the largest ones; other data is split by
    `partition` (with its settings `shards`, `alpha`, `rotations` and `mask`). `test` is the share of each
    silo held out, or "official". `feature_range` (one pair, or one per column) and `target_range` are public
    bounds, scaled to [0, 1]; `standardize` has public means and deviations of columns. `rows` keeps only that
    many rows, drawn at random. If it is known whose rows they are, all rows of a person in a silo are either
    training or test rows; `rows_per_person` is the most of them that a training uses if it protects persons.

    `features` says how numbers are prepared for a model. "auto" divides bytes by 255 and leaves other numbers
    alone. "invert" first subtracts bytes from 255, which turns dark writing on white into large numbers on
    zero. "log" is log(1 + x). "unit" divides each example by its own norm. "standardize" uses the mean and
    deviation of each silo's own training examples. No budget pays for that access to examples, and the
    statement says so. "ids" are whole numbers from 0 on that the model looks up in a table (nn.Embedding).
    """
    total = len(table.y)
    if rows is not None:
        table = some_rows(table, rows, seed)
    preprocess.check_rows(table)
    check_rows_per_person(rows_per_person, table.person is not None)
    preparation = plan_preparation(table, features, feature_range, norm, standardize)
    x = preparation.shared(table.x)
    y, classes = preprocess.targets(table, kind, target_range)
    asked = partition is not None
    if not isinstance(partition, Partition):
        partition = Partition(partition or "iid", shards, alpha, rotations, mask)
    check_several(y, positive, partition)
    if positive is not None:
        y, classes = preprocess.against_rest(y, classes, positive)
    if silos is not None and silos < 1:
        raise Problem(f"data.silos: expected a whole number >= 1, got {silos}")
    labels = {
        "target": table.target,
        "positive": positive,
        "target_range": target_range,
        "number": not classes,
    }
    cut = Cut(
        names=tuple(dict.fromkeys((table.source or table.name, table.name))),
        own_silos=table.silo is not None,
        total=total,
        partition=partition,
        asked=asked,
        rows=rows,
        silos=silos,
        seed=seed,
        labels={key: value for key, value in labels.items() if value},
        named=table.always_cut,
        by_person=table.person is not None,
    )
    if table.silo is None or asked:
        hint = "use fewer silos"
        parts = split_into_silos(x, y, bool(classes), partition, silos or DEFAULT_SILOS, seed, table.person)
    else:
        parts = natural_silos(table.silo, silos, min_examples)
        hint = "leave small silos out with data.min_examples (3 or more) or data.silos"
    if table.person is not None and test != "official":
        check_persons(parts, table.person)
    if table.person is not None:
        held_outs = held_out_persons(parts, table.person, table.split, test, seed)
    members, persons = [], []
    for number, (name, places, view) in enumerate(parts):
        here = f"data: silo '{name}'"
        if len(places) < max(2, min_examples):
            raise Problem(
                f"{here} has {len(places)} example(s), it needs at least {max(2, min_examples)} (some to"
                f" train, some to test): {hint}"
            )
        person = None if table.person is None else table.person[places]
        held_out = (
            held_out_rows(name, places, table.split, test, seed) if person is None else held_outs[number]
        )
        if held_out.all() or not held_out.any():
            part = "training" if held_out.all() else "test"
            raise Problem(
                f"{here} has no {part} example in the official split: give data.test a share, as 0.2"
            )
        train = ~held_out
        silo_x = view.apply(x[places])
        members.append((name, silo_x[train], y[places[train]], silo_x[held_out], y[places[held_out]]))
        persons.append([None if person is None else numbered(person[part]) for part in (train, held_out)])
    check_labels(members, classes)
    steps = {}
    made = []
    for (name, train_x, train_y, test_x, test_y), (_, _, view), numbers in zip(
        members, parts, persons, strict=True
    ):
        own_statistics = preprocess.statistics(train_x) if features == "standardize" else ()
        steps[name] = SiloSteps(view, *own_statistics)
        train_x, test_x = (preparation.silo_only(part, steps[name]) for part in (train_x, test_x))
        arrays = (train_x, train_y, test_x, test_y)
        own_x, own_y, held_x, held_y = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
        whose, held_whose = (None if n is None else torch.from_numpy(n) for n in numbers)
        made.append(Silo(name, own_x, own_y, held_x, held_y, whose, held_whose))
    limits = None if target_range is None else (float(target_range[0]), float(target_range[1]))
    targets = target_names(table)
    preparation = replace(preparation, classes=classes, targets=targets, target_range=limits, silos=steps)
    scale, not_covered = preparation.scale, preparation.not_covered
    name = table.name or "unnamed data"
    notes, source = remarks_on(table, preparation, made), cut.source
    return Federation(
        name, tuple(made), classes, scale, not_covered, preparation, source, notes=notes, cut=cut,
        rows_per_person=rows_per_person or MOST_ROWS, ids=features == "ids",
        inputs=table.inputs, targets=targets,
    )  # fmt: skip
