"""Several inputs per example, such as an image and a table: how they lie in one flat row of numbers.

A federation holds one tensor of examples. If an example has several inputs, they lie end to end in it, and a
model gets them as a dict again. Floats stay as they are, bytes are divided by 255, and other whole numbers
are ids, which a model looks up in a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import Problem, nearest

KINDS = ("numbers", "bytes", "ids")
MOST_IDS = 2**24  # float32 numbers are exact up to here


@dataclass(frozen=True)
class Input:
    """One of several inputs: its name, the shape of one example, and its kind."""

    name: str
    shape: tuple[int, ...]
    kind: str = "numbers"

    @property
    def size(self) -> int:
        """How many numbers an example has."""
        return math.prod(self.shape)


def places_of(inputs: Sequence[Input]) -> dict[str, slice]:
    """Return where each input lies in a flat row."""
    places, start = {}, 0
    for each in inputs:
        places[each.name] = slice(start, start + each.size)
        start += each.size
    return places


def describe_inputs(parts: Mapping[str, np.ndarray], what: str) -> tuple[Input, ...]:
    """Return the inputs that some arrays are; raise one `Problem` that lists all that are none."""
    inputs, problems = [], []
    for name, array in parts.items():
        if array.ndim < 1 or array.dtype.kind not in "iufb" or not name:
            problems.append(f"data: input '{name}' of '{what}' must hold numbers, one row per example")
            continue
        kind = "bytes" if array.dtype == np.uint8 else "numbers" if array.dtype.kind == "f" else "ids"
        inputs.append(Input(name, tuple(array.shape[1:]), kind))
    if problems:
        raise Problem("\n".join(problems))
    return tuple(inputs)


def flatten_inputs(parts: Mapping[str, Any], inputs: Sequence[Input], what: str) -> np.ndarray:
    """Return the flat rows `[rows, numbers]` of several inputs, in float32."""
    problems, columns = [], []
    missing = [each.name for each in inputs if each.name not in parts]
    problems += [f"{what}: input '{name}' is missing" for name in missing]
    known = [each.name for each in inputs]
    problems += [
        f"{what}: unknown input '{name}'; {nearest(name, known)}" for name in parts if name not in known
    ]
    for each in inputs:
        if each.name in missing:
            continue
        array = np.asarray(parts[each.name])
        if array.shape[1:] != each.shape or array.ndim == 0 or array.dtype.kind not in "iufb":
            problems.append(
                f"{what}: input '{each.name}' must hold numbers of shape {('rows', *each.shape)}, got"
                f" {array.shape} {array.dtype}"
            )
            continue
        flat = array.reshape(len(array), -1).astype(np.float32)
        if not np.isfinite(flat).all():
            problems.append(f"{what}: input '{each.name}' has missing or infinite values")
        elif each.kind == "ids" and ((flat < 0) | (flat != np.floor(flat)) | (flat >= MOST_IDS)).any():
            problems.append(f"{what}: input '{each.name}' holds ids, which are whole numbers from 0 on")
        columns.append(flat / 255 if each.kind == "bytes" else flat)
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"'{e.name}': {len(c)}" for e, c in zip(inputs, columns, strict=False))
        problems.append(f"{what}: the inputs differ in length ({lengths})")
    if problems:
        raise Problem("\n".join(problems))
    return np.concatenate(columns, axis=1).astype(np.float32)


def inputs_to_json(inputs: Sequence[Input]) -> list[dict[str, Any]]:
    """Return plain data that `inputs_from_json` reads back."""
    return [{"name": each.name, "shape": list(each.shape), "kind": each.kind} for each in inputs]


def inputs_from_json(content: Sequence[Mapping[str, Any]]) -> tuple[Input, ...]:
    """Read what `inputs_to_json` returns; raise ValueError, TypeError or KeyError if it is something else."""
    inputs = tuple(Input(str(e["name"]), tuple(map(int, e["shape"])), str(e["kind"])) for e in content)
    for each in inputs:
        if each.kind not in KINDS or min(each.shape, default=1) < 1:
            raise ValueError(f"input '{each.name}': unknown kind or shape")
    return inputs
