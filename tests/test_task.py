"""Tasks: layouts, factories, and modules that cannot be trained privately."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from coterie.errors import Problem
from coterie.tasks.layout import Layout
from coterie.tasks.models import MODELS
from coterie.tasks.task import Task, make_task


class SubtractsMean(nn.Module):
    """Mixes examples by hand."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x - x.mean(0))


class ScalesByLargest(nn.Module):
    """Mixes examples, but only where values are above one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x / x.abs().max().clamp(min=1))


class Counts(nn.Module):
    """Remembers how often it was called."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


class Branches(nn.Module):
    """Decides by values, which cannot be done for many silos at once."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if self.layer.bias.sum() > 0 else self.layer(-x)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), "layer '0' .BatchNorm1d. mixes examples.*use GroupNorm"),
        (lambda: nn.Sequential(nn.SyncBatchNorm(4), nn.Linear(4, 3)), "SyncBatchNorm. mixes examples"),
        (
            lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(), nn.Linear(4, 3)),
            "InstanceNorm1d. mixes examples.*GroupNorm with one group per channel",
        ),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.AlphaDropout(0.5)), "AlphaDropout. draws random numbers that no seed reaches: use nn.Dropout"),
        (SubtractsMean, "mixes examples of a batch .its output for one depends on the others"),
        (ScalesByLargest, "mixes examples of a batch"),
        (Counts, "changes its buffers in forward"),
        (Branches, "cannot run for many silos at once"),
        (lambda: nn.Linear(4, 5), r"must return 3 number.s. per example, so shape \(3, 3\) for three examples, got \(3, 5\)"),
        (lambda: nn.Linear(9, 3), r"does not take examples of shape \(4,\)"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Softmax(1)), "has no trainable parameter"),
        (lambda: "a model", "must return a torch.nn.Module, got 'a model'"),
    ],
)  # fmt: skip
def test_modules_that_are_refused(build, said):
    with pytest.raises(Problem, match=said):
        _ = Task(build, "cross-entropy", (4,), 3).module


def test_dropout_of_zero_and_plain_instance_norm_are_fine():
    build = lambda: nn.Sequential(  # noqa: E731
        nn.Unflatten(1, (1, 4)), nn.InstanceNorm1d(1), nn.Flatten(), nn.Dropout(0.0), nn.Linear(4, 3)
    )
    assert Task(build, "cross-entropy", (4,), 3).layout.size == 15


def test_layout_goes_there_and_back():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3, bias=False))
    module.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))
    layout = Layout.of(module)
    assert layout.size == sum(p.numel() for p in module.parameters())
    vectors = torch.randn(2, 5, layout.size)
    parts = layout.unflatten(vectors)
    assert parts["0.weight"].shape == (2, 5, 2, 1, 3, 3)
    assert parts["scale"].shape == (2, 5)
    assert torch.equal(layout.flatten(parts), vectors)
    assert torch.equal(layout.flatten(dict(module.named_parameters()))[:1], module.scale[None])


def test_a_vector_becomes_a_plain_module():
    task = make_task("mlp", shape=(4,), classes=3)
    vector = torch.randn(task.layout.size)
    module = task.to_module(vector)
    assert torch.equal(task.layout.flatten(dict(module.named_parameters())), vector)


def test_initial_vectors_are_seeded_and_leave_the_global_state_alone():
    task = make_task("mlp", shape=(4,), classes=3)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    assert torch.equal(task.initial(1), task.initial(1))
    assert not torch.equal(task.initial(1), task.initial(2))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(8, 8), (7, 9), (3, 8, 8), (8, 8, 3)])
def test_built_in_models_take_images(name, shape):
    task = make_task(name, shape=shape, classes=5)
    assert task.module(torch.rand(2, *shape)).shape == (2, 5)


def test_a_network_for_images_wants_images():
    with pytest.raises(Problem, match=r"'cnn' needs images, but the examples have shape \(4,\); use 'mlp'"):
        _ = make_task("cnn", shape=(4,), classes=2).module


def own(outputs):
    return nn.Linear(4, outputs)


def greedy(input_shape, outputs, **rest):
    return nn.Linear(input_shape[0], outputs, bias=rest["bias"])


def plain():
    return nn.Linear(4, 3)


def fails(outputs):
    raise RuntimeError("no luck")


not_callable = 3


def test_a_factory_that_fails_is_named():
    with pytest.raises(Problem, match=r"model\.name: 'tests\.test_task:fails' failed: RuntimeError: no luck"):
        _ = make_task("tests.test_task:fails", shape=(4,), classes=3).module


@pytest.mark.parametrize("name", ["own", "plain"])
def test_own_factories_get_what_they_ask_for(name):
    assert make_task(f"tests.test_task:{name}", shape=(4,), classes=3).layout.size == 15


def test_own_factories_get_options():
    task = make_task("tests.test_task:greedy", shape=(4,), classes=3, options={"bias": False})
    assert task.layout.size == 12


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("tests.test_task:missing", {}, "cannot import"),
        ("tests.test_task:not_callable", {}, "is neither a function nor a class"),
        ("tests.test_task:own", {"width": 3}, "model.width: .* has no such setting"),
        ("mlp", {"outputs": 3}, "model.outputs: 'mlp' has no such setting \\(it has: hidden, layers"),
    ],
)
def test_factories_that_are_refused(name, options, said):
    with pytest.raises(Problem, match=said):
        make_task(name, shape=(4,), classes=3, options=options)


@pytest.mark.parametrize(
    ("loss", "classes", "said"),
    [
        ("squared", 3, "needs a numeric target"),
        ("cross-entropy", 0, "needs classes"),
        ("logistic", 3, "needs two classes, but the data has 3"),
        ("crossentropy", 3, "did you mean 'cross-entropy'"),
    ],
)
def test_losses_that_do_not_fit(loss, classes, said):
    with pytest.raises(Problem, match=said):
        make_task("linear", shape=(4,), classes=classes, loss=loss)


def test_scores():
    parameters = {"1.weight": torch.eye(2), "1.bias": torch.zeros(2)}
    task = make_task("linear", shape=(2,), classes=2, loss="cross-entropy")
    x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    assert task.scores(parameters, x, y).tolist() == [1.0, 0.0]
    single = {"1.weight": torch.tensor([[1.0, -1.0]]), "1.bias": torch.zeros(1)}
    for loss in ("logistic", "hinge"):
        scored = make_task("linear", shape=(2,), classes=2, loss=loss).scores(single, x, y)
        assert scored.tolist() == [0.0, 1.0]
    numeric = make_task("linear", shape=(2,), classes=0)
    assert numeric.scores(single, x, torch.tensor([0.0, 1.0])).tolist() == [1.0, 4.0]
    assert (task.metric, task.higher_is_better) == ("accuracy", True)
    assert (numeric.metric, numeric.higher_is_better) == ("mse", False)


@pytest.mark.parametrize(
    ("model", "options"), [("cnn", {"channels": 8}), ("mlp", {"hidden": 32, "layers": 4})]
)
def test_signals_keep_their_size_in_deep_networks(model, options):
    """torch's own start shrinks them by more than half in each layer."""
    task = make_task(model, shape=(16, 16), classes=10, options=options)
    x = torch.rand(200, 16, 16, generator=torch.Generator().manual_seed(0))

    def shrinks(network):
        sizes, value = [], x
        for layer in network:
            value = layer(value)
            if isinstance(layer, torch.nn.ReLU):
                sizes.append(float(value.detach().square().mean().sqrt()))
        return sizes[-1] / sizes[0]

    ours = sorted(shrinks(task.seeded_module(seed)) for seed in range(9))[4]
    theirs = copy.deepcopy(task.module)
    for layer in theirs:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    assert 0.4 < ours < 2.5
    assert shrinks(theirs) < 0.4


def test_one_hidden_layer_starts_as_torch_starts_it():
    task = make_task("mlp", shape=(4,), classes=3, options={"hidden": 5})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        plain = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
    parameters = torch.cat([p.detach().flatten() for p in plain.parameters()])
    assert torch.equal(task.initial(7), parameters)
