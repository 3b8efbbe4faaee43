"""Features of examples, computed once where everything before the first trained layer is frozen.

A module that is a sequence (`nn.Sequential`) may begin with frozen parts, such as a public encoder. They
are the same for all runs and silos and never change, and without dropout they give an example the same
features in every step. So the gradient of an example is the same function of that example, whether its
features are computed again or were kept: what is clipped, what one example can move, and what is charged do
not change. Features stay where the examples are. They are computed one example at a time, by `vmap`, as in
training, so no example can reach another's features, whatever the module does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from ..tasks.layers.dropout import draws
from ..tasks.layers.functions import exchanging
from ..tasks.task import Task
from ..tasks.trials import REFUSALS
from .derived import derived
from .examples import Examples

CHUNK = 256  # examples that are encoded at a time


@dataclass(frozen=True, eq=False)
class Encoded:
    """A task in two parts: the frozen `encoder`, and the task of what comes after it."""

    encoder: nn.Module
    rest: Task


@derived
def encoded(task: Task) -> Encoded | None:
    """Cut a task behind its frozen first layers; None if it has none, or if they draw or compute nothing."""
    module = task.module
    plain = type(module) is nn.Sequential and not (module._forward_hooks or module._forward_pre_hooks)
    if not plain or F.dropout in task.functions:
        return None
    parts = [part for part in module._modules.values() if part is not None]
    frozen = [not any(p.requires_grad for p in part.parameters()) and not _draws(part) for part in parts]
    first = frozen.index(False) if False in frozen else len(parts)
    encoder = nn.Sequential(*parts[:first])
    if not any(True for _ in encoder.parameters()) or first == len(parts):
        return None
    trial = torch.zeros(1, 1, *task.shape, dtype=task.dtype, device=task.device)
    try:
        with exchanging(bool(task.functions)):
            features = _features(encoder, trial[0])
    except REFUSALS:
        return None
    if features.dtype != torch.float32:
        return None
    rest = nn.Sequential(*[nn.Identity() for _ in range(first)], *parts[first:])
    following = replace(task, shape=tuple(features.shape[1:]), ids=False)
    vars(following).update(module=rest, functions=task.functions)
    return Encoded(encoder, following)


def with_features(task: Task, examples: Examples, memory: int) -> tuple[Task, Examples]:
    """Return the task and the examples to train on: features in place of raw examples, if they can be kept.

    They are not kept if they need more than `memory` bytes.
    """
    cut = encoded(task)
    if cut is None or 4 * examples.y.numel() * torch.Size(cut.rest.shape).numel() > memory:
        return task, examples
    silos, longest = examples.y.shape[:2]
    features = torch.zeros(silos, longest, *cut.rest.shape, device=examples.x.device)
    with exchanging(bool(task.functions)):
        for k in range(silos):
            count = examples.sizes[k] if examples.persons is None else longest
            for start in range(0, count, CHUNK):
                rows = slice(start, min(start + CHUNK, count))
                features[k, rows] = _features(cut.encoder, examples.inputs(examples.x[k, rows]))
    return cut.rest, replace(examples, x=features, scale=1.0, ids=False)


def _features(encoder: nn.Module, x: Tensor) -> Tensor:
    """Return the features of examples, one at a time."""

    def one(example: Tensor) -> Any:
        return encoder(example.unsqueeze(0)).squeeze(0)

    with torch.no_grad():
        found: Tensor = vmap(one)(x)
    return found


def _draws(part: nn.Module) -> bool:
    return any(map(draws, part.modules()))
