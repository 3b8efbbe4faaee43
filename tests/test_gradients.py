"""Per-example gradients: equal to one-at-a-time autograd and to Opacus, of all layers and losses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.cohort.gradients.choose import recorder
from coterie.cohort.gradients.sequential import is_sequence
from coterie.tasks.layout import Layout
from coterie.tasks.models import cnn, mlp
from coterie.tasks.task import Task, make_task
from tests.gradient_modules import MODULES, ZeroHead, one_at_a_time, setup

OPACUS = [  # those whose layers Opacus supports, one use a layer
    "linear", "no bias", "built-in linear", "mlp", "cnn", "conv1d", "conv2d groups", "conv3d", "group norm",
    "instance norm", "layer norm", "tokens", "residual", "conv2d strided, dilated, oblong",
]  # fmt: skip


def all_gradients(task, vectors, x, y) -> torch.Tensor:
    """Each example's gradient, picked off the tape with a weight of one: [rows, width, P]."""
    tape = recorder(task)(task.layout.unflatten(vectors), x, y)
    picks = torch.eye(x.shape[1]).unsqueeze(1).expand(-1, len(x), -1)
    return torch.stack([task.layout.flatten(tape.weighted_sums(pick)) for pick in picks], 1)


@pytest.mark.parametrize("name", MODULES)
def test_gradients_equal_autograd(name):
    task, vectors, x, y = setup(name)
    expected = one_at_a_time(task, vectors, x, y)
    torch.testing.assert_close(all_gradients(task, vectors, x, y), expected, atol=1e-5, rtol=1e-4)
    tape = recorder(task)(task.layout.unflatten(vectors), x, y)
    torch.testing.assert_close(tape.squared_norms().float(), expected.square().sum(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", OPACUS)
def test_gradients_equal_opacus(name):
    from opacus import GradSampleModule

    task, vectors, x, y = setup(name, rows=1)
    found = all_gradients(task, vectors, x, y)[0]
    module = GradSampleModule(task.to_module(vectors[0]), loss_reduction="sum")
    F.cross_entropy(module(x[0]), y[0], reduction="sum").backward()
    samples = [p.grad_sample.reshape(x.shape[1], -1) for p in module.parameters() if p.requires_grad]
    torch.testing.assert_close(found, torch.cat(samples, 1), atol=1e-5, rtol=1e-4)


def test_only_safe_layers_are_taped():
    """Layers used twice, reached into or tied get explicit gradients; plain ones do not."""

    def explicit(name):
        task, vectors, x, y = setup(name)
        return set(recorder(task)(task.layout.unflatten(vectors), x, y).explicit)

    assert explicit("mlp") == set()
    assert explicit("residual") == set()
    assert "same.weight" in explicit("layer used twice")
    assert "layer.weight" in explicit("weight reached into")
    assert "layer.weight" in explicit("weight reached into far away")
    assert explicit("parts folded into the batch") == {"part.weight", "part.bias"}
    assert "first.weight" in explicit("tied weights")
    assert {"mix.weight"} <= explicit("tokens")
    assert not any("6" in name for name in explicit("cnn"))


def test_the_quick_tape_is_used_where_it_may():
    """Else the built-in models would be slow without anybody noticing."""
    for model in ("linear", "mlp", "cnn"):
        task = make_task(model, shape=(28, 28), classes=10)
        assert recorder(task).__module__ == "coterie.cohort.gradients.sequential"


def test_which_modules_see_a_batch():
    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked[0].register_forward_hook(lambda module, given, out: out - out.mean(0))
    for module in (cnn((8, 8, 3), 3), mlp((4,), 2), MODULES["conv2d strided, dilated, oblong"][1]()):
        assert is_sequence(of(module))
    twice = nn.Linear(2, 2)
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    frozen[0].weight.requires_grad = False
    for module in (
        hooked,
        tied,
        frozen,
        ZeroHead(),
        nn.Sequential(twice, nn.ReLU(), twice),
        nn.Sequential(nn.Flatten(0)),
        nn.Sequential(nn.Softmax(0)),
        nn.Sequential(nn.BatchNorm1d(3)),
        nn.Sequential(nn.Unflatten(0, (1, -1))),
        nn.Sequential(nn.Conv2d(2, 2, 3, padding_mode="circular", padding=1)),
        nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)),
    ):
        assert not is_sequence(of(module))


def of(module):
    """A stand-in for a task, whose module is not checked."""
    return SimpleNamespace(module=module, layout=Layout.of(module))


@pytest.mark.parametrize("loss", ["squared", "logistic", "hinge"])
def test_losses_of_one_output(loss):
    task = Task(lambda: nn.Linear(4, 1), loss, (4,), 0 if loss == "squared" else 2)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, 5, generator=generator)
    x = torch.randn(1, 6, 4, generator=generator)
    y = torch.randint(0, 2, (1, 6), generator=generator)
    y = y.float() if loss == "squared" else y
    score = x[0] @ vectors[0, :4] + vectors[0, 4]
    sign = 2.0 * y[0] - 1
    by_hand = {
        "squared": (score - y[0]) ** 2,
        "logistic": torch.log1p(torch.exp(-sign * score)),
        "hinge": torch.relu(1 - sign * score),
    }[loss]
    parameters = {k: v[0] for k, v in task.layout.unflatten(vectors).items()}
    torch.testing.assert_close(task.losses(parameters, x[0], y[0]), by_hand)
    slope = {
        "squared": 2 * (score - y[0]),
        "logistic": -sign * torch.sigmoid(-sign * score),
        "hinge": -sign * (sign * score < 1),
    }[loss]
    expected = slope[:, None] * torch.cat([x[0], torch.ones(6, 1)], 1)
    torch.testing.assert_close(all_gradients(task, vectors, x, y)[0], expected, atol=1e-5, rtol=1e-4)
