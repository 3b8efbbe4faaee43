"""Losses of training: values, gradients in both engines, class weights, and losses of one's own."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import coterie
from coterie.cohort.gradients.choose import recorder, stages, summer
from coterie.methods import Dual, FedAvg, FineTune, Then, Tune
from coterie.tasks.losses import LOSSES
from coterie.tasks.settings import LossSettings, loss_settings
from coterie.tasks.task import make_task
from tests.helpers import experiment, reference_vectors, refused, vectors

NUMBERS = torch.tensor([[-2.0], [0.1], [3.0]]), torch.tensor([0.0, 0.5, 1.0])
COUNTING = {"calls": 0}


def focal(output, target):
    """A loss of one's own: cross-entropy, times the squared probability of being wrong."""
    likelihood = F.cross_entropy(output, target, reduction="none")
    return (1 - (-likelihood).exp()).square() * likelihood


def pinball(output, target):
    error = target - output.squeeze(-1)
    return torch.maximum(0.9 * error, -0.1 * error)


def of_batch(output, target):
    return F.cross_entropy(output, target)


def mixing(output, target):
    return F.cross_entropy(output - output.mean(0), target, reduction="none")


def branching(output, target):
    return torch.stack([o.sum() if t > 0 else -o.sum() for o, t in zip(output, target, strict=True)])


def changing(output, target):
    return F.cross_entropy(output.mul_(2), target, reduction="none")


def counting(output, target):
    COUNTING["calls"] += 1
    return F.cross_entropy(output, target, reduction="none") * COUNTING["calls"]


def constant(output, target):
    return 0.5 * target.float()


def infinite(output, target):
    return output.sum(-1).abs().log() / 0


def raising(output, target):
    raise LookupError("no table")


def counts_of(federation):
    """The same federation with targets that are not negative."""
    return replace(federation, silos=tuple(replace(silo, y=silo.y.abs()) for silo in federation.silos))


def test_huber_and_poisson_are_those_of_torch():
    output, target = NUMBERS
    for width in (0.3, 1.0):
        expected = F.huber_loss(output[:, 0], target, reduction="none", delta=width)
        torch.testing.assert_close(LOSSES["huber"](output, target, width), expected)
        task = make_task("linear", shape=(1,), classes=0, loss="huber", settings=loss_settings(None, width))
        torch.testing.assert_close(task.loss_of(output, target), expected)
    expected = F.poisson_nll_loss(output[:, 0], target, log_input=True, reduction="none")
    torch.testing.assert_close(LOSSES["poisson"](output, target), expected)


def one_at_a_time(task, loss, settings, vectors, x, y):
    """Each example's gradient by plain autograd on a plain module: [rows, width, P]."""
    gradients = []
    for row, vector in enumerate(vectors):
        module = task.to_module(vector)
        for example, target in zip(x[row], y[row], strict=True):
            function = LOSSES[loss] if isinstance(loss, str) else loss
            more = (settings["huber_delta"],) if loss == "huber" else ()
            value = function(module(example[None]), target[None], *more)[0]
            value = value * settings.get("class_weights", (1.0, 1.0, 1.0))[int(target)]
            parts = torch.autograd.grad(value, list(module.parameters()))
            gradients.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(gradients).reshape(*x.shape[:2], -1)


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize(
    ("loss", "classes", "settings"),
    [
        ("huber", 0, {"huber_delta": 0.3}),
        ("poisson", 0, {}),
        (pinball, 0, {}),
        (focal, 3, {}),
        ("cross-entropy", 3, {"class_weights": (0.5, 1.0, 20.0)}),
        ("logistic", 2, {"class_weights": (1.0, 7.0)}),
        (focal, 3, {"class_weights": (0.5, 1.0, 20.0)}),
    ],
)
def test_gradients_equal_autograd_of_one_example(model, loss, classes, settings):
    task = make_task(model, shape=(4,), classes=classes, loss=loss, settings=LossSettings(**settings))
    generator = torch.Generator().manual_seed(0)
    parameters = 0.5 * torch.randn(2, task.layout.size, generator=generator)
    x = torch.randn(2, 5, 4, generator=generator)
    y = torch.rand(2, 5, generator=generator)
    y = (y * classes).long() if classes else y
    expected = one_at_a_time(task, loss, settings, parameters, x, y)
    tape = recorder(task)(task.layout.unflatten(parameters), x, y)
    picks = torch.eye(5).unsqueeze(1).expand(-1, 2, -1)
    found = torch.stack([task.layout.flatten(tape.weighted_sums(pick)) for pick in picks], 1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    weight = torch.rand(2, 5, generator=generator)
    sums = task.layout.flatten(summer(task)(task.layout.unflatten(parameters), x, y, weight))
    torch.testing.assert_close(sums, (expected * weight.unsqueeze(-1)).sum(1), atol=1e-4, rtol=1e-4)
    assert float(expected.abs().max()) > 0.1


def test_class_weights_multiply_losses_and_stay_out_of_the_kernels():
    output, target = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    weights = (0.5, 1.0, 4.0)
    task = make_task("linear", shape=(2,), classes=3, settings=LossSettings(weights))
    expected = F.cross_entropy(output, target, reduction="none") * torch.tensor(weights)[target]
    torch.testing.assert_close(task.loss_of(output, target), expected)
    cnn = {"shape": (8, 8), "classes": 3, "options": {"channels": 2}}
    assert stages(make_task("cnn", **cnn)) is not None
    assert stages(make_task("cnn", **cnn, settings=LossSettings(weights))) is None
    assert stages(make_task("cnn", **cnn, loss=focal)) is None


@pytest.mark.parametrize("epsilon", [4.0, math.inf])
@pytest.mark.parametrize("loss", ["weighted", "own", "imitated"])
def test_both_engines_agree_on_classes(classes, loss, epsilon):
    settings = loss_settings([1, 1, 4], classes=classes.classes)
    task = make_task(
        "linear",
        shape=classes.shape,
        classes=len(classes.classes),
        loss="cross-entropy" if loss == "weighted" else focal,
        settings=settings if loss != "own" else None,
    )
    imitating = Then(first=FedAvg(), second=Tune(how="kl", strength=0.5), share=0.5)
    method = imitating if loss == "imitated" else FedAvg()
    made = experiment(classes, method, task=task, epsilon=epsilon, clip=10, rounds=2)
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)
    plain = experiment(classes, method, epsilon=epsilon, clip=10, rounds=2)
    assert float((vectors(made) - vectors(plain)).abs().max()) > 1e-4


@pytest.mark.parametrize("loss", ["huber", "poisson", pinball])
def test_both_engines_agree_on_numbers(federation, loss):
    numbers = counts_of(federation)
    task = make_task("linear", shape=numbers.shape, classes=0, loss=loss)
    made = experiment(numbers, FineTune(), task=task, rounds=2)
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (of_batch, "must return one number per example, so shape (4,) for 4 examples, got ()"),
        (mixing, "mixes examples of a batch"),
        (branching, "one at a time (torch.func.vmap): it decides by a value: use torch.where"),
        (changing, "changes what it is given: return a new tensor"),
        (counting, "gives two answers to the same question"),
        (constant, "does not depend on the model's outputs"),
        (infinite, "has a loss or a gradient that is not finite"),
        (raising, "fails on made-up outputs of shape (4, 3): LookupError: no table"),
        (
            lambda output, target: 3,
            "must return one number per example, so shape (4,) for 4 examples, got int",
        ),
        (lambda output: output.sum(-1), "fails on made-up outputs of shape (4, 3): TypeError"),
    ],
)
def test_losses_that_no_clip_would_hold_for_are_refused(function, said):
    with refused(said):
        _ = make_task("linear", shape=(4,), classes=3, loss=function).module


def test_a_loss_that_mixes_examples_behind_the_check_still_moves_one_gradient(classes):
    """Whatever a loss does, training gives it one example at a time."""
    widths = set()

    def watching(output, target):
        widths.add(len(output))
        return F.cross_entropy(output, target, reduction="none")

    task = make_task("linear", shape=classes.shape, classes=len(classes.classes), loss=watching)
    _ = task.module
    widths.clear()
    vectors(experiment(classes, FedAvg(), task=task, rounds=1))
    assert widths == {1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("balanced", "model.class_weights: 'balanced' would count the classes of the data"),
        ({"nein": 2}, "model.class_weights: there is no class 'nein'; known: no, yes"),
        ([1, 2, 3], "expected 2 weights, one for each of the classes no, yes, got 3"),
        ({"yes": 0}, "model.class_weights: expected finite numbers > 0, got 0"),
        (3, "model.class_weights: expected a weight for each class"),
    ],
)
def test_class_weights_that_are_refused(given, said):
    with refused(said):
        loss_settings(given, classes=("no", "yes"))


def test_class_weights_by_name_and_default():
    assert loss_settings({"yes": 5}, classes=("no", "yes")).class_weights == (1.0, 5.0)
    assert loss_settings({"yes": 5, "default": 2}, classes=("no", "yes")).class_weights == (2.0, 5.0)


@pytest.mark.parametrize(
    ("loss", "settings", "classes", "said"),
    [
        ("huber", {}, 3, "model.loss: 'huber' needs a numeric target, but the data has classes"),
        ("poisson", {}, 3, "model.loss: 'poisson' needs a numeric target, but the data has classes"),
        ("squared", {"huber_delta": 2.0}, 0, "model.huber_delta: the loss is 'squared'"),
        ("huber", {"huber_delta": -1.0}, 0, "model.huber_delta: expected a finite number > 0, got -1.0"),
        ("squared", {"class_weights": (1.0, 2.0)}, 0, "2 weights were given, but the target is a number"),
        ("smooth-l1", {}, 0, "unknown loss 'smooth-l1'; did you mean 'huber'?"),
    ],
)
def test_settings_that_do_not_fit(loss, settings, classes, said):
    with refused(said):
        make_task("linear", shape=(4,), classes=classes, loss=loss, settings=LossSettings(**settings))


def test_duals_refuse_losses_without_a_form(classes, federation):
    numbers = federation
    weighted = LossSettings((2.0,) * len(classes.classes))
    shape, count = classes.shape, len(classes.classes)
    for task, federation in (
        (make_task("linear", shape=numbers.shape, classes=0, loss="huber"), numbers),
        (make_task("linear", shape=shape, classes=count, loss=focal), classes),
        (
            make_task("linear", shape=shape, classes=count, loss="one-against-rest", settings=weighted),
            classes,
        ),
    ):
        with refused("dual coordinates need a linear model"):
            experiment(federation, Dual(), task=task)


def test_negative_counts_are_refused(federation):
    numbers = counts_of(federation)
    silo = numbers.silos[1]
    broken = replace(numbers, silos=(numbers.silos[0], replace(silo, y=silo.y - 5), *numbers.silos[2:]))
    task = make_task("linear", shape=numbers.shape, classes=0, loss="poisson")
    with refused(f"data: silo '{silo.name}' has a target below 0, but the loss 'poisson' is for counts"):
        experiment(broken, FedAvg(), task=task)


CONFIG = """
[data]
silos = 3
[model]
{model}
[train]
rounds = 2
lr = 0.5
[privacy]
epsilon = 4
delta = 1e-3
[[method]]
name = "local"
"""


def test_a_configuration_names_a_loss_beside_it(tmp_path, monkeypatch):
    (tmp_path / "my_losses.py").write_text(
        "import torch.nn.functional as F\n"
        "from torch.nn.functional import cross_entropy\n"
        "def plain(output, target):\n    return F.cross_entropy(output, target, reduction='none')\n"
    )
    config = tmp_path / "own.toml"
    config.write_text(CONFIG.format(model='loss = "my_losses:plain"'))
    own = coterie.run(config)
    config.write_text(CONFIG.format(model='loss = "cross-entropy"'))
    torch.testing.assert_close(own.vectors[0], coterie.run(config).vectors[0], atol=1e-6, rtol=1e-5)
    path = tmp_path / "model.safetensors"
    own.save_model("silo-1", path)
    loaded = coterie.load_model(path)  # predictions need no loss
    assert loaded.loss == "my_losses:plain"
    for name, said in (
        (
            "my_losses:cross_entropy",
            "model.loss: 'my_losses:cross_entropy' is defined in 'torch.nn.functional'",
        ),
        (
            "os:system",
            "model.loss: 'os:system' is part of Python's standard library, which is never run as a loss",
        ),
        ("elsewhere:loss", "model.loss: 'elsewhere:loss' needs the module 'elsewhere'"),
    ):
        config.write_text(CONFIG.format(model=f'loss = "{name}"'))
        with refused(said):
            coterie.plan(config)


def test_mistakes_in_a_model_table_are_named_together(tmp_path):
    config = tmp_path / "wrong.toml"
    config.write_text(CONFIG.format(model='loss = "hubber"\nclass_weights = "balanced"\nhuber_delta = 0'))
    with pytest.raises(coterie.Problem) as caught:
        coterie.plan(config)
    for said in (
        "model.loss: unknown loss 'hubber'; did you mean 'huber'?",
        "model.class_weights: 'balanced' would count the classes",
        "model.huber_delta: expected a number > 0, got 0",
    ):
        assert said in str(caught.value)


def test_losses_from_python(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3)).astype(np.float32)
    counts = rng.poisson(np.exp(x[:, 0])).astype(np.float32)
    silos = coterie.load({"x": x, "y": counts, "silo": np.arange(600) % 3})
    none = coterie.Privacy(epsilon=math.inf)
    poisson = coterie.run(silos, "fedavg", none, loss="poisson", rounds=20, lr=0.05)
    squared = coterie.run(silos, "fedavg", none, rounds=20, lr=0.05)
    assert poisson.summary[0]["mean"] < squared.summary[0]["mean"]
    predicted = poisson.predict("silo-0", x[:5])["prediction"]
    assert (predicted > 0).all()
    with refused("loss_options: unknown setting 'huber'; did you mean 'huber_delta'?"):
        coterie.plan(silos, "fedavg", none, loss="huber", loss_options={"huber": 1})
    with refused("model.loss: expected the name of a loss or a function, got 3"):
        coterie.plan(silos, "fedavg", none, loss=3)


def test_weighted_classes_shift_predictions():
    silos = coterie.load("digits", silos=3, rows=300, positive="3")
    none = coterie.Privacy(epsilon=math.inf)
    plain, weighted = (
        coterie.run(silos, "fedavg", none, rounds=3, lr=0.05, loss_options={"class_weights": weights})
        for weights in (None, {"3": 30})
    )
    shares = [
        np.mean([r.predict("silo-0", silos.silos[0].test_x.numpy())["prediction"] == "3"])
        for r in (plain, weighted)
    ]
    assert shares[1] > shares[0]
    assert weighted.study.config.model.class_weights == {"not 3": 1.0, "3": 30.0}


def test_results_with_losses_of_one_s_own_can_be_pickled_if_they_are_found_again():
    silos = coterie.load("digits", silos=2, rows=60)
    privacy = coterie.Privacy(epsilon=4, delta=1e-3)
    result = coterie.run(silos, "local", privacy, rounds=1, loss=focal)
    again = pickle.loads(pickle.dumps(result))
    assert torch.equal(again.vectors[0], result.vectors[0])
    assert again.task.own_loss is focal
    output, target = torch.randn(4, 10), torch.arange(4)
    torch.testing.assert_close(again.task.loss_of(output, target), focal(output, target))
    nameless = coterie.run(
        silos, "local", privacy, rounds=1, loss=lambda output, target: focal(output, target)
    )
    with refused("<lambda>' cannot be pickled: define its function at the top of a module"):
        pickle.dumps(nameless)
