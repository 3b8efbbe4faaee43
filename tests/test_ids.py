"""Tokens and categories: ids stay whole numbers, from the file to the saved model."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.cohort.examples import stack
from coterie.cohort.gradients.choose import recorder
from coterie.deploy.make_plan import check_used
from coterie.experiment.config.schema import check
from coterie.methods import MRMTL, FedAvg
from coterie.tasks.task import Task, make_task
from coterie.tasks.trials import Kind, ids_below, trial_examples
from tests.helpers import call, experiment, reference_vectors, refused, vectors

WORDS, LENGTH = 12, 5
ONE = ct.Privacy(epsilon=1.0)


class Words(nn.Module):
    """The mean of a sentence's words."""

    def __init__(self, outputs, words=12, padding=None):
        super().__init__()
        self.table = nn.Embedding(words, 4, padding_idx=padding)
        self.head = nn.Linear(4, outputs)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


def sentences(rows=60, seed=0) -> dict[str, np.ndarray]:
    """Random sentences; the label says whether word 3 is more frequent than word 4."""
    x = np.random.default_rng(seed).integers(0, WORDS, (rows, LENGTH))
    y = ((x == 3).sum(1) > (x == 4).sum(1)).astype(np.int64)
    return {"x": x, "y": y, "silo": np.arange(rows) % 3}


def federation(**changed):
    return ct.load({**sentences(), **changed}, name="words", features="ids")


@pytest.mark.parametrize("method", [FedAvg(), MRMTL(lam=0.5)], ids=["fedavg", "mr-mtl"])
@pytest.mark.parametrize("epsilon", [4.0, float("inf")])
def test_engines_agree_on_ids(method, epsilon):
    data = federation()
    task = make_task(Words, shape=(LENGTH,), classes=2, ids=True)
    made = experiment(data, method, task=task, epsilon=epsilon)
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_ids_stay_whole_numbers():
    data = federation()
    assert data.silos[0].x.dtype == torch.int64
    x, _ = stack(data, "train").gather(torch.tensor([[0], [1]]), torch.tensor([[0, 1], [0, 1]]))
    assert x.dtype == torch.int64
    assert torch.equal(x[1, 0], data.silos[1].x[0])
    plain = ct.load(sentences(), name="words")
    assert plain.silos[0].x.dtype == torch.float32  # as before, unless asked for


@pytest.mark.parametrize("form", ["csv", "npz"])
def test_from_a_file_of_ids_to_predictions(form, tmp_path, monkeypatch, capsys):
    """The whole way: a file, a configuration, a command, a saved model that is the user's own module."""
    arrays = sentences()
    columns = {f"word {k}": arrays["x"][:, k] for k in range(LENGTH)}
    frame = pd.DataFrame({**columns, "label": arrays["y"], "ward": arrays["silo"]})
    frame.to_csv(tmp_path / "words.csv", index=False)
    np.savez(tmp_path / "words.npz", **arrays)
    (tmp_path / f"model_of_{form}.py").write_text(f"from torch import nn\n\n{inspect.getsource(Words)}")
    named = 'silo_column = "ward"\ntarget_column = "label"\n' if form == "csv" else ""
    (tmp_path / "words.toml").write_text(
        f'[data]\nsource = "words.{form}"\nfeatures = "ids"\n{named}'
        f'[model]\nname = "model_of_{form}:Words"\n[train]\nrounds = 2\nbatch = 8\n'
        '[privacy]\nepsilon = 4.0\n[[method]]\nname = "fedavg"\n'
    )
    monkeypatch.chdir(tmp_path)
    code, out, said = call(monkeypatch, capsys, "run", "words.toml", "--json")
    assert code == 0, said
    silo = next(iter(json.loads(out)["runs"][0]["silos"]))
    model = ct.load_model(tmp_path / "runs/words-1/models/fedavg" / f"{silo}.safetensors", Words)
    assert type(model.module) is Words
    rows = frame.drop(columns=["label", "ward"]).head(3) if form == "csv" else arrays["x"][:3]
    predicted = model.predict(rows)
    with torch.no_grad():
        by_hand = model.module(torch.from_numpy(arrays["x"][:3])).argmax(1)
    assert predicted["prediction"].tolist() == [str(int(k)) for k in by_hand]


def test_trials_look_up_existing_ids_only():
    two = nn.ModuleList([nn.Embedding(9, 2), nn.EmbeddingBag(5, 2)])
    assert (ids_below(two), ids_below(nn.Linear(2, 2))) == (5, 2)
    for x in trial_examples((40,), kind=Kind(5)):
        assert x.dtype == torch.int64
        assert (int(x.min()), int(x.max())) == (0, 4)


class Mixed(nn.Module):
    """A column of ids among columns of numbers, all of them floats."""

    def __init__(self, outputs):
        super().__init__()
        self.table, self.head = nn.Embedding(4, 3), nn.Linear(5, outputs)

    def forward(self, x):
        return self.head(torch.cat([self.table(x[:, 0].long()), x[:, 1:]], 1))


def test_ids_among_numbers():
    """Made-up negative ids broke this with a traceback."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(0, 4, 60), rng.normal(size=(60, 2))]).astype(np.float32)
    data = ct.load({"x": x, "y": np.arange(60) % 2, "silo": np.arange(60) % 3}, name="mixed")
    made = experiment(data, FedAvg(), task=make_task(Mixed, shape=(3,), classes=2))
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)
    x[3, 0] = 4
    data = ct.load({"x": x, "y": np.arange(60) % 2, "silo": np.arange(60) % 3}, name="mixed")
    with refused(
        "silo 'silo-0' has an id without a row in a table of the model (which have 'table': 4 rows)"
    ):
        experiment(data, FedAvg(), task=make_task(Mixed, shape=(3,), classes=2))


def test_what_is_wrong_with_ids_is_said():
    arrays = sentences()
    wrong = arrays["x"].copy()
    wrong[7, 2] = -1
    with refused("data.features: 'ids' needs whole numbers from 0 to 16777215, got -1 in row 8"):
        federation(x=wrong)
    with refused("'ids' stay as they are: leave out data.feature_range"):
        ct.load(arrays, name="words", features="ids", feature_range=(0, 1))
    with refused("if examples are ids, set data.features = 'ids'"):
        ct.run(ct.load(arrays, name="words"), "fedavg", model=Words, privacy=ONE)
    with refused("examples are ids, because of data.features = 'ids'"):
        ct.run(federation(), "fedavg", model="linear", privacy=ONE)
    for key, value, said in (
        ("max_norm", 1.0, "changes its table in forward"),
        ("scale_grad_by_freq", True, "counts the ids of a whole batch"),
        ("sparse", True, "makes sparse gradients"),
    ):
        table = nn.Sequential(nn.Embedding(WORDS, 1, **{key: value}), nn.Flatten(), nn.Linear(LENGTH, 2))
        with refused(said):
            _ = Task(lambda table=table: table, "cross-entropy", (LENGTH,), 2, ids=True).module


class TwoTables(nn.Module):
    """Tables of different sizes for different columns."""

    def __init__(self, outputs):
        super().__init__()
        self.ward, self.word = nn.Embedding(4, 3), nn.Embedding(WORDS, 3)
        self.head = nn.Linear(3, outputs)

    def forward(self, x):
        return self.head(self.ward(x[:, 0]) + self.word(x[:, 1:]).sum(1))


def test_an_id_without_a_row_is_named_before_training():
    arrays = sentences()
    arrays["x"][0, 1], arrays["x"][1, 0] = WORDS, WORDS + 7
    with pytest.raises(ct.Problem) as caught:
        ct.run(federation(x=arrays["x"]), "fedavg", model=Words, privacy=ONE)
    assert "silo 'silo-0' has the id 12 among its" in str(caught.value)
    assert "silo 'silo-1' has the id 19 among its" in str(caught.value)
    assert "'table', the largest table of the model, has rows for the ids 0 to 11" in str(caught.value)
    arrays = sentences()
    arrays["x"][:, 0] %= 4
    ct.run(federation(x=arrays["x"]), "fedavg", model=TwoTables, privacy=ONE, rounds=1)
    arrays["x"][9, 0] = 4
    with refused(
        "'silo-0' has an id without a row in a table of the model (which have 'ward': 4, 'word': 12"
    ):
        ct.run(federation(x=arrays["x"]), "fedavg", model=TwoTables, privacy=ONE, rounds=1)


class Functional(nn.Module):
    """Looks ids up by a function, which under vmap reads beyond the table of its own model."""

    def __init__(self, outputs):
        super().__init__()
        self.words = nn.Parameter(torch.randn(WORDS, outputs))

    def forward(self, x):
        return nn.functional.embedding(x, self.words).mean(1)


@pytest.mark.parametrize("kind", [Words, Functional], ids=["layer", "function"])
def test_an_id_without_a_row_moves_no_other_example(kind):
    """torch's own function lets it read from, and count for, another model's table."""
    task = make_task(kind, shape=(LENGTH,), classes=2, ids=True)
    tables = task.layout.unflatten(
        torch.randn(2, task.layout.size, generator=torch.Generator().manual_seed(0))
    )
    x, y = torch.zeros(2, 4, LENGTH, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)
    weight = torch.eye(4).unsqueeze(1).expand(4, 2, 4)

    def sums(x):
        return [recorder(task)(tables, x, y).weighted_sums(each) for each in weight]

    before, name = sums(x), task.layout.names[0]
    for wrong in (-1, WORDS, 3 * WORDS):
        other = x.clone()
        other[1, 1, 2] = wrong
        for place, (old, new) in enumerate(zip(before, sums(other), strict=True)):
            changed = [row for row in range(2) if not torch.equal(old[name][row], new[name][row])]
            assert changed == ([1] if place == 1 else [])


def test_deployments_refuse_ids():
    content = {"data": {"features": "ids"}, "privacy": {"epsilon": 1.0}, "method": [{"name": "fedavg"}]}
    with refused("data.features: a deployment trains on numbers, not on 'ids'"):
        check_used(check(content))


def test_ids_of_new_rows_and_of_tensors_are_checked():
    data = federation()
    result = ct.run(data, "fedavg", ONE, model=Words, rounds=1)
    rows = sentences()["x"][:3]
    rows[1, 1] = WORDS
    with refused("rows: an id has no row in a table of the model of 'silo-0'"):
        result.predict("silo-0", rows)
    wrong = data.silos[0].x.clone()
    wrong[2, 2] = -3
    data = replace(data, silos=(replace(data.silos[0], x=wrong), *data.silos[1:]))
    with refused("silo 'silo-0' has the id -3 among its training examples; ids are whole numbers from 0 on"):
        ct.run(data, "fedavg", ONE, model=Words, rounds=1)


def test_of_many_silos_with_such_ids_a_few_are_named():
    silos = ct.load({"x": np.full((80, 2), 9), "y": np.arange(80) % 2}, features="ids", silos=8, name="t")
    model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ct.Problem) as caught:
        ct.run(silos, "local", ct.Privacy(epsilon=8, delta=1e-3), model=model, rounds=1)
    *named, last = str(caught.value).splitlines()
    assert len(named) == 6
    assert all("has the id 9 among its" in line for line in named)
    assert last == "data: 10 more parts of silos have such ids"
