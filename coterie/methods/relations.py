"""How silos relate, as a public fact fixed beforehand: groups of silos, or a matrix."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import Problem, reason

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Relations:
    """How silos relate: the `group` of each, or a matrix `omega`, symmetric with a positive diagonal.

    With a matrix, silo k is pulled with strength `omega[k][k]` toward the sum of the others' models, each
    multiplied by `-omega[k][j] / omega[k][k]`. This is the gradient of half the trace of W omega W'.
    """

    names: tuple[str, ...]
    groups: tuple[str, ...] = ()
    omega: Matrix = ()

    def __post_init__(self) -> None:
        twice = [name for k, name in enumerate(self.names) if name in self.names[:k]]
        if twice:
            raise Problem(f"relations: silo '{twice[0]}' appears twice; keep one row for it")
        if bool(self.groups) == bool(self.omega):
            raise Problem("relations: expected either groups or a matrix")
        if len(self.groups or self.omega) != len(self.names):
            raise Problem(f"relations: expected one row per silo ({len(self.names)} rows)")
        for k, row in enumerate(self.omega):
            if len(row) != len(self.names):
                raise Problem(f"relations: row '{self.names[k]}' must have {len(self.names)} numbers")
            if not all(map(math.isfinite, row)) or row[k] <= 0:
                raise Problem(
                    f"relations: row '{self.names[k]}' must be finite, with a number above 0 on the diagonal"
                )
            wrong = [j for j in range(k) if not math.isclose(row[j], self.omega[j][k], abs_tol=1e-9)]
            if wrong:
                pair = f"'{self.names[k]}' and '{self.names[wrong[0]]}'"
                raise Problem(
                    f"relations: the matrix must be symmetric, but the two entries of {pair} differ"
                )

    def __str__(self) -> str:
        kind = f"{len(set(self.groups))} groups" if self.groups else "a matrix"
        mark = hashlib.sha256(repr(self).encode()).hexdigest()[:6]
        return f"{kind} of {len(self.names)} silos ({mark})"

    def parts(self, names: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums to release, how targets follow from them, and pulls, for silos in this order.

        The sums of models are `[rows, silos]`, targets are a matrix `[silos, rows]` times these, and pulls
        are `[silos]`.
        """
        missing = [name for name in names if name not in self.names]
        if missing:
            raise Problem(f"relations: silo '{missing[0]}' is missing; add a row for it")
        places = [self.names.index(name) for name in names]
        if self.groups:
            groups = [self.groups[place] for place in places]
            kinds = sorted(set(groups))
            sums = torch.tensor([[float(group == kind) for group in groups] for kind in kinds])
            return sums, sums.t() / (sums @ sums.t()).diagonal(), torch.ones(len(names))
        rows = [[self.omega[k][j] for j in places] for k in places]
        omega = torch.tensor(rows, dtype=torch.float32)
        pulls = omega.diagonal()
        return torch.diag(pulls) - omega, torch.diag(1 / pulls), pulls


def alike(names: tuple[str, ...]) -> Relations:
    """Return relations in which all silos form one group."""
    return Relations(names, groups=("all",) * len(names))


def plain_relations(relations: Relations) -> dict[str, Any]:
    """Return relations as the table that `read_relations` takes."""
    if relations.groups:
        return {"silos": list(relations.names), "groups": list(relations.groups)}
    return {"silos": list(relations.names), "matrix": [list(row) for row in relations.omega]}


def _from_table(table: Mapping[str, Any]) -> Relations:
    """Return the relations in a table with `silos`, and `groups` or a `matrix`."""
    silos, groups, matrix = (table.get(key, []) for key in ("silos", "groups", "matrix"))
    words = isinstance(silos, list) and isinstance(groups, list)
    words = words and all(isinstance(name, str) and name for name in [*silos, *groups])
    rows = isinstance(matrix, list) and all(isinstance(row, list) for row in matrix)
    numbers = rows and all(type(cell) in (int, float) for row in matrix for cell in row)
    if set(table) - {"silos", "groups", "matrix"} or not (words and numbers):
        raise Problem("relations: expected a table of lists: silos, and groups or a matrix of numbers")
    return Relations(tuple(silos), tuple(groups), tuple(tuple(map(float, row)) for row in matrix))


def read_relations(source: str | Path | Mapping[str, Any]) -> Relations:
    """Return the relations in a table, or in a CSV file.

    A table has `silos`, and `groups` or a `matrix`. A file has lines `silo,group`, or a square matrix whose
    header names the silos. The header of groups is `silo,group`; each line of a matrix may begin with its
    silo's name.
    """
    return _from_table(source) if isinstance(source, Mapping) else _from_file(source)


def _from_file(path: str | Path) -> Relations:
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file) if line]
    except (OSError, ValueError, csv.Error) as error:
        raise Problem(f"relations: cannot read '{path}': {reason(error)}") from error
    if len(lines) < 2:
        raise Problem(f"relations: '{path}' has no rows; expected a header and one line per silo")
    header, *rows = lines
    try:
        if [cell.lower() for cell in header] == ["silo", "group"]:
            if any(len(row) != 2 or not all(row) for row in rows):
                raise Problem("relations: expected two cells per line, silo and group")
            return Relations(tuple(row[0] for row in rows), groups=tuple(row[1] for row in rows))
        named = len(rows[0]) == len(rows) + 1
        if len(header) not in (len(rows), len(rows) + int(named)):
            raise Problem(f"relations: the header names {len(header)} silos, but there are {len(rows)} lines")
        names = tuple(header[-len(rows) :])
        if named and tuple(row[0] for row in rows) != names:
            raise Problem("relations: the lines must name the silos in the order of the header")
        return Relations(names, omega=tuple(tuple(map(float, row[int(named) :])) for row in rows))
    except Problem as problem:
        raise Problem(f"{problem} (in '{path}')") from None
    except ValueError as error:
        raise Problem(f"relations: '{path}' must contain numbers: {error}") from error


def relations_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with relations given as a setting, or None."""
    if value is None or isinstance(value, Relations):
        return None
    try:
        read_relations(value)
    except (Problem, TypeError) as problem:
        return f"{name} must be a file or a table of relations: {str(problem).removeprefix('relations: ')}"
    return None
