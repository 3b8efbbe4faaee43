"""Small networks, examples and silos to train by the compiled kernels and without them."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import nn

from coterie.cohort.dp_sgd import Cohort, Settings
from coterie.cohort.examples import Examples
from coterie.protocol.doors import Work
from coterie.protocol.streams import SeededStreams


def image(*layers):
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv2d(1, 2, 3), *layers)


END = nn.Flatten(), nn.Linear(32, 3)


@contextlib.contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def random_case(task, pairs=2, examples=3):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(pairs, task.layout.size, generator=generator) / 2
    x = torch.randn(pairs, examples, *task.shape, generator=generator)
    return vectors, x, torch.randint(0, task.classes, (pairs, examples), generator=generator)


def silos_of(task, sizes=(9, 4, 6, 1), whole=False, **changes):
    """Silos of images, as bytes or as numbers; the runs differ in their rates."""
    generator = torch.Generator().manual_seed(1)
    shape = (len(sizes), max(sizes), *task.shape)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    y = torch.randint(0, task.classes, shape[:2], generator=generator)
    examples = Examples(
        tuple("abcd"[: len(sizes)]), sizes, x if whole else x / 255, y, 1 / 255 if whole else 1.0
    )
    work = tuple(Work(size, min(3, size), 1 + size // 2) for size in sizes)
    lr = torch.tensor([[0.1], [0.3]]).expand(2, len(sizes)).contiguous()
    free = Settings(lr, torch.full(lr.shape, math.inf), torch.zeros(lr.shape))
    starts = torch.stack([task.initial(seed) for seed in range(2)])[:, None].expand(-1, len(sizes), -1)
    return Cohort(task, examples, work, free, **changes), starts.contiguous()


STREAMS = SeededStreams(((0, 0), (1, 0)))
