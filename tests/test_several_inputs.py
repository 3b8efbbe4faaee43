"""Several inputs per example: an image, numbers and words, as a dict, from the data to the saved model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import coterie as ct
from coterie._inputs import Input, flatten_inputs
from coterie.cohort.features import encoded
from coterie.cohort.gradients.choose import recorder
from coterie.deploy.make_plan import make_plan
from coterie.experiment.config.schema import check
from coterie.privacy.keys import draw_key
from coterie.tasks.layers.unpack import unpacked
from tests.helpers import experiment, reference_vectors, refused, vectors

ROWS, WORDS = 60, 7


class Patient(nn.Module):
    """A scan, some measurements and the words of a note."""

    def __init__(self, outputs, dropout=0.0):
        super().__init__()
        self.scan = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.note = nn.Embedding(WORDS, 3, padding_idx=0)
        self.numbers, self.drop = nn.Linear(2, 4), nn.Dropout(dropout)
        self.head = nn.Linear(9, outputs)

    def forward(self, x):
        scan = self.scan(x["scan"].unsqueeze(1))
        real = (x["note"] != 0).unsqueeze(-1).float()
        note = (self.note(x["note"]) * real).sum(1) / real.sum(1).clamp(min=1)
        parts = (scan, note, torch.tanh(self.numbers(torch.stack([x["age"], x["dose"]], 1))))
        return self.head(self.drop(torch.cat(parts, 1)))


def dropping(outputs):
    return Patient(outputs, 0.3)


def arrays(rows=ROWS):
    rng = np.random.default_rng(0)
    note = rng.integers(1, WORDS, (rows, 4)) * (np.arange(4) < rng.integers(1, 5, (rows, 1)))
    return {
        "scan": rng.integers(0, 256, (rows, 5, 5)).astype(np.uint8),
        "note": note,
        "age": rng.random(rows).astype(np.float32),
        "dose": rng.random(rows),
    }


def federation(**changed):
    x = arrays() | changed
    return ct.load({"x": x, "y": np.arange(ROWS) % 3, "silo": np.arange(ROWS) % 3}, name="patients")


def task_of(data, model=Patient):
    return ct.make_task(model, shape=data.shape, classes=3, inputs=data.inputs)


def test_inputs_lie_end_to_end_and_come_out_again():
    data, raw = federation(), arrays()
    assert [(each.name, each.shape, each.kind) for each in data.inputs] == [
        ("scan", (5, 5), "bytes"), ("note", (4,), "ids"), ("age", (), "numbers"), ("dose", (), "numbers"),
    ]  # fmt: skip
    assert data.shape == (31,)
    flat = torch.from_numpy(flatten_inputs(raw, data.inputs, "data"))
    parts = unpacked(flat.reshape(6, 10, 31), data.inputs)
    torch.testing.assert_close(parts["scan"].reshape(60, 5, 5), torch.from_numpy(raw["scan"]).float() / 255)
    assert torch.equal(parts["note"].reshape(60, 4), torch.from_numpy(raw["note"]))
    assert parts["age"].shape == (6, 10)


@pytest.mark.parametrize("model", [Patient, dropping])
@pytest.mark.parametrize("epsilon", [4.0, float("inf")])
def test_engines_agree(model, epsilon):
    data = federation()
    made = experiment(data, ct.methods.MRMTL(lam=0.5), task=task_of(data, model), epsilon=epsilon, rounds=2)
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)
    assert encoded(made.task) is None


def test_gradients_equal_autograd_of_the_users_module():
    data = federation()
    task, own = task_of(data), data.silos[0]
    models = task.initial(0) + 0.1 * torch.randn(
        1, task.layout.size, generator=torch.Generator().manual_seed(0)
    )
    tape = recorder(task)(task.layout.unflatten(models), own.x[None, :3], own.y[None, :3])
    assert list(tape.looked) == ["note.weight"]
    assert {"head", "numbers"} <= set(tape.error)
    module = task.to_module(models[0])
    for k, pick in enumerate(torch.eye(3)):
        parts = {name: value[None] for name, value in unpacked(own.x[k], data.inputs).items()}
        loss = F.cross_entropy(module(parts), own.y[k : k + 1])
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
        found = task.layout.flatten(tape.weighted_sums(pick[None]))[0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_from_a_file_to_predictions(tmp_path):
    raw = arrays()
    named = {f"x.{name}": value for name, value in raw.items()}
    np.savez(tmp_path / "patients.npz", **named, y=np.arange(ROWS) % 3, silo=np.arange(ROWS) % 3)
    data = ct.load(tmp_path / "patients.npz")
    assert data.inputs == federation().inputs
    privacy = ct.Privacy(epsilon=4.0, delta=1e-3)
    result = ct.run(data, "fedavg", privacy, model=Patient, rounds=1, out=tmp_path / "study")
    path = next((tmp_path / "study/models/fedavg").glob("*.safetensors"))
    model = ct.load_model(path, Patient)
    assert type(model.module) is Patient
    predicted = model.predict(raw)
    scans = torch.from_numpy(raw["scan"]).float() / 255
    parts = {"scan": scans, "note": torch.from_numpy(raw["note"])}
    parts |= {name: torch.from_numpy(raw[name]).float() for name in ("age", "dose")}
    with torch.no_grad():
        assert predicted["prediction"].tolist() == [str(int(k)) for k in model(parts).argmax(1)]
        assert predicted["prediction"].tolist() == [str(int(k)) for k in model.module(parts).argmax(1)]
    silo = result.to_frame()["silo"].iloc[0]
    assert result.predict(silo, raw)["prediction"].tolist() == predicted["prediction"].tolist()


def test_what_is_wrong_with_inputs_is_said_at_once():
    inputs = federation().inputs
    with pytest.raises(ct.Problem) as caught:
        flatten_inputs(
            {"scn": arrays()["scan"], "note": arrays()["note"] - 1, "age": np.zeros((3, 2))}, inputs, "rows"
        )
    lines = str(caught.value).splitlines()
    for said in (
        "rows: input 'scan' is missing",
        "rows: input 'dose' is missing",
        "rows: unknown input 'scn'; did you mean 'scan'?",
        "rows: input 'note' holds ids, which are whole numbers from 0 on",
        "rows: input 'age' must hold numbers of shape ('rows',), got (3, 2) float64",
    ):
        assert said in lines
    with pytest.raises(ct.Problem, match="the inputs differ in length"):
        federation(age=np.zeros(3))
    with refused("input 'age' has missing or infinite values"):
        federation(age=np.full(ROWS, np.nan))
    with refused("input 'name' of 'patients' must hold numbers, one row per example"):
        federation(name=np.full(ROWS, "x"))
    with refused("several inputs stay as they are: leave out features, bounds and scales"):
        ct.load(
            {"x": arrays(), "y": np.arange(ROWS) % 3, "silo": np.arange(ROWS) % 3}, name="p", features="log"
        )
    with refused("'p' has both x and 'x.age': keep one of the two"):
        ct.load({"x": np.zeros((9, 2)), "x.age": np.zeros(9), "y": np.arange(9) % 3}, name="p")
    wrong = arrays()["note"]
    wrong[0, 0] = WORDS
    with refused("has an id without a row in a table of the model (which have 'note': 7 rows)"):
        data = federation(note=wrong)
        experiment(data, ct.methods.FedAvg(), task=task_of(data))
    assert Input("age", ()).size == 1


def test_deployments_refuse_several_inputs():
    data, key = federation(), draw_key("coordinator").public
    config = check({"privacy": {"epsilon": 4.0}, "method": [{"name": "fedavg"}]})
    with refused("a deployment trains on one input per example, not on several"):
        make_plan(config, data, key, dict.fromkeys(data.names, key))


class Averages(Patient):
    """Takes the mean age of the batch off every age."""

    def forward(self, x):
        return super().forward({**x, "age": x["age"] - x["age"].mean()})


def test_a_module_that_mixes_one_of_its_inputs_is_refused():
    with refused("mixes examples of a batch"):
        _ = task_of(federation(), Averages).module
