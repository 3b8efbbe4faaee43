"""Several labels or numbers per example: losses, gradients, both engines, predictions and refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics
from torch.nn import functional as F

import coterie
from coterie.cohort.examples import stack
from coterie.cohort.gradients.choose import recorder, summer
from coterie.cohort.gradients.clipping import clipped_sums
from coterie.cohort.sampling import Rows
from coterie.data.federation import from_table
from coterie.data.sources.table import Table
from coterie.deploy.make_plan import check_data
from coterie.methods import IFCA, MRMTL, Dual, FedAvg, Then, Tune
from coterie.tasks.settings import LossSettings
from coterie.tasks.task import make_task
from tests.helpers import experiment, reference_vectors, refused, vectors

PRIVACY = coterie.Privacy(epsilon=4, delta=1e-3)


def numbers(labels: bool, rows: int = 90):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 4)).astype(np.float32)
    y = x @ generator.normal(size=(4, 3)) + 0.1 * generator.normal(size=(rows, 3))
    y = (y > 0).astype(np.int64) if labels else y.astype(np.float32)
    return x, y, np.repeat(["a", "b", "c"], rows // 3)


@pytest.fixture(params=[True, False], ids=["labels", "numbers"])
def several(request):
    x, y, silo = numbers(request.param)
    return from_table(Table("several", x, y, silo))


def task_of(federation, model="linear", **more):
    return make_task(
        model,
        shape=federation.shape,
        classes=len(federation.classes),
        targets=len(federation.targets),
        **more,
    )


def own(output, target):
    """Squared distance of scores to 0 and 1, of all labels together."""
    return (output.sigmoid() - target).square().sum(-1)


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("loss", ["auto", "another", own])
def test_losses_and_gradients_are_those_of_torch(several, model, loss):
    labels = bool(several.classes)
    if loss == "another":
        loss = "hinge" if labels else "huber"
    task = task_of(several, model, loss=loss)
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(2, task.layout.size, generator=generator)
    x, y = several.silos[0].x[:10].reshape(2, 5, 4), several.silos[0].y[:10].reshape(2, 5, 3)

    def loss_of(output, target):
        if loss == "auto" and labels:
            return F.binary_cross_entropy_with_logits(output, target.float())
        if loss == "auto":
            return F.mse_loss(output, target)
        if loss == "huber":
            return F.huber_loss(output, target)
        if loss == "hinge":
            return (1 - (2 * target - 1) * output).clamp(min=0).mean()
        return (output.sigmoid() - target).square().sum()

    expected = []
    for row, vector in enumerate(parameters):
        module = task.to_module(vector)
        for example, target in zip(x[row], y[row], strict=True):
            parts = torch.autograd.grad(loss_of(module(example[None])[0], target), list(module.parameters()))
            expected.append(torch.cat([part.flatten() for part in parts]))
    expected = torch.stack(expected).reshape(2, 5, -1)
    tape = recorder(task)(task.layout.unflatten(parameters), x, y)
    picks = torch.eye(5).unsqueeze(1).expand(-1, 2, -1)
    found = torch.stack([task.layout.flatten(tape.weighted_sums(pick)) for pick in picks], 1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    sums = summer(task)(task.layout.unflatten(parameters), x, y, torch.ones(2, 5))
    torch.testing.assert_close(task.layout.flatten(sums), expected.sum(1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "method", [FedAvg(), MRMTL(lam=0.3), IFCA(clusters=2, choosing=0.5)], ids=lambda m: m.name
)
@pytest.mark.parametrize("epsilon", [4.0, math.inf])
def test_both_engines_agree(several, method, epsilon):
    made = experiment(several, method, task=task_of(several), epsilon=epsilon)
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_scores_are_means_over_targets(several):
    task = task_of(several)
    vector = torch.randn(task.layout.size, generator=torch.Generator().manual_seed(0))
    silo = several.silos[0]
    output = task.to_module(vector)(silo.x).detach()
    found = task.scores(task.layout.unflatten(vector), silo.x, silo.y)
    wanted = ((output > 0) == (silo.y > 0)).float() if several.classes else (output - silo.y).square()
    torch.testing.assert_close(found, wanted.mean(1))
    assert task.metric == ("accuracy" if several.classes else "mse")


def test_one_example_moves_a_sum_by_the_clip_at_most(several):
    """Whatever its targets are, all of them together."""
    task, silo = task_of(several), several.silos[0]
    extreme = silo.x.clone()
    extreme[0] = 1e4
    other = replace(several, silos=(replace(silo, x=extreme, y=1 - silo.y), *several.silos[1:]))
    one = Rows(torch.tensor([0]), torch.tensor([0]), torch.tensor([[0]]), torch.tensor([[True]]))
    start, clip = torch.zeros(1, task.layout.size), torch.tensor([0.5])
    lengths = [
        float(clipped_sums(task, stack(data, "train"), start, one, clip, 1).norm())
        for data in (several, other)
    ]
    assert all(length <= 0.5 for length in lengths)
    assert lengths[1] > 0.49


def frame(labels=True):
    x, y, silo = numbers(labels)
    table = pd.DataFrame(x, columns=list("pqrs"))
    for place, name in enumerate(("copd", "asthma", "flu")):
        table[name] = np.where(y[:, place] > 0, "yes", "no") if labels else 50 + 10 * y[:, place]
    return table.assign(clinic=silo)


COLUMNS = {"silo_column": "clinic", "target_column": ["copd", "asthma", "flu"]}


def test_from_a_table_to_predictions(tmp_path):
    path = tmp_path / "clinics.csv"
    frame().to_csv(path, index=False)
    config = tmp_path / "clinics.toml"
    config.write_text(
        f"""
[data]
source = {str(path)!r}
silo_column = "clinic"
target_column = ["copd", "asthma", "flu"]
[train]
rounds = 20
[privacy]
epsilon = inf
[[method]]
name = "fedavg"
"""
    )
    result = coterie.run(config, out=tmp_path / "out")
    silos = coterie.load(path, **COLUMNS)
    assert silos.targets == ("copd", "asthma", "flu")
    assert silos.classes == ("no", "yes")
    assert "3 labels" in repr(silos)
    assert result.summary[0]["mean"] > 0.7
    predicted = result.predict("a", frame())
    assert list(predicted) == [
        f"{what} of {name}" for name in silos.targets for what in ("prediction", "probability")
    ]
    right = (predicted["prediction of flu"].to_numpy() == frame()["flu"].to_numpy()).mean()
    assert right > 0.7
    saved = next((tmp_path / "out" / "models").rglob("a.safetensors"))
    again = coterie.load_model(saved).predict(frame())
    pd.testing.assert_frame_equal(again, predicted)


def test_numbers_are_scaled_back():
    silos = coterie.load(frame(False), **COLUMNS, target_range=(0, 100))
    result = coterie.run(silos, "fedavg", coterie.Privacy(epsilon=math.inf), rounds=60, lr=0.1)
    predicted = result.predict("b", frame(False))
    error = (predicted["prediction of asthma"].to_numpy() - frame(False)["asthma"].to_numpy()) ** 2
    assert error.mean() < 0.3 * frame(False)["asthma"].var()


def test_arrays_of_two_dimensions():
    x, y, silo = numbers(True)
    silos = coterie.load({"x": x, "y": y, "silo": silo})
    assert silos.targets == ("target-1", "target-2", "target-3")
    made = coterie.run(silos, "local", PRIVACY, rounds=2)
    assert 0 <= made.summary[0]["mean"] <= 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target_column": ["copd", "flue"]}, "data.target_column: 'the frame' has no column 'flue'; did you mean 'flu'?"),
        ({"target_column": ["copd", "clinic"]}, "data.target_column: 'clinic' is named twice, or has another role"),
        ({"target_column": ["copd", "copd"]}, "target_column: expected the name of a column, or a list of different"),
        ({"target_column": []}, "target_column: expected the name of a column, or a list of different names, got []"),
        ({"target_column": ["copd", "p"]}, "each of several targets must be one of the same two labels"),
        ({"positive": "yes"}, "data.positive: there are several targets, whose labels are two already"),
        ({"silo_column": None, "drop": ["clinic"], "silos": 3, "partition": "dirichlet"},
         "data.partition: 'dirichlet' distributes rows by one label, but there are several targets"),
    ],
)  # fmt: skip
def test_data_that_is_refused(change, said):
    with refused(said):
        coterie.load(frame(), **{**COLUMNS, **change})


def own_metric(outputs, targets):
    return 1.0


METRICS = {
    True: {
        "auc": metrics.roc_auc_score,
        "f1": lambda y, p: metrics.f1_score(y, p > 0.5),
        "log-loss": metrics.log_loss,
        "accuracy": lambda y, p: metrics.accuracy_score(y, p > 0.5),
    },
    False: {
        "mae": metrics.mean_absolute_error,
        "r2": metrics.r2_score,
        "mse": metrics.mean_squared_error,
    },
}


def test_measures_are_means_over_targets(several):
    labels = bool(several.classes)
    slow = METRICS[labels]
    result = coterie.run(several, "local", PRIVACY, rounds=3, seeds=2, metrics=list(slow))
    for number, run in enumerate(result.runs):
        assert run.measures[run.metric].value == pytest.approx(run.score)
        for silo in several.silos:
            output = result.model(silo.name, run=number)(silo.test_x).detach().double()
            said = (output.sigmoid() if labels else output).numpy()
            for name, of_one in slow.items():
                expected = np.mean([of_one(silo.test_y[:, t].numpy(), said[:, t]) for t in range(3)])
                assert run.measures[name].silos[silo.name].value == pytest.approx(expected)
    columns = [silo.test_y[:, t].numpy() for silo in several.silos for t in range(3)]
    best = [max(np.mean(each), 1 - np.mean(each)) if labels else np.var(each) for each in columns]
    assert result.runs[0].constant == pytest.approx(np.mean(best))
    tuned = coterie.sweep(several, "local", PRIVACY, lr=[0.1, 0.2], rounds=1, mean=2)
    assert tuned.tuning["metric"] == ("accuracy" if labels else "mse")


def test_a_label_without_both_values_in_a_silo_is_left_out_there():
    x, y, silo = numbers(True)
    y[silo == "a", 1] = 0
    y[silo == "b"] = 1
    made = from_table(Table("several", x, y, silo))
    result = coterie.run(made, "local", PRIVACY, rounds=1, metrics="auc")
    auc = result.runs[0].measures["auc"]
    assert auc.undefined == ("b",)
    assert auc.partial == ("a",)
    assert (
        "In 1 of 3 silos some targets are undefined, and are left out there: auc."
        in result.to_json()["remarks"]
    )


def test_what_needs_one_target_is_refused(several):
    labels = bool(several.classes)
    with refused("dual coordinates need a linear model"):
        loss = "hinge" if labels else "squared"
        experiment(several, Dual(), task=task_of(several, loss=loss))
    with refused("imitation compares predicted classes"):
        experiment(several, Then(first=FedAvg(), second=Tune(how="kl"), share=0.5), task=task_of(several))
    with refused("report.metrics: 'own_metric' is for one target, but the data has 3; use"):
        coterie.plan(several, "local", PRIVACY, metrics=[own_metric])
    other = "auc" if labels else "mae"
    with refused(f"tuning.metric: '{other}' is for one target, but the data has 3; use"):
        coterie.sweep(several, "local", PRIVACY, lr=[0.1, 0.2], rounds=1, metric=other)
    with refused("data: a deployment predicts one target, but 'several' has 3: make a plan for each"):
        check_data(several)
    if labels:
        with refused("model.loss: 'cross-entropy' is for one target, but the data has 3; use 'logistic'"):
            task_of(several, loss="cross-entropy")
        with refused("model.class_weights: there are several targets"):
            task_of(several, settings=LossSettings((1.0, 2.0)))
