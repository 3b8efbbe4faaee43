"""Per-example gradients: equal to one-at-a-time autograd and to Opacus, clipped, summed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.cohort.examples import Examples
from coterie.cohort.gradients import clipped_sums
from coterie.cohort.sampling import rows_of
from coterie.cohort.sequence import is_sequence
from coterie.cohort.trial import recorder
from coterie.models import cnn, linear, mlp
from coterie.task import Layout, Task, make_task


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.outer = nn.Linear(6, 3)

    def forward(self, x):
        return self.outer(x + torch.tanh(self.inner(x)))


class UsedTwice(nn.Module):
    """A layer used twice: its gradient is a sum of two outer products."""

    def __init__(self):
        super().__init__()
        self.same = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.same(torch.tanh(self.same(x))))


class ReachesIn(nn.Module):
    """Uses a layer's weight beside the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) + F.linear(x, self.layer.weight.square())


class ReachesInFarAway(nn.Module):
    """Uses a layer's weight beside the layer, but only where inputs are large."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        far = x.abs().sum(-1, keepdim=True) > 1000
        return torch.where(far, F.linear(x, 5 * self.layer.weight), self.layer(x))


class Frames(nn.Module):
    """Folds parts of an example into the batch, so that a layer sees more than one vector."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(3, 3)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.part(x.reshape(-1, 3))).reshape(-1, 6))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.second(torch.relu(self.first(x))))


class Tokens(nn.Module):
    """Embedding, attention and a linear layer over a sequence."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.embed((x * 7).long().clamp(0, 6))
        scores = torch.softmax(hidden @ self.mix(hidden).transpose(-1, -2), -1)
        return self.head(self.norm(scores @ hidden).mean(1))


class Scalar(nn.Module):
    """A parameter without axes, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return self.layer(x) * self.scale + self.fixed


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
}
OPACUS = [  # those whose layers Opacus supports, one use a layer
    "linear", "no bias", "built-in linear", "mlp", "cnn", "conv1d", "conv2d groups", "conv3d", "group norm",
    "instance norm", "layer norm", "tokens", "residual", "conv2d strided, dilated, oblong",
]  # fmt: skip


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


class ZeroHead(nn.Module):
    """Mixes examples behind a head of zeros, so that no trial at the start can see it."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        return self.head((hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-3).sqrt())


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


def test_the_quick_tape_is_used_where_it_may():
    """Else the built-in models would be slow without anybody noticing."""
    for model in ("linear", "mlp", "cnn"):
        task = make_task(model, shape=(28, 28), classes=10)
        assert recorder(task).__module__ == "coterie.cohort.sequence"


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
