"""Modules of every kind to take gradients of, and plain autograd to compare with."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from coterie.tasks.models import cnn, linear, mlp
from coterie.tasks.task import Task


class Layers(nn.Module):
    """A module of the layers given by name."""

    def __init__(self, **layers: nn.Module):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)


class Residual(Layers):
    def __init__(self):
        super().__init__(inner=nn.Linear(6, 6), outer=nn.Linear(6, 3))

    def forward(self, x):
        return self.outer(x + torch.tanh(self.inner(x)))


class UsedTwice(Layers):
    """A layer used twice: its gradient is a sum of two outer products."""

    def __init__(self):
        super().__init__(same=nn.Linear(6, 6), last=nn.Linear(6, 3))

    def forward(self, x):
        return self.last(self.same(torch.tanh(self.same(x))))


class ReachesIn(Layers):
    """Uses a layer's weight beside the layer."""

    def __init__(self):
        super().__init__(layer=nn.Linear(6, 3))

    def forward(self, x):
        return self.layer(x) + F.linear(x, self.layer.weight.square())


class ReachesInFarAway(Layers):
    """Uses a layer's weight beside the layer, but only where inputs are large."""

    def __init__(self):
        super().__init__(layer=nn.Linear(6, 3))

    def forward(self, x):
        far = x.abs().sum(-1, keepdim=True) > 1000
        return torch.where(far, F.linear(x, 5 * self.layer.weight), self.layer(x))


class Frames(Layers):
    """Folds parts of an example into the batch, so that a layer sees more than one vector."""

    def __init__(self):
        super().__init__(part=nn.Linear(3, 3), last=nn.Linear(6, 3))

    def forward(self, x):
        return self.last(torch.tanh(self.part(x.reshape(-1, 3))).reshape(-1, 6))


class Tied(Layers):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__(first=nn.Linear(6, 6), second=nn.Linear(6, 6), last=nn.Linear(6, 3))
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(self.second(torch.relu(self.first(x))))


class Tokens(Layers):
    """Embedding, attention and a linear layer over a sequence."""

    def __init__(self):
        super().__init__(
            embed=nn.Embedding(7, 4), mix=nn.Linear(4, 4), norm=nn.LayerNorm(4), head=nn.Linear(4, 3)
        )

    def forward(self, x):
        hidden = self.embed((x * 7).long().clamp(0, 6))
        scores = torch.softmax(hidden @ self.mix(hidden).transpose(-1, -2), -1)
        return self.head(self.norm(scores @ hidden).mean(1))


class Scalar(Layers):
    """A parameter without axes, and one that is frozen."""

    def __init__(self):
        super().__init__(layer=nn.Linear(6, 3, bias=False))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return self.layer(x) * self.scale + self.fixed


class ZeroHead(Layers):
    """Mixes examples behind a head of zeros, so that no trial at the start can see it."""

    def __init__(self):
        super().__init__(body=nn.Linear(6, 16), head=nn.Linear(16, 3))
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        return self.head((hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-3).sqrt())


def twice():
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(6, 3))


MODULES = {
    "linear": ((6,), lambda: nn.Linear(6, 3)),
    "no bias": ((6,), lambda: nn.Linear(6, 3, bias=False)),
    "built-in linear": ((2, 3), lambda: linear((2, 3), 3)),
    "mlp": ((6,), lambda: mlp((6,), 3, hidden=4, layers=2)),
    "cnn": ((8, 8), lambda: cnn((8, 8), 3, channels=2)),
    "cnn, channels last": ((8, 8, 3), lambda: cnn((8, 8, 3), 3, channels=2)),
    "conv1d": ((2, 9), lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(21, 3))),
    "conv2d groups": (
        (4, 5, 5),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.Flatten(), nn.Linear(36, 3)),
    ),
    "conv2d strided, dilated, oblong": (
        (2, 9, 11),
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding=(1, 2), dilation=(2, 1)),
            nn.Sequential(nn.Tanh(), nn.Conv2d(3, 4, (2, 3), stride=(1, 2), padding=(2, 0), bias=False)),
            nn.Sigmoid(),
            nn.Conv2d(4, 2, 2, padding=1, dilation=2),
            nn.Flatten(),
            nn.Linear(28, 5, bias=False),
            nn.ELU(),
            nn.Linear(5, 3),
        ),
    ),
    "conv3d": ((1, 4, 4, 4), lambda: nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.Linear(16, 3))),
    "group norm": (
        (1, 6, 6),
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        ),
    ),
    "instance norm": (
        (1, 6, 6),
        lambda: nn.Sequential(
            nn.InstanceNorm2d(1, affine=True), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(9, 3)
        ),
    ),
    "layer norm": ((6,), lambda: nn.Sequential(nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3))),
    "tokens": ((5,), Tokens),
    "residual": ((6,), Residual),
    "layer used twice": ((6,), UsedTwice),
    "weight reached into": ((6,), ReachesIn),
    "weight reached into far away": ((6,), ReachesInFarAway),
    "parts folded into the batch": ((6,), Frames),
    "tied weights": ((6,), Tied),
    "scalar and frozen": ((6,), Scalar),
    "a layer under two names": ((6,), twice),
}


def setup(name: str, rows: int = 3, width: int = 4):
    shape, build = MODULES[name]
    task = Task(build, "cross-entropy", shape, 3)
    generator = torch.Generator().manual_seed(3)
    vectors = task.initial(0) + 0.3 * torch.randn(rows, task.layout.size, generator=generator)
    x = torch.rand(rows, width, *shape, generator=generator)
    y = torch.randint(0, 3, (rows, width), generator=generator)
    return task, vectors, x, y


def one_at_a_time(task, vectors, x, y) -> torch.Tensor:
    """Gradient of each example by plain autograd on a plain module: [rows, width, P]."""
    found = []
    for vector, xs, ys in zip(vectors, x, y, strict=True):
        module = task.to_module(vector)
        parameters = [p for p in module.parameters() if p.requires_grad]
        for example, label in zip(xs, ys, strict=True):
            loss = F.cross_entropy(module(example[None]), label[None])
            gradient = torch.autograd.grad(loss, parameters)
            found.append(torch.cat([g.reshape(-1) for g in gradient]))
    return torch.stack(found).reshape(*x.shape[:2], -1)
