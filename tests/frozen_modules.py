"""Modules with parts that are not trained, for 8 x 8 images; another process can import them by name."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class FrozenProjection(nn.Module):
    """A random projection that stays as it was drawn, then a trained layer."""

    def __init__(self, outputs=10, width=32):
        super().__init__()
        self.project = nn.Linear(64, width)
        self.project.requires_grad_(False)
        self.last = nn.Linear(width, outputs)

    def forward(self, x):
        return self.last(torch.cos(4 * self.project(x.flatten(1))))


class RandomBuffers(nn.Module):
    """Random features in a buffer, a shift in one that `state_dict` leaves out, and an order of pixels."""

    def __init__(self, outputs=10):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(64, 32))
        self.register_buffer("shift", torch.rand(32), persistent=False)
        self.register_buffer("order", torch.randperm(64))
        self.last = nn.Linear(32, outputs)

    def forward(self, x):
        return self.last(torch.cos(x.flatten(1)[:, self.order] @ self.frequencies + self.shift))


class Tied(nn.Module):
    """One weight under two names, as in an autoencoder, and a frozen one under two names."""

    def __init__(self, outputs=10):
        super().__init__()
        self.encode, self.decode = nn.Linear(64, 64), nn.Linear(64, 64)
        self.decode.weight = self.encode.weight
        self.near, self.far = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        self.near.requires_grad_(False)
        self.far.weight = self.near.weight
        self.last = nn.Linear(64, outputs)

    def forward(self, x):
        hidden = torch.tanh(self.encode(self.near(x.flatten(1))))
        return self.last(torch.tanh(self.decode(self.far(hidden))))


class Nested(nn.Module):
    """Modules in modules, one of them used under two names."""

    def __init__(self, outputs=10):
        super().__init__()
        block = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        self.body = nn.Sequential(FrozenProjection(32), nn.ModuleDict({"a": block, "b": block})["a"], block)
        self.heads = nn.ModuleList(
            [RandomBuffers(outputs), nn.Sequential(nn.LayerNorm(32), nn.Linear(32, outputs))]
        )
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.heads[0](x) + self.scale * self.heads[1](self.body(x))


class SharedMemory(nn.Module):
    """Two parameters and a buffer that lie in the same memory, though they are not the same tensor."""

    def __init__(self, outputs=10):
        super().__init__()
        memory = torch.randn(outputs + 2, 64) / 8
        self.upper, self.lower = nn.Parameter(memory[:outputs]), nn.Parameter(memory[2:])
        self.register_buffer("middle", memory[1:-1])
        self.register_buffer("wide", torch.randn(1).expand(64))

    def forward(self, x):
        x = x.flatten(1) + self.wide
        return F.linear(x, self.upper) + F.linear(x.square(), self.lower) + F.linear(x, self.middle)


MODULES = {
    "frozen": FrozenProjection,
    "buffers": RandomBuffers,
    "tied": Tied,
    "nested": Nested,
    "memory": SharedMemory,
}


class NumpyFrozen(FrozenProjection):
    """Frozen numbers from a generator that no seed of ours reaches."""

    def __init__(self, outputs=10):
        super().__init__(outputs)
        drawn = np.random.default_rng().uniform(-0.1, 0.1, self.project.weight.shape)
        self.project.weight.data = torch.from_numpy(drawn)


class HiddenNumbers(nn.Module):
    """A random tensor that is neither a parameter nor a buffer."""

    def __init__(self, outputs=10):
        super().__init__()
        self.hidden = torch.randn(64)
        self.last = nn.Linear(64, outputs)

    def forward(self, x):
        return self.last(x.flatten(1) * self.hidden)


def network(outputs, width=16, activation=None):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), activation or nn.Tanh(), nn.Linear(width, outputs)
    )
