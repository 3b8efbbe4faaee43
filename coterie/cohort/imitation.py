"""Training that also imitates another model: its outputs enter the loss of each example, inside the clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from ..errors import Problem
from ..protocol.oracle import NEEDS_CLASSES
from ..tasks.task import Task


@dataclass(frozen=True)
class ImitatingTask(Task):
    """A task whose targets carry another model's outputs: label, outputs, strength, in one vector.

    The loss of an example is its own plus `strength` times the symmetrised divergence of Kullback and
    Leibler between the two models' predictions: the mean of both directions.
    """

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Give the loss of each output."""
        label, theirs, strength = target[..., 0], target[..., 1:-1], target[..., -1]
        return super().loss_of(output, label.long()) + strength * divergence(output, theirs)

    def blank_targets(self, *shape: int) -> Tensor:
        """Make targets of zeros."""
        return torch.zeros(*shape, self.outputs + 2, device=self.device)


def divergence(ours: Tensor, theirs: Tensor) -> Tensor:
    """Give half the sum of both directions of the divergence between predictions, from their scores."""
    if ours.shape[-1] == 1:  # one score for two classes
        ours, theirs = (F.pad(score, (1, 0)) for score in (ours, theirs))
    ours, theirs = F.log_softmax(ours, -1), F.log_softmax(theirs, -1)
    return ((ours.exp() - theirs.exp()) * (ours - theirs)).sum(-1) / 2


def imitating(task: Task) -> ImitatingTask:
    """Give the task of learning and imitating."""
    if not task.classes:
        raise Problem(NEEDS_CLASSES)
    return ImitatingTask(task.build, task.loss, task.shape, task.classes)


@dataclass(frozen=True, eq=False)
class Teacher:
    """Models to imitate, one for each pair `[pairs, P]`, and how strongly, `[pairs]`."""

    task: ImitatingTask
    vectors: Tensor
    strength: Tensor

    def targets(self, pair: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Add the teachers' outputs to the labels of rows of examples `[rows, width, ...]`."""
        with torch.no_grad():
            given: Any = vmap(self.task.predict)(self.task.layout.unflatten(self.vectors[pair]), x)
        strength = self.strength[pair].reshape(-1, 1, 1).expand(*y.shape, 1)
        return torch.cat([y.unsqueeze(-1).float(), given, strength], -1)
