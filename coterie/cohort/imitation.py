"""Training that also imitates another model, whose outputs enter the loss of each example inside the clip."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import Problem
from ..protocol.oracle import NEEDS_CLASSES
from ..tasks.task import Task
from .derived import derived
from .rowwise import over_rows


@dataclass(frozen=True)
class ImitatingTask(Task):
    """A task whose targets carry another model's outputs: label, outputs and strength in one vector.

    The loss of an example is its usual loss plus `strength` times the symmetrised Kullback-Leibler
    divergence between the two models' predictions (the mean of both directions).
    """

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each output."""
        label, theirs, strength = target[..., 0], target[..., 1:-1], target[..., -1]
        return super().loss_of(output, label.long()) + strength * divergence(output, theirs)

    def blank_targets(self, *shape: int) -> Tensor:
        """Return targets that are all zero."""
        return torch.zeros(*shape, self.outputs + 2, device=self.device)


def divergence(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the symmetrised divergence between two predictions, given their scores."""
    if ours.shape[-1] == 1:  # one score for two classes
        ours, theirs = (F.pad(score, (1, 0)) for score in (ours, theirs))
    ours, theirs = F.log_softmax(ours, -1), F.log_softmax(theirs, -1)
    return ((ours.exp() - theirs.exp()) * (ours - theirs)).sum(-1) / 2


@derived
def imitating(task: Task) -> ImitatingTask:
    """Return the task of learning and imitating at the same time."""
    if not task.classes or task.targets:
        raise Problem(NEEDS_CLASSES)
    other = ImitatingTask(**{field.name: getattr(task, field.name) for field in fields(task)})
    for kept in ("module", "functions"):  # the same frozen parts, on the same device
        vars(other)[kept] = getattr(task, kept)
    return other


@dataclass(frozen=True, eq=False)
class Teacher:
    """Models to imitate, one per pair `[pairs, P]`, and how strongly, `[pairs]`."""

    task: ImitatingTask
    vectors: Tensor
    strength: Tensor

    def targets(self, pair: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return labels with the teachers' outputs attached, for rows of examples `[rows, width, ...]`."""
        with torch.no_grad():
            given = over_rows(self.task.predict)(self.task.layout.unflatten(self.vectors[pair]), x)
        strength = self.strength[pair].reshape(-1, 1, 1).expand(*y.shape, 1)
        return torch.cat([y.unsqueeze(-1).float(), given, strength], -1)
