"""Clipped sums of gradients: no example moves them by more than the clip."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from coterie.cohort.examples import Examples
from coterie.cohort.gradients.clipping import clipped_sums
from coterie.cohort.sampling import rows_of
from coterie.tasks.task import Task
from tests.gradient_modules import ZeroHead, one_at_a_time, setup


def sums(task, vector, x, y, clip, taken=None):
    """The clipped sum of one pair's batch."""
    examples = Examples(("a",), (len(x),), x[None], y[None], 1.0)
    index = np.arange(len(x)) if taken is None else np.array(taken)
    zero = np.zeros(len(index), dtype=int)
    rows, _ = rows_of(zero, zero, zero, index, 4)
    return clipped_sums(task, examples, vector[None], rows, torch.tensor([clip]), 1000)[0].float()


@pytest.mark.parametrize("name", ["mlp", "cnn", "layer used twice"])
@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e6])
def test_clipped_sum_equals_the_slow_one(name, clip):
    task, vectors, x, y = setup(name, rows=1, width=7)
    each = one_at_a_time(task, vectors, x, y)[0]
    expected = sum(g * min(1.0, clip / float(g.norm())) for g in each)
    torch.testing.assert_close(sums(task, vectors[0], x[0], y[0], clip), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name", ["mlp", "cnn", "layer used twice", "group norm", "weight reached into far away"]
)
@pytest.mark.parametrize("extreme", [0.0, 1.0, 1e4, 1e18, 1e30, float("inf"), float("nan")])
def test_one_example_moves_the_sum_by_at_most_the_clip(name, extreme):
    """The sensitivity that the accounting stands on, whatever the example holds."""
    task, vectors, x, y = setup(name, rows=1, width=6)
    x, y, clip = x[0].clone(), y[0], 0.7
    x[2] = x[2] * extreme if extreme else 0.0
    whole = sums(task, vectors[0], x, y, clip)
    without = sums(task, vectors[0], x, y, clip, [0, 1, 3, 4, 5])
    assert torch.isfinite(whole).all()
    assert float((whole - without).double().norm()) <= clip * (1 + 1e-6) + 1e-6


def test_one_example_cannot_move_the_rounding_of_the_others():
    """A sum in float32 past a power of two rounds every small gradient up: twice the clip."""
    task = Task(lambda: nn.Linear(1, 1, bias=False), "squared", (1,))
    small = 1.01 * 2.0**-11
    values = [0.0] * 8 + [(8192 - 0.995) / 8192] * 8192 + ([small] + [0.0] * 7) * 2028
    x = torch.tensor(values)[:, None]
    y = torch.full((len(x),), -0.5)
    with_it = x.clone()
    with_it[0] = 1e6
    zero = np.zeros(len(x), dtype=int)
    rows, _ = rows_of(zero, zero, zero, np.arange(len(x)), 8)

    def total(features):
        examples = Examples(("a",), (len(x),), features[None], y[None], 1.0)
        return clipped_sums(task, examples, torch.zeros(1, 1), rows, torch.tensor([1.0]), 10_000)[0]

    assert float((total(with_it) - total(x)).norm()) <= 1.0


def test_a_product_of_a_tiny_and_a_huge_norm_is_still_clipped():
    build = lambda: nn.Sequential(nn.Linear(1, 1000, bias=False), nn.Linear(1000, 1, bias=False))  # noqa: E731
    task = Task(build, "squared", (1,))
    vector = torch.cat([torch.zeros(1000), torch.full((1000,), 2.5e-23)])
    found = sums(task, vector, torch.tensor([[1.8e19]]), torch.tensor([-0.5]), 1e-4)
    assert float(found.double().norm()) <= 1e-4


def test_an_infinite_clip_passes_gradients_on():
    task, vectors, x, y = setup("mlp", rows=1)
    expected = one_at_a_time(task, vectors, x, y)[0].sum(0)
    found = sums(task, vectors[0], x[0], y[0], float("inf"))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_a_zero_gradient_is_no_division_by_zero():
    task = Task(lambda: nn.Linear(3, 1), "squared", (3,))
    vector = torch.zeros(4)
    found = sums(task, vector, torch.ones(2, 3), torch.zeros(2), 1.0)
    assert torch.equal(found, torch.zeros(4))


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn", "residual"])
def test_rounding_does_not_pass_the_clip(name):
    """A clipped gradient is at most the clip long, not the clip and a little rounding."""
    task, vectors, _, _ = setup(name, rows=1)
    generator = torch.Generator().manual_seed(5)
    x = 10 * torch.randn(64, *task.shape, generator=generator)
    y = torch.randint(0, 3, (64,), generator=generator)
    lengths = [float(sums(task, 5 * vectors[0], x, y, 0.1, [k]).double().norm()) for k in range(64)]
    assert max(lengths) > 0.0999
    assert max(lengths) <= 0.1


def test_examples_cannot_mix_even_in_a_module_that_mixes():
    """Only a plain sequence of known layers sees a batch; any other module sees one example."""
    task = Task(ZeroHead, "cross-entropy", (6,), 3)
    generator = torch.Generator().manual_seed(0)
    vector = task.initial(0) + 0.5 * torch.randn(task.layout.size, generator=generator)
    x = 3 * torch.randn(8, 6, generator=generator)
    y = torch.randint(0, 3, (8,), generator=generator)
    x[3] *= 1000
    moved = sums(task, vector, x, y, 0.5) - sums(task, vector, x, y, 0.5, [0, 1, 2, 4, 5, 6, 7])
    assert float(moved.double().norm()) <= 0.5 * (1 + 1e-6)
