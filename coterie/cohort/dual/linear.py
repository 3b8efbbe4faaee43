"""Linear models as matrices: what a dual method needs from a task and its examples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...data.federation import Federation
from ...errors import Problem
from ...tasks.task import Task
from ..derived import derived
from ..examples import Examples

CONVEX = ("squared", "hinge", "squared-hinge", "one-against-rest")
SLACK = 1e-4
NEEDED = (
    "model: dual coordinates need a linear model (model.name = 'linear') with one of these losses, and no"
    f" class weights: {', '.join(CONVEX)}"
)


@dataclass(frozen=True)
class Shape:
    """A linear model: `outputs` scores, each from `features` numbers; with `bias` the last number is 1."""

    outputs: int
    features: int
    bias: bool

    def matrix(self, vectors: Tensor) -> Tensor:
        """Return vectors `[..., P]` as matrices `[..., outputs, features]`."""
        plain = self.features - self.bias
        weights: Tensor = vectors[..., : self.outputs * plain].unflatten(-1, (self.outputs, plain))
        if not self.bias:
            return weights
        return torch.cat([weights, vectors[..., self.outputs * plain :].unsqueeze(-1)], -1)

    def places(self) -> np.ndarray:
        """Return where each number of a matrix, row by row, stands in the vector."""
        count = self.outputs * self.features
        return self.matrix(torch.arange(count)).reshape(-1).numpy()

    def vector(self, matrices: Tensor) -> Tensor:
        """Return matrices `[..., outputs, features]` as vectors `[..., P]`."""
        plain = self.features - self.bias
        parts = [matrices[..., :plain].flatten(-2)]
        return torch.cat([*parts, matrices[..., -1]] if self.bias else parts, -1)


@derived
def linear_shape(task: Task) -> Shape:
    """Return the shape of a task's linear model; raise Problem for other models and losses without a dual."""
    width, shapes = math.prod(task.shape), [tuple(shape) for shape in task.layout.shapes]
    bias = len(shapes) == 2
    wanted = [(task.outputs, width), (task.outputs,)] if bias else [(task.outputs, width)]
    if task.loss not in CONVEX or task.settings.class_weights or task.targets or shapes != wanted:
        raise Problem(NEEDED)
    shape = Shape(task.outputs, width + bias, bias)
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(task.layout.size, generator=generator).to(task.device)
    x = torch.randn(5, *task.shape, generator=generator).to(task.device)
    with torch.no_grad():
        given = task.predict(task.layout.unflatten(vector), x)
    if not torch.allclose(given, _with_one(x.flatten(1), bias) @ shape.matrix(vector).T, atol=1e-3):
        raise Problem(NEEDED)
    return shape


def check_norms(federation: Federation) -> None:
    """Raise Problem if the features of an example have a norm above 1.

    (Guarantees rest on clips, not on this check. The error reveals that some example is longer.)
    """
    for silo in federation.silos:
        longest = float((silo.x.flatten(1).double() * federation.scale).norm(dim=1).max())
        if not longest <= 1 + SLACK:
            raise Problem(
                f"data: silo '{silo.name}' has an example whose norm is above 1 or not a number; under"
                " privacy, dual coordinates need norms of at most 1: data.features = 'unit' divides each"
                " example by its own norm, data.norm divides all examples by a public bound"
            )


@dataclass(frozen=True, eq=False)
class Points:
    """Examples for a linear model, on the CPU: the rows of all silos in order, `longest` rows per silo.

    `x` is `[rows, features]`, `y` (signs of classes, or numbers) `[rows, outputs]`, `squared_norm`
    `[rows]`. Rows that are padding, or not finite, are zeros; `real` `[rows]` is False for padding. If
    persons are protected, `each` rows of one person lie next to each other.
    """

    x: np.ndarray
    y: np.ndarray
    squared_norm: np.ndarray
    longest: int
    real: np.ndarray
    each: int = 1

    def rows_of(self, members: np.ndarray) -> np.ndarray:
        """Return the places of the rows of members `[..., many]` of a silo: `[..., many * each]`."""
        if self.each == 1:
            return members
        rows = members[..., None] * self.each + np.arange(self.each)
        return rows.reshape(*members.shape[:-1], -1)


@derived
def points_of(examples: Examples, task: Task) -> Points:
    """Return the examples of a cohort as points."""
    shape = linear_shape(task)
    x, y = examples.x.cpu().flatten(2).float() * examples.scale, examples.y.cpu().unsqueeze(-1)
    real = torch.arange(x.shape[1]) < torch.tensor(examples.sizes).unsqueeze(1)
    if examples.persons is not None:
        place, silo = examples.persons.rows.cpu().flatten(1), torch.arange(len(x)).unsqueeze(1)
        x, y, real = x[silo, place], y[silo, place], examples.persons.weight.cpu().flatten(1) > 0
    finite = real & torch.isfinite(x).all(-1)
    x = torch.where(finite.unsqueeze(-1), _with_one(x, shape.bias), 0.0)
    if task.classes:
        y = 2 * (y == (torch.arange(shape.outputs) if shape.outputs > 1 else 1)).float() - 1
    norm = x.double().square().sum(-1)
    rows, targets, norms = (part.flatten(0, 1).numpy() for part in (x, y.float(), norm))
    return Points(rows, targets, norms, len(rows) // len(x), real.flatten().numpy(), examples.each)


def _with_one(x: Tensor, bias: bool) -> Tensor:
    return torch.cat([x, torch.ones_like(x[..., :1])], -1) if bias else x
