"""Modules that let one example move another's gradient are refused, and honest ones are not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.cohort.gradients.choose import recorder
from coterie.tasks.check import check_module
from coterie.tasks.layers import exchanged
from coterie.tasks.task import Task
from tests.frozen_modules import RandomBuffers
from tests.helpers import refused

functorch = torch._C._functorch


def unwrapped(x: Tensor) -> Tensor:
    """Return the whole batch of which vmap shows one example."""
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return x.detach()


class Base(nn.Module):
    """A linear layer whose input is changed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.last = None
        self.calls = 0

    def forward(self, x):
        return self.layer(self.change(x))


class Unwraps(Base):
    def change(self, x):
        return x + unwrapped(x).sum()


class UnwrapsOnlyVmap(Base):
    """Is honest on a plain batch: all checks of outputs pass."""

    def change(self, x):
        if not functorch.is_functorch_wrapped_tensor(x):
            return x
        return x + 1e-2 * unwrapped(x).abs().max()


class UnwrapsTheLargest(Base):
    def change(self, x):
        return x / unwrapped(x).abs().max().clamp(min=1) if functorch.is_functorch_wrapped_tensor(x) else x


class UnwrapsOtherRows(Base):
    """Takes from the row of another silo."""

    def change(self, x):
        whole = unwrapped(x)
        return x if whole.dim() < 4 else x + whole[0].sum()


class GradientOnly(Base):
    """Adds nothing to any output, and the others' sum to every gradient."""

    def forward(self, x):
        more = self.layer.weight.sum() * unwrapped(x).sum()
        return self.layer(x) + (more - more.detach())


class Normalises(Base):
    def change(self, x):
        return (x - x.mean(0)) / (x.std(0, correction=0) + 1e-3)


class Attends(Base):
    """Attention over the examples of a batch."""

    def change(self, x):
        return torch.softmax(x @ x.T / 2, 1) @ x


class Remembers(Base):
    """Adds what it saw last."""

    def change(self, x):
        before, self.last = self.last, unwrapped(x).mean()
        return x if before is None else x + before


class CountsCalls(Base):
    def change(self, x):
        self.calls += 1
        return x * (1 + self.calls / 100)


class DrawsElsewhere(Base):
    def __init__(self):
        super().__init__()
        self.dice = np.random.default_rng(0)

    def change(self, x):
        return x + float(self.dice.normal())


MIXES = "mixes examples of a batch"
DISHONEST = {
    Unwraps: MIXES,
    UnwrapsOnlyVmap: MIXES,
    UnwrapsTheLargest: MIXES,
    UnwrapsOtherRows: MIXES,
    GradientOnly: MIXES,
    Normalises: MIXES,
    Attends: MIXES,
    Remembers: "",
    CountsCalls: "",
    DrawsElsewhere: "",
}


@pytest.mark.parametrize("kind", DISHONEST, ids=lambda kind: kind.__name__)
def test_a_module_that_mixes_or_remembers_is_refused(kind):
    with refused(DISHONEST[kind] or "model: the module "):
        _ = Task(kind, "cross-entropy", (4,), 3).module


def test_unwrapping_moved_a_sum_by_more_than_a_clip(monkeypatch):
    """Why it matters: one example moves the clipped gradients of all the others."""
    monkeypatch.setattr("coterie.tasks.task.check_module", lambda *given: None)
    task = Task(UnwrapsOnlyVmap, "cross-entropy", (4,), 3)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[0] = 1e6
    y = torch.arange(16) % 3
    sums = [_sum(task, batch, y) for batch in (x, other)]
    assert float((sums[0] - sums[1]).norm()) > 4  # the clip is 1


def _sum(task, x, y):
    vectors = task.initial(0).unsqueeze(0)
    tape = recorder(task)(task.layout.unflatten(vectors), x.unsqueeze(0), y.unsqueeze(0))
    norm = tape.squared_norms().sqrt()
    sums = tape.weighted_sums((1 / norm).clamp(max=1).float())
    return task.layout.flatten(sums)[0]


class AttendsWithin(nn.Module):
    """Attention within an example, with layer norms."""

    def __init__(self):
        super().__init__()
        self.keys, self.values, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.LayerNorm(6)
        self.last = nn.Linear(36, 3)

    def forward(self, x):
        x = self.norm(x)
        weights = torch.softmax(x @ self.keys(x).transpose(1, 2) / math.sqrt(6), -1)
        return self.last((x + weights @ self.values(x)).flatten(1))


class LooksUp(nn.Module):
    """A table of words; only numbers from 0 to 1 are in its range."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(8, 2), nn.Linear(72, 3)

    def forward(self, x):
        return self.last(self.table((7 * x.flatten(1)).long()).flatten(1))


class Sharp(nn.Module):
    """Waves so short that rounding decides at large values."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(36, 3)

    def forward(self, x):
        return self.last(torch.cos(1e4 * x.flatten(1)))


class Divides(nn.Module):
    """Divides by numbers that may be zero: its outputs need not be finite."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(36, 3)

    def forward(self, x):
        return self.last(F.normalize(x.flatten(1), eps=0.0).exp() / (x.flatten(1) - 0.5).relu())


HONEST = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)),
    "group norm": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ),
    "layer norm": lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 8), nn.GELU(), nn.Linear(8, 3)),
    "rms norm": lambda: nn.Sequential(nn.Flatten(), nn.RMSNorm(36), nn.Linear(36, 3)),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(64, 3)
    ),
    "pools": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ),
    "softmax": lambda: nn.Sequential(nn.Flatten(), nn.Softmax(1), nn.Linear(36, 3), nn.LogSoftmax(1)),
    "divides": Divides,
    "attention within": AttendsWithin,
    "embedding": LooksUp,
    "sharp": Sharp,
    "random features": lambda: nn.Sequential(nn.ZeroPad2d(1), RandomBuffers(3)),
    "large": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 1500), nn.Tanh(), nn.Linear(1500, 700), nn.Linear(700, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_module_is_not_refused(name):
    task = Task(HONEST[name], "cross-entropy", (6, 6), 3)
    assert task.layout.size > 0
    for seed in range(1, 4):
        check_module(exchanged(task.seeded_module(seed)), (6, 6), 3)
