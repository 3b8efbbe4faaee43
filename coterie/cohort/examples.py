"""The examples of all silos as one padded tensor, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.federation import Federation
from ..data.persons import rows_by_person


@dataclass(frozen=True, eq=False)
class Persons:
    """Whose rows are whose, if persons are protected: the rows `[silos, longest, each]` of each person.

    All persons have the same number of rows, `each`; those of weight 0 are padding. The weights of a person
    add up to 1, so a person contributes the mean over their rows.
    """

    rows: Tensor
    weight: Tensor

    @property
    def each(self) -> int:
        """How many rows every person has, padding included."""
        return int(self.rows.shape[2])

    def pick(self, places: list[int]) -> Persons:
        """Return the persons of some of the silos."""
        return Persons(self.rows[places], self.weight[places])


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples `x` `[silos, longest, ...]` and targets `y` `[silos, longest]` of all silos.

    With several targets per example, `y` has a further axis.

    Row i of silo k is real if i < sizes[k]; the other rows are padding. Features are numbers, or `ids`. With
    `persons`, `sizes` counts persons instead, and whoever asks for one of them gets all of that person's
    rows, along a further axis.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    x: Tensor
    y: Tensor
    scale: float
    ids: bool = False
    persons: Persons | None = None

    @property
    def each(self) -> int:
        """How many rows belong to each of those whom `sizes` counts."""
        return 1 if self.persons is None else self.persons.each

    def gather(self, silo: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return some rows of some silos; this is where bytes become floats."""
        if self.persons is not None:
            silo, row = silo.unsqueeze(-1), self.persons.rows[silo, row]
        place = (silo * self.y.shape[1] + row).reshape(-1)
        x = self.x.flatten(0, 1).index_select(0, place).unflatten(0, row.shape)
        return self.inputs(x), self.y.flatten(0, 1).index_select(0, place).unflatten(0, row.shape)

    def inputs(self, x: Tensor) -> Tensor:
        """Return features as a model gets them."""
        if x.dtype != torch.float32 and not self.ids:
            x = x.float()
        return x if self.scale == 1.0 else x * self.scale

    def numbers(self, silo: Tensor, row: Tensor) -> Tensor:
        """Return the number within its silo of each row that `gather` returns, side by side in the width."""
        if self.persons is not None:
            return self.persons.rows[silo, row].flatten(1)
        return row.expand(torch.broadcast_shapes(silo.shape, row.shape))

    def pick(self, places: list[int]) -> Examples:
        """Return the examples of some of the silos."""
        names, sizes = tuple(self.names[k] for k in places), tuple(self.sizes[k] for k in places)
        persons = None if self.persons is None else self.persons.pick(places)
        return Examples(names, sizes, self.x[places], self.y[places], self.scale, self.ids, persons)

    def weights(self, silo: Tensor, row: Tensor, real: Tensor) -> Tensor:
        """Return the weight of each row of `gather`, 0 for what is not `real`."""
        if self.persons is None:
            return real.float()
        return self.persons.weight[silo, row] * real.unsqueeze(-1)


def flat_rows(examples: Examples, gathered: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return gathered examples `[rows, width, ...]` with the rows of persons side by side in the width."""
    x, y = gathered
    return (x, y) if examples.persons is None else (x.flatten(1, 2), y.flatten(1, 2))


def stack(federation: Federation, part: str, device: str = "cpu", each: int | None = None) -> Examples:
    """Stack the "train" or "test" examples of a federation, by person if each has `each` rows at most."""
    prefix = "test_" if part == "test" else ""
    xs = [getattr(silo, f"{prefix}x") for silo in federation.silos]
    ys = [getattr(silo, f"{prefix}y") for silo in federation.silos]
    sizes = tuple(len(y) for y in ys)
    x, y = _pad(xs, sizes).to(device), _pad(ys, sizes).to(device)
    if each is not None:
        numbers = [getattr(silo, f"{prefix}person") for silo in federation.silos]
        persons, sizes = _persons(federation.names, numbers, each, device)
        return Examples(federation.names, sizes, x, y, federation.scale, federation.ids, persons)
    return Examples(federation.names, sizes, x, y, federation.scale, federation.ids)


def _persons(
    names: Sequence[str], numbers: Sequence[Tensor], each: int, device: str
) -> tuple[Persons, tuple[int, ...]]:
    """Return the persons of all silos, and how many there are in each."""
    parts = [rows_by_person(own, each, name) for name, own in zip(names, numbers, strict=True)]
    sizes = tuple(len(rows) for rows, _ in parts)
    weights = [real / real.sum(1, keepdim=True) for _, real in parts]
    return Persons(
        _pad([rows for rows, _ in parts], sizes).to(device), _pad(weights, sizes).to(device)
    ), sizes


def _pad(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    padded = parts[0].new_zeros(len(parts), max(sizes), *parts[0].shape[1:])
    for k, part in enumerate(parts):
        padded[k, : len(part)] = part
    return padded
