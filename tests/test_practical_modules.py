"""Layers and networks that practitioners have: gradients, engines, masks, and the user's own module again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.cohort.gradients.choose import recorder, summer
from coterie.tasks.layers import EXCHANGED
from tests.gradient_modules import one_at_a_time
from tests.practical_modules import CLASSES, DROPPING, MODULES, examples, practical_task


def setup(name, rows=2, width=3):
    task = practical_task(name)
    generator = torch.Generator().manual_seed(3)
    vectors = task.initial(0) + 0.3 * torch.randn(rows, task.layout.size, generator=generator)
    y = torch.randint(0, CLASSES, (rows, width), generator=generator)
    return task, vectors, examples(task, rows, width), y


def single(task, vectors, x, y, keys=None):
    """Each example's gradient, picked off the tape with a weight of one, and the tape's norms."""
    tape = recorder(task)(task.layout.unflatten(vectors), x, y, keys)
    picks = torch.eye(x.shape[1]).unsqueeze(1).expand(-1, len(x), -1)
    found = torch.stack([task.layout.flatten(tape.weighted_sums(pick)) for pick in picks], 1)
    return found, tape.squared_norms().float()


@pytest.mark.parametrize("name", MODULES)
def test_gradients_equal_autograd_of_torchs_own_layers(name):
    task, vectors, x, y = setup(name)
    expected = one_at_a_time(task, vectors, x, y)
    found, norms = single(task, vectors, x, y)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(norms, expected.square().sum(-1), atol=1e-5, rtol=1e-4)
    weight = torch.tensor([[0.5, 2.0, -1.0]]).expand(2, -1)
    sums = summer(task)(task.layout.unflatten(vectors), x, y, weight)
    total = (expected * weight.unsqueeze(-1)).sum(1)
    torch.testing.assert_close(task.layout.flatten(sums), total, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [*MODULES, *DROPPING])
def test_a_trained_model_is_the_users_own_module_again(name):
    task, vectors, x, _ = setup(name)
    module = task.to_module(vectors[0])
    assert not {type(part) for part in module.modules()} & set(EXCHANGED.values())
    parameters = {key: value[0] for key, value in task.layout.unflatten(vectors).items()}
    with torch.no_grad():
        torch.testing.assert_close(task.predict(parameters, x[0]), module(x[0]), atol=1e-5, rtol=1e-4)
