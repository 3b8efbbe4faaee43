"""Models are saved whole: what is not trained, too; and used on new rows."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import coterie
from coterie.cohort.imitation import imitating
from coterie.data.sources.catalogue import find_table
from coterie.errors import Problem
from coterie.experiment.config.schema import check as check_config
from coterie.experiment.saved_models import HOLDS_STATISTICS, personal_model, save_model
from coterie.experiment.study import Study
from coterie.methods import Local
from coterie.tasks.layout import tensors_of, tied_names
from coterie.tasks.task import Task, make_task
from tests import frozen_modules
from tests.frozen_modules import MODULES, FrozenProjection, HiddenNumbers, NumpyFrozen, SharedMemory, Tied
from tests.helpers import call, experiment, refused


def task_of(name: str) -> Task:
    return make_task(MODULES[name], shape=(8, 8), classes=10)


def vector_of(task: Task) -> torch.Tensor:
    return torch.randn(task.layout.size, generator=torch.Generator().manual_seed(3)) / 4


X = torch.rand(50, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_the_frozen_parts_it_was_trained_with(name):
    task, vector = task_of(name), vector_of(task_of(name))
    trained = task.predict(task.layout.unflatten(vector), X)
    module = task.to_module(vector)
    torch.testing.assert_close(module(X), trained, rtol=0, atol=0)
    torch.manual_seed(99)
    torch.testing.assert_close(task.to_module(vector)(X), trained, rtol=0, atol=0)
    assert {k: v.requires_grad for k, v in tensors_of(module).items()} == {
        k: v.requires_grad for k, v in tensors_of(task.module).items()
    }
    with torch.no_grad():
        for tensor in tensors_of(module).values():
            tensor.zero_()
    torch.testing.assert_close(task.to_module(vector)(X), trained, rtol=0, atol=0)


def test_frozen_parts_are_the_same_in_every_process():
    """A resumed or repeated training continues with the frozen numbers that it began with."""
    code = """
import torch
from coterie.methods import Local
from coterie.tasks.layout import tensors_of
from coterie.tasks.task import make_task
from tests.frozen_modules import MODULES
torch.rand(7)
for module in MODULES.values():
    for tensor in tensors_of(make_task(module, shape=(8, 8), classes=10).module).values():
        print(tensor.detach().contiguous().numpy().tobytes().hex())
"""
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    tensors = [tensor for name in MODULES for tensor in tensors_of(task_of(name).module).values()]
    assert other.stdout.split() == [t.detach().contiguous().numpy().tobytes().hex() for t in tensors], (
        other.stderr
    )


def test_the_frozen_parts_of_all_tasks_of_a_module_agree():
    first, second = (make_task(FrozenProjection, shape=(8, 8), classes=10) for _ in range(2))
    assert torch.equal(first.module.project.weight, second.module.project.weight)
    assert imitating(first).module is first.module


def test_seeds_reach_what_is_trained_and_nothing_else():
    task = task_of("frozen")
    before = task.module.project.weight.clone()
    assert not torch.equal(task.initial(1), task.initial(2))
    assert torch.equal(task.module.project.weight, before)


def test_a_training_resumes_with_its_own_frozen_parts_only(federation):
    """Here they come from a file that changed in between."""
    numbers = [torch.zeros(3), torch.ones(3)]

    class Shifted(nn.Module):
        def __init__(self, outputs, file):
            super().__init__()
            self.register_buffer("shift", numbers[file].clone(), persistent=False)
            self.last = nn.Linear(3, outputs)

        def forward(self, x):
            return self.last(x + self.shift)

    tasks = [make_task(Shifted, shape=(3,), classes=0, options={"file": file}) for file in (0, 0, 1)]
    assert tasks[0].frozen_digest == tasks[1].frozen_digest != tasks[2].frozen_digest
    config = check_config({"privacy": {"epsilon": 4}, "method": [{"name": "local"}]}, "made")
    keys = [Study(config, (experiment(federation, Local(), task=task),)).key([0]) for task in tasks]
    assert keys[0] == keys[1] != keys[2]
    assert make_task("linear", shape=(3,), classes=0).frozen_digest == ""


def test_frozen_parts_that_no_seed_reaches_are_refused():
    with pytest.raises(Problem, match=r"'project\.weight' is not trained and differs each time the module"):
        _ = make_task(NumpyFrozen, shape=(8, 8), classes=10).module


class Sparse(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.last = nn.Linear(4, outputs)
        self.register_buffer("links", torch.eye(4).to_sparse())

    def forward(self, x):
        return self.last(x)


def test_what_cannot_be_saved_is_refused_before_training():
    with pytest.raises(Problem, match="'links' cannot be saved: use a plain dense tensor"):
        _ = make_task(Sparse, shape=(4,), classes=3).module


def test_tied_tensors_are_found_under_all_their_names():
    assert tied_names(Tied()) == {"decode.weight": "encode.weight", "far.weight": "near.weight"}
    assert tied_names(SharedMemory()) == {}
    module = task_of("tied").to_module(vector_of(task_of("tied")))
    assert module.decode.weight is module.encode.weight
    assert module.far.weight is module.near.weight
    assert not module.near.weight.requires_grad


def network(outputs, width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, outputs))


def test_a_model_is_a_name_a_function_a_class_or_a_module():
    def size(model, **options):
        return make_task(model, shape=(8, 8), classes=10, options=options).layout.size

    assert size("linear") == 650
    assert size(network, width=3) == size("tests.test_saved_models:network", width=3) == 3 * 65 + 40
    assert size(FrozenProjection, width=3) == 40
    assert size(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))) == 650
    with pytest.raises(
        Problem, match=r"model must be a name, a function, a class or a torch\.nn\.Module, got 3"
    ):
        size(3)
    with pytest.raises(Problem, match=r"model\.width: 'tests\.frozen_modules:Tied' has no such setting"):
        size(Tied, width=3)
    with pytest.raises(Problem, match="a module is made already; give its class"):
        size(nn.Linear(64, 10), width=3)


def test_a_module_that_is_given_is_where_training_starts():
    given = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    start = given[1].weight.detach().clone()
    task = make_task(given, shape=(8, 8), classes=10)
    with torch.no_grad():
        given[1].weight.zero_()
    for seed in range(2):
        assert torch.equal(task.layout.unflatten(task.initial(seed))["1.weight"], start)


def saved(tmp_path, task: Task, name: str = "m.safetensors", preparation=None, silo: str = "north"):
    path = tmp_path / name
    save_model(path, task, vector_of(task), preparation, silo, "ditto lam=0.2")
    return path


@pytest.mark.parametrize("name", MODULES)
def test_a_model_comes_back_whole(tmp_path, name):
    task = task_of(name)
    path = saved(tmp_path, task)
    expected = task.to_module(vector_of(task))(X)
    kind = MODULES[name]
    for module in (kind, kind(), f"tests.frozen_modules:{kind.__name__}", lambda outputs: kind(outputs)):
        model = coterie.load_model(path, module)
        assert torch.equal(model(X), expected)
        assert (model.silo, model.method, model.loss) == ("north", "ditto lam=0.2", "cross-entropy")
        assert tied_names(model.module) == task.tied


def dropping(outputs, layer):
    layers = {
        "Dropout": lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, outputs)),
        "attention": lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 8, dropout=0.5, batch_first=True),
            nn.Flatten(),
            nn.Linear(64, outputs),
        ),
    }
    return layers[layer]()


@pytest.mark.parametrize("layer", ["Dropout", "attention"])
def test_a_model_with_dropout_comes_back_and_predicts_without_it(tmp_path, layer):
    task = make_task(dropping, shape=(8, 8), classes=10, options={"layer": layer})
    path = saved(tmp_path, task)
    expected = task.to_module(vector_of(task))(X)
    for given, options in ((dropping, {"layer": layer}), (dropping(10, layer), None)):
        model = coterie.load_model(path, given, options)
        assert not model.module.training
        assert torch.equal(model(X), expected)
        assert torch.equal(model(X), model(X))


def test_a_model_is_the_same_in_another_process(tmp_path):
    expected = []
    for name in MODULES:
        task = task_of(name)
        saved(tmp_path, task, name)
        expected.append(task.to_module(vector_of(task))(X).detach().numpy().tobytes().hex())
    code = f"""
import torch, coterie
from tests.frozen_modules import MODULES
torch.rand(5)
x = torch.rand(50, 8, 8, generator=torch.Generator().manual_seed(1))
for name, module in MODULES.items():
    model = coterie.load_model({str(tmp_path)!r} + "/" + name, "tests.frozen_modules:" + module.__name__)
    print(model(x).detach().numpy().tobytes().hex())
"""
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert other.stdout.split() == expected, other.stderr


def test_a_module_that_is_given_stays_as_it_was(tmp_path):
    module = FrozenProjection()
    before = {name: tensor.clone() for name, tensor in tensors_of(module).items()}
    coterie.load_model(saved(tmp_path, task_of("frozen")), module)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors_of(module).items())


@pytest.mark.parametrize("name", MODULES)
def test_the_recorded_score_is_that_of_the_loaded_model(tmp_path, name):
    federation = coterie.load("digits", silos=3)
    task = make_task(MODULES[name], shape=(8, 8), classes=10)
    privacy = coterie.Privacy(epsilon=float("inf"))
    result = coterie.run(federation, coterie.MRMTL(lam=0.1), privacy, model=task, rounds=4, lr=0.5)
    silo = federation.silos[1]
    recorded = result.runs[0].silos[silo.name].score
    assert recorded > 0.25
    result.save_model(silo.name, tmp_path / "m.safetensors")
    for model in (result.model(silo.name), coterie.load_model(tmp_path / "m.safetensors", MODULES[name])):
        right = (model(silo.test_x).argmax(1) == silo.test_y).double().mean()
        assert float(right) == recorded
    kind = result.predict(silo.name, silo.test_x.numpy()).prediction
    assert float((kind == [federation.classes[k] for k in silo.test_y]).mean()) == recorded


def test_a_file_holds_every_tensor_once_and_says_what_it_is(tmp_path):
    task = make_task(Tied, shape=(8, 8), classes=10)
    path = saved(tmp_path, task)
    with safe_open(str(path), "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = json.loads(file.metadata()["coterie"])
    assert set(tensors) == {
        "encode.weight", "encode.bias", "decode.bias", "near.weight", "last.weight", "last.bias",
    }  # fmt: skip
    for name, value in task.layout.unflatten(vector_of(task)).items():
        assert torch.equal(tensors[name], value)
    assert torch.equal(tensors["near.weight"], task.module.near.weight)
    assert [len(probe["outputs"]) for probe in record.pop("probes")] == [3, 3, 3]
    assert record == {
        "schema": "coterie-model/1",
        "silo": "north",
        "method": "ditto lam=0.2",
        "task": "classification",
        "loss": "cross-entropy",
        "classes": [str(k) for k in range(10)],
        "shape": [8, 8],
        "model": {"built_in": None, "name": "tests.frozen_modules:Tied", "settings": {}, "left_out": []},
        "trained": list(task.layout.names),
        "tied": {"decode.weight": "encode.weight", "far.weight": "near.weight"},
        "preparation": None,
        "notes": [],
    }
    assert (
        path.read_bytes() == saved(tmp_path, make_task(Tied, shape=(8, 8), classes=10), "again").read_bytes()
    )


def test_built_in_models_need_the_file_only(tmp_path):
    for name, options in (
        ("linear", {"bias": False}),
        ("mlp", {"hidden": 7, "layers": 2}),
        ("cnn", {"channels": 3}),
    ):
        task = make_task(name, shape=(8, 8), classes=10, options=options)
        model = coterie.load_model(saved(tmp_path, task))
        assert torch.equal(model(X), task.to_module(vector_of(task))(X))


def test_a_tied_weight_fits_a_module_that_unties_it(tmp_path):
    class Untied(Tied):
        def __init__(self, outputs):
            super().__init__(outputs)
            self.decode.weight = nn.Parameter(torch.zeros(64, 64))

    task = task_of("tied")
    model = coterie.load_model(saved(tmp_path, task), Untied)
    assert torch.equal(model(X), task.to_module(vector_of(task))(X))
    untied = make_task(Untied, shape=(8, 8), classes=10)
    with refused("does not fit the module: the module lacks 'decode.weight'"):
        coterie.load_model(saved(tmp_path, untied), Tied)


def test_settings_of_a_factory_come_back(tmp_path):
    task = make_task(network, shape=(8, 8), classes=10, options={"width": 5})
    path = saved(tmp_path, task)
    for given in ({"options": {"width": 5}}, {"module": functools.partial(network, width=5)}):
        model = coterie.load_model(path, **{"module": network, **given})
        assert torch.equal(model(X), task.to_module(vector_of(task))(X))
    task = make_task(frozen_modules.network, shape=(8, 8), classes=10, options={"activation": nn.ReLU()})
    path = saved(tmp_path, task)
    with refused("was trained with another 'activation' than the module has: give it as options={"):
        coterie.load_model(path, frozen_modules.network)
    with refused("names and shapes agree, but the module computes something other"):
        coterie.load_model(path, frozen_modules.network, {"activation": nn.Tanh()})
    given = functools.partial(frozen_modules.network, activation=nn.ReLU())
    assert torch.equal(coterie.load_model(path, given)(X), task.to_module(vector_of(task))(X))


def test_numbers_that_no_state_holds_are_noticed(tmp_path):
    """They come back where the factory draws them by torch, and are missed where another instance is given."""
    task = make_task(HiddenNumbers, shape=(8, 8), classes=10)
    path = saved(tmp_path, task)
    torch.rand(3)
    assert torch.equal(coterie.load_model(path, HiddenNumbers)(X), task.to_module(vector_of(task))(X))
    with refused("computes something other than the one that was trained"):
        coterie.load_model(path, HiddenNumbers())


def with_record(path, change):
    """Write the file again with another record."""
    with safe_open(str(path), "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = json.loads(file.metadata()["coterie"])
    record = change(record)
    save_file(tensors, str(path), None if record is None else {"coterie": json.dumps(record)})
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: {**r, "schema": "coterie-model/2"}, "has the format 'coterie-model/2', but this version reads 'coterie-model/1' only"),
        (lambda _: None, "is not a model that Coterie saved: it has no record"),
        (lambda _: ["no"], "is not a model that Coterie saved"),
        (lambda r: {**r, "model": {**r["model"], "built_in": "os:system"}}, "needs the built-in model 'os:system', which this version does not have"),
        (lambda r: {**r, "model": {**r["model"], "built_in": ["mlp"]}}, "is damaged: TypeError"),
        (lambda r: {**r, "model": {**r["model"], "settings": {"hidden": "x"}}}, "needs whole numbers hidden"),
        (lambda r: {**r, "model": {**r["model"], "settings": {"wide": 3}}}, "model.wide: 'mlp' has no such setting"),
        (lambda r: {**r, "model": {**r["model"], "settings": {"hidden": 3}}}, "'1.weight' is (64, 64) torch.float32 in the file and (3, 64) torch.float32"),
        (lambda r: {**r, "loss": "cross"}, "unknown loss 'cross'"),
        (lambda r: {k: v for k, v in r.items() if k != "shape"}, "is damaged: KeyError: 'shape'"),
        (lambda r: {**r, "probes": 3}, "is damaged: TypeError"),
        (lambda r: {**r, "probes": [None, *r["probes"][1:]]}, "computes something other"),
        (lambda r: {**r, "probes": [*r["probes"][:2], {"outputs": [[0.0] * 10] * 3, "tolerance": 0.1}]}, "computes something other"),
        (lambda r: {**r, "preparation": {"shape": 3}}, "is damaged: KeyError"),
        (lambda r: {**r, "preparation": {**r["preparation"], "features": "eval"}}, "is damaged: ValueError: features: unknown choice 'eval'"),
        (lambda r: {**r, "preparation": {**r["preparation"], "shape": [3]}}, "is damaged: ValueError: the preparation makes examples of a different shape"),
        (lambda r: {**r, "preparation": {**r["preparation"], "classes": []}}, "is damaged: ValueError: the classes of the preparation"),
        (lambda r: {**r, "preparation": {**r["preparation"], "features": "standardize"}}, "is damaged: ValueError: there are no statistics"),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path, change, words):
    federation = coterie.load("digits", silos=2)
    task = make_task("mlp", shape=(8, 8), classes=10)
    path = saved(tmp_path, task, preparation=federation.preparation, silo="silo-1")
    assert coterie.load_model(path).silo == "silo-1"
    with refused(words):
        coterie.load_model(with_record(path, change))


def test_other_things_that_are_refused(tmp_path):
    with refused("cannot read the model 'nowhere': no such file or directory"):
        coterie.load_model("nowhere")
    (tmp_path / "bad").write_text("no")
    with refused("cannot read the model"):
        coterie.load_model(tmp_path / "bad")
    path = saved(tmp_path, task_of("frozen"))
    with refused("holds a user's module, 'tests.frozen_modules:FrozenProjection': give it as module="):
        coterie.load_model(path)
    with refused("module must be 'package.module:function', got 'mlp'"):
        coterie.load_model(path, "mlp")
    with refused("cannot import 'tests.frozen_modules:Nothing'"):
        coterie.load_model(path, "tests.frozen_modules:Nothing")
    with refused("model must be a name, a function, a class or a torch.nn.Module, got 3"):
        coterie.load_model(path, 3)
    with refused("does not fit the module: the file lacks 'encode.weight', 'encode.bias', 'decode.bias'"):
        coterie.load_model(path, Tied)


def test_a_model_that_diverged_is_saved_and_predicts_nothing(tmp_path):
    federation = coterie.load("digits", silos=2)
    task = make_task("linear", shape=(8, 8), classes=10)
    save_model(
        tmp_path / "m", task, torch.full((650,), float("nan")), federation.preparation, "silo-0", "local"
    )
    model = coterie.load_model(tmp_path / "m")
    with refused("the model of 'silo-0' gives numbers that are not finite: it diverged"):
        model.predict(X.numpy())


def test_only_the_silo_s_own_statistics_are_saved_and_the_file_says_so(tmp_path):
    federation = coterie.load("digits", silos=3, features="standardize")
    task = make_task("linear", shape=(8, 8), classes=10)
    path = saved(tmp_path, task, preparation=federation.preparation, silo="silo-1")
    with safe_open(str(path), "pt") as file:
        record = json.loads(file.metadata()["coterie"])
    assert list(record["preparation"]["silos"]) == ["silo-1"]
    assert record["notes"] == [HOLDS_STATISTICS]
    assert record["preparation"]["not_covered"] == list(federation.not_covered)
    raw = find_table("digits").x[:20]
    same = federation.preparation.prepare(raw, "silo-1")
    assert torch.equal(coterie.load_model(path).preparation.prepare(raw, "silo-1"), same)


def test_without_a_preparation_prepared_examples_still_work(tmp_path):
    model = coterie.load_model(saved(tmp_path, make_task("linear", shape=(8, 8), classes=10)))
    assert model(X).shape == (50, 10)
    with refused("this federation was made of tensors: prepare the rows yourself and call the model"):
        model.predict(X.numpy())


CLINICS = {"silo_column": "clinic", "target_column": "ill"}


@pytest.fixture
def clinics(tmp_path) -> pd.DataFrame:
    generator = np.random.default_rng(4)
    frame = pd.DataFrame(
        {
            "clinic": generator.choice(["a", "b"], 80),
            "age": generator.integers(18, 90, 80),
            "sex": generator.choice(["f", "m"], 80),
            "stay": generator.normal(20, 5, 80),
        }
    )
    frame["ill"] = np.where(frame.age > 54, "yes", "no")
    frame.to_csv(tmp_path / "clinics.csv", index=False)
    return frame


@pytest.mark.parametrize("loss", ["cross-entropy", "logistic", "hinge", "squared-hinge", "one-against-rest"])
def test_predicted_classes(tmp_path, clinics, loss):
    ranges = {"age": (18, 90)}
    federation = coterie.load(str(tmp_path / "clinics.csv"), drop=["stay"], feature_range=ranges, **CLINICS)
    privacy = coterie.Privacy(epsilon=float("inf"))
    result = coterie.run(federation, coterie.Local(), privacy, loss=loss, rounds=20, lr=1.0)
    result.save_model("b", tmp_path / "m.safetensors")
    rows = clinics[["sex", "age"]].sample(30, random_state=1)
    predictions = result.predict("b", rows)
    kind = "probability" if loss in ("cross-entropy", "logistic") else "score"
    assert list(predictions.columns) == ["prediction", f"{kind} of no", f"{kind} of yes"]
    assert list(predictions.index) == list(rows.index)
    scores = predictions.drop(columns="prediction").to_numpy()
    assert len(set(predictions.prediction)) == 2
    assert [("no", "yes")[k] for k in scores.argmax(1)] == list(predictions.prediction)
    if kind == "probability":
        assert scores.sum(1) == pytest.approx(1)
    pd.testing.assert_frame_equal(coterie.load_model(tmp_path / "m.safetensors").predict(rows), predictions)


def test_predicted_numbers_are_on_the_scale_of_the_target(tmp_path, clinics):
    path = str(tmp_path / "clinics.csv")
    columns = {"silo_column": "clinic", "target_column": "stay", "drop": ["ill"]}
    federation = coterie.load(path, feature_range={"age": (18, 90)}, target_range=(0, 50), **columns)
    result = coterie.run(
        federation, coterie.FedAvg(), coterie.Privacy(epsilon=float("inf")), rounds=30, lr=0.5
    )
    predictions = result.predict("a", path)
    assert list(predictions.columns) == ["prediction"]
    assert predictions.prediction.mean() == pytest.approx(clinics.stay.mean(), abs=2)
    silo = federation.silos[federation.names.index("a")]
    error = (result.model("a")(silo.test_x).squeeze(1) - silo.test_y).square().mean()
    assert error.item() == pytest.approx(result.runs[0].silos["a"].score, rel=1e-5)
    plain = coterie.load(path, feature_range={"age": (18, 90)}, **columns)
    task = make_task("linear", shape=plain.shape, classes=0)
    model = personal_model(task, vector_of(task), plain.preparation, "a", "local")
    prepared = plain.preparation.inputs(path, "a")
    assert model.predict(path).prediction.tolist() == model(prepared).squeeze(1).double().tolist()


def test_many_rows_go_in_parts(monkeypatch):
    federation = coterie.load("digits", silos=2)
    task = make_task("linear", shape=(8, 8), classes=10)
    model = personal_model(task, vector_of(task), federation.preparation, "silo-0", "local")
    raw = find_table("digits").x[:100]
    whole = model.predict(raw)
    monkeypatch.setattr("coterie.experiment.saved_models.CHUNK", 7)
    assert list(model.predict(raw).prediction) == list(whole.prediction)


def test_the_command_predicts(tmp_path, clinics, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    federation = coterie.load("clinics.csv", drop=["stay"], **CLINICS)
    result = coterie.run(federation, coterie.Local(), coterie.Privacy(epsilon=4, delta=1e-3), rounds=2)
    result.save_model("a", "a.safetensors")
    expected = result.predict("a", "clinics.csv")
    code, out, _ = call(monkeypatch, capsys, "predict", "a.safetensors", "clinics.csv")
    assert code == 0
    assert out == expected.to_csv(index=False)
    code, out, err = call(monkeypatch, capsys, "predict", "a.safetensors", "clinics.csv", "--out", "p.csv")
    assert (code, out) == (0, "")
    assert "Wrote 80 prediction(s) to p.csv." in err
    assert Path("p.csv").read_text() == expected.to_csv(index=False)
    code, out, _ = call(monkeypatch, capsys, "predict", "a.safetensors", "clinics.csv", "--json")
    content = json.loads(out)
    assert (content["silo"], content["method"]) == ("a", "local")
    assert [row["prediction"] for row in content["predictions"]] == list(expected.prediction)
    assert list(content["predictions"][0]) == list(expected.columns)
    clinics.assign(age="old", sex="d", more=1).to_csv("new.csv")
    code, out, err = call(monkeypatch, capsys, "predict", "a.safetensors", "new.csv")
    assert (code, out) == (2, "")
    assert err == (
        "coterie: rows: unknown column(s): 'Unnamed: 0', 'more'; remove what is no feature; column 'age' must"
        " hold numbers, got 'old' in row 1 (and 79 more); column 'sex' has the unknown value 'd' in row 1 (and"
        " 79 more); known: 'f', 'm'\n"
    )
    code, _, err = call(monkeypatch, capsys, "predict", "a.safetensors", "clinics.csv", "--out", "no/p.csv")
    assert code == 2
    assert "out: cannot write 'no/p.csv'" in err


def test_the_command_takes_a_module_from_the_current_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my_net.py").write_text(
        "from torch import nn\n\ndef net(outputs, width=6):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, outputs))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    federation = coterie.load("digits", silos=2)
    task = make_task("my_net:net", shape=(8, 8), classes=10, options={"width": 3})
    path = saved(tmp_path, task, preparation=federation.preparation, silo="silo-0")
    raw = find_table("digits").x[:9].reshape(9, 64)
    pd.DataFrame(raw).to_csv("digits.csv", index=False)
    command = [sys.executable, "-m", "coterie.cli.main", "predict", str(path), "digits.csv"]
    environment = os.environ | {"PYTHONPATH": str(Path(coterie.__file__).parents[1])}
    done = subprocess.run(
        [*command, "--module", "my_net:net", "--option", "width=3"],
        capture_output=True,
        text=True,
        env=environment,
    )
    expected = personal_model(task, vector_of(task), federation.preparation, "silo-0", "local").predict(raw)
    assert done.stdout == expected.to_csv(index=False), done.stderr
    code, _, err = call(monkeypatch, capsys, "predict", path, "digits.csv")
    assert code == 2
    assert "holds a user's module, 'my_net:net': give it as module= in Python, or as --module" in err
