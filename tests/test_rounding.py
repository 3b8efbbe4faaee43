"""What float32 may cost: the sum of clipped gradients moves by at most the clip, to the last bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from coterie.cohort.dual.sampled import clipped_moves
from coterie.cohort.examples import Examples
from coterie.cohort.gradients import clipping
from coterie.cohort.gradients.clipping import clipped_sums
from coterie.cohort.gradients.tape import ADDED, _square
from coterie.cohort.merging import UPLOAD_ROUNDING, clipped_sum
from coterie.cohort.sampling import Rows
from coterie.cohort.score import FINENESS, bounded_total
from coterie.tasks.task import Task, make_task

CLIP = 0.37


def network(kind, parameters):
    if kind == "linear":
        return lambda: nn.Linear(parameters, 1, bias=False)
    if kind == "tanh":  # explicit gradients: a module of its own
        return lambda: Tanh(parameters)
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 1))


class Tanh(nn.Module):
    def __init__(self, parameters):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, x):
        return (x * torch.tanh(self.weight)).sum(-1, keepdim=True)


def moved(kind, parameters, rows, generator):
    """Return how far the sums move when the first example of each silo becomes a null example."""
    shape = (1, 8, 8) if kind == "convolution" else (parameters,)
    task = Task(network(kind, parameters), "squared", shape)
    silos, size = 16, 8 * rows
    x = torch.randn(silos, size, *shape, generator=generator)
    x *= 10 ** (3 * torch.rand(silos, size, *[1] * len(shape), generator=generator))
    x[:, 1:] = x[:, :1] * (1 + 1e-3 * torch.randn(silos, size - 1, *[1] * len(shape), generator=generator))
    y = 100 * torch.ones(silos, size)
    vectors = 1e-3 * torch.randn(silos, task.layout.size, generator=generator)
    pair = torch.arange(silos).repeat_interleave(rows)
    example = torch.arange(size).reshape(rows, 8).repeat(silos, 1)
    examples = Examples(tuple(map(str, range(silos))), (size,) * silos, x, y, 1.0)
    sums = []
    for there in (True, False):
        real = torch.ones(silos * rows, 8, dtype=torch.bool)
        real[example == 0] = there  # a null example has its place and adds nothing
        every = Rows(pair, pair, example, real)
        sums.append(clipped_sums(task, examples, vectors, every, torch.full((silos,), CLIP), 2**20))
    return (sums[0] - sums[1]).norm(dim=1)


CASES = [("linear", 50), ("linear", 5000), ("tanh", 30), ("tanh", 20_000), ("convolution", 0)]


@pytest.mark.parametrize(("kind", "parameters"), CASES)
def test_a_sum_moves_by_at_most_the_clip(kind, parameters):
    """Parallel gradients of equal length, all clipped: partial sums are as long as they can be."""
    generator, longest = torch.Generator().manual_seed(3), 0.0
    for rows in (1, 3):
        for _ in range(5):
            longest = max(longest, float(moved(kind, parameters, rows, generator).max()))
    clip = float(torch.tensor(CLIP))
    assert longest <= clip
    assert longest > clip * (1 - 1e-4), "clipped examples should come close"


def test_without_the_share_the_clip_would_be_exceeded(monkeypatch):
    monkeypatch.setattr(clipping, "ROUNDING", 0.0)
    generator = torch.Generator().manual_seed(3)
    longest = max(float(moved("tanh", 20_000, 3, generator).max()) for _ in range(5))
    assert longest > float(torch.tensor(CLIP))


@pytest.mark.parametrize("size", [1, ADDED - 1, ADDED, ADDED + 1, 1000, 100_003])
def test_squared_norms_are_within_their_share(size):
    generator = torch.Generator().manual_seed(size)
    for values in (
        torch.rand(200, size, generator=generator),
        torch.randn(200, size, generator=generator) * 10 ** torch.randn(200, size, generator=generator),
        torch.full((1, size), 1 + 2**-12),  # every square is rounded the same way
        torch.cat([torch.full((1, 1), 4096.0), torch.full((1, size - 1), 1.0)], 1),  # small ones may be lost
    ):
        exact = np.square(values.double().numpy()).sum(-1)
        found = _square(values).numpy()
        assert (np.abs(found - exact) <= (ADDED + 1) * 2.0**-24 * exact + 1e-30).all()


def test_bounded_totals_are_exact_sums():
    """Whatever the order and the batch: multiples of 2^-20, so that one example changes a sum by at most 1."""
    task = make_task("linear", shape=(3,), classes=0)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(1, 301, 3, generator=generator), torch.rand(1, 301, generator=generator)
    vectors = torch.randn(1, 1, task.layout.size, generator=generator)

    def total(order):
        return bounded_total(task, Examples(("a",), (len(order),), x[:, order], y[:, order], 1.0), vectors)[
            0, 0
        ]

    everybody = torch.arange(301)
    whole = total(everybody)
    assert float(whole * FINENESS) == round(float(whole * FINENESS))
    assert total(everybody.flip(0)) == whole
    for k in (0, 7, 300):
        assert 0 <= float(whole - total(everybody[everybody != k])) <= 1


@pytest.mark.parametrize(("features", "clip"), [(1, 1e-6), (1, 1e-3), (2000, 0.01)])
def test_enormous_gradients_are_clipped_too(features, clip):
    """Their factors are below the smallest normal number of float32."""
    task = Task(lambda: nn.Linear(features, 1, bias=False), "squared", (features,))
    zero = torch.zeros(1, dtype=torch.int64)
    row = Rows(zero, zero, torch.zeros(1, 8, dtype=torch.int64), torch.tensor([[True] + [False] * 7]))
    for size in torch.linspace(1e18, 2.2e18, 8).tolist():
        for label in torch.linspace(5e18, 9e18, 8).tolist():
            examples = Examples(
                ("a",), (1,), torch.full((1, 1, features), size), torch.full((1, 1), label), 1.0
            )
            sums = clipped_sums(task, examples, torch.zeros(1, features), row, torch.tensor([clip]), 9)
            assert float(sums.norm()) <= float(torch.tensor(clip))


def exact_norm(values) -> Fraction:
    """The squared norm, without rounding."""
    return sum((Fraction(float(value)) ** 2 for value in np.ravel(values)), Fraction(0))


@pytest.mark.parametrize("clip", [0.37, 1e-3])
def test_clipped_uploads_are_within_the_clip(clip):
    """Also in exact fractions: rounding never lengthens an upload beyond its clip."""
    uploads = torch.randn(1, 1, 300, generator=torch.Generator().manual_seed(1)) * 1e3
    limit = torch.tensor([clip], dtype=torch.float64)
    assert exact_norm(clipped_sum(uploads, limit, None)) <= Fraction(clip) ** 2


@pytest.mark.parametrize("clip", [0.37, 1e-3])
def test_clipped_moves_are_within_the_clip(clip):
    generator = np.random.default_rng(2)
    for _ in range(50):
        move, x = generator.normal(size=(1, 4)) * 100, generator.normal(size=30)
        norm = np.sqrt((x**2).sum())
        shorter = clipped_moves(move, np.array([norm]), np.array([clip]))
        assert exact_norm(shorter) * exact_norm(x) <= Fraction(clip) ** 2


def test_shares_for_rounding_are_not_nothing():
    """They must cover float64 sums of a million squares."""
    assert UPLOAD_ROUNDING >= 1e6 * 2.0**-53
    assert clipping.ROUNDING >= 157 * 2.0**-24
