"""Python as people expect it: load, plan, run, look, save; and one sentence for what is wrong."""

from __future__ import annotations

import io
import json
import math
import pickle
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import nn

import coterie as ct
from coterie.cli.run import say_stopped
from coterie.data.federation import Federation, Silo
from coterie.engines.start import SeededStart
from coterie.experiment.run import Stopped
from coterie.planning.schedule import Participation
from coterie.privacy.ledger.filters import Spent
from coterie.report.folder import Folder
from tests.helpers import call, refused

PRIVACY = ct.Privacy(epsilon=4, delta=1e-3)


class Net(nn.Module):
    """A user's own module."""

    def __init__(self, input_shape, outputs, hidden=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(input_shape[0], hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    def forward(self, x):
        return self.layers(x)


def make_net(input_shape, outputs):
    return Net(input_shape, outputs)


def frame(rows: int = 120) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    age, dose = generator.normal(size=(2, rows))
    outcome = np.where(age + 0.3 * dose > 0, "well", "ill")
    clinic = np.array(["north", "south", "east"])[np.arange(rows) % 3]
    return pd.DataFrame({"age": age, "dose": dose, "clinic": clinic, "outcome": outcome})


@pytest.fixture
def clinics(tmp_path, monkeypatch) -> Federation:
    """A federation from a file, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    frame().to_csv("clinics.csv", index=False)
    return ct.load("clinics.csv", silo_column="clinic", target_column="outcome")


@pytest.mark.parametrize("kind", ["file", "frame", "columns"])
@pytest.mark.parametrize("model", ["linear", Net], ids=["linear", "own"])
def test_the_block_of_the_documentation(tmp_path, monkeypatch, kind, model):
    monkeypatch.chdir(tmp_path)
    data = frame()
    data.to_csv("clinics.csv", index=False)
    named = {} if kind == "file" else {"name": "clinics"}
    source = {"file": "clinics.csv", "frame": data, "columns": dict(data)}[kind]
    fed = ct.load(source, silo_column="clinic", target_column="outcome", **named)
    plan = ct.plan(fed, ct.methods.Ditto(lam=0.2), ct.Privacy(epsilon=4, delta=1e-3), rounds=4, model=model)
    result = ct.run(plan, ledger="ledgers", out="study")
    assert list(result.to_frame()["silo"]) == ["north", "south", "east"]
    assert {"score", "epsilon", "lam"} <= set(result.to_frame())
    assert set(result.history()["round"]) == {0, 1, 2, 3, 4}
    assert result.history()["loss"].isna().all()  # privacy forbids it
    assert isinstance(result.plot(), Figure)
    assert result.statement("north")["guarantee"]["epsilon"] <= 4
    before = sorted(Path("study").rglob("*"))
    result.save("study")  # it is there already
    assert sorted(Path("study").rglob("*")) == before
    x = fed.silos[0].test_x
    assert result.model("north")(x).shape == (len(x), 2)
    new_rows = data[["age", "dose"]][:5]
    assert set(result.predict("north", new_rows)["prediction"]) <= {"well", "ill"}
    checked = ct.verify("study/statements/ditto-lam-0.2/north.json", ledger="ledgers")
    assert (checked.silo, checked.in_ledger) == ("north", True)
    assert checked.content == result.statement("north")
    with pytest.raises(Spent):
        ct.run(plan, ledger="ledgers")
    ct.testing.check_method(ct.methods.Ditto(lam=0.2))


def test_all_sources_give_the_same_silos_and_ledgers(clinics):
    data = frame()
    arrays = {"x": data[["age", "dose"]].to_numpy(), "y": data["outcome"].to_numpy(), "silo": data["clinic"]}
    columns = {"silo_column": "clinic", "target_column": "outcome", "name": "clinics"}
    others = [ct.load(data, **columns), ct.load(dict(data), **columns), ct.load(arrays, name="clinics")]
    for other in others:
        assert other.identities == clinics.identities
        assert other.classes == clinics.classes
        for one, same in zip(clinics.silos, other.silos, strict=True):
            assert torch.allclose(one.x, same.x)
            assert torch.equal(one.test_y, same.test_y)
    assert clinics.pick(["east", "north"]).identities == (clinics.identities[2], clinics.identities[0])


def test_command_and_python_train_the_same(clinics, monkeypatch, capsys):
    """The same numbers in result.json, the same files, the same statements."""
    Path("study.toml").write_text(
        '[data]\nsource = "clinics.csv"\nsilo_column = "clinic"\ntarget_column = "outcome"\n'
        "[train]\nrounds = 3\nlr = 0.5\nseeds = 2\n[privacy]\nepsilon = 4\ndelta = 0.001\n"
        '[[method]]\nname = "local"\n[[method]]\nname = "mr-mtl"\nlam = [0.1, 1.0]\n'
    )
    assert call(monkeypatch, capsys, "run", "study.toml", "--out", "command")[0] == 0
    methods = ["local", ct.methods.MRMTL(lam=[0.1, 1.0])]
    result = ct.run(clinics, methods, PRIVACY, rounds=3, lr=0.5, seeds=2)
    result.save("python")
    ct.run("study.toml", out="file")
    whole = [json.loads(Path(f"{name}/result.json").read_text()) for name in ("command", "python", "file")]
    for content in whole:
        for row in (*content["runs"], *content["summary"]):
            del row["seconds"]
    assert whole[0] == whole[1] == whole[2]
    names = [sorted(str(p.relative_to(n)) for p in Path(n).rglob("*")) for n in ("command", "python", "file")]
    assert names[0] == names[1] == names[2]
    text = [Path(f"{name}/config.toml").read_text() for name in ("command", "python")]
    assert text[0] == text[1]
    statement = "statements/mr-mtl-lam-0.1/south.json"
    assert Path("command", statement).read_text() == Path("python", statement).read_text()


def test_a_configuration_file_from_python(clinics):
    Path("study.toml").write_text(
        '[data]\nsource = "clinics.csv"\nsilo_column = "clinic"\ntarget_column = "outcome"\n'
        '[privacy]\nepsilon = 4\ndelta = 0.001\n[tuning]\nmean = 2\n[[method]]\nname = "local"\n'
    )
    plan = ct.plan("study.toml", changes=["train.rounds=3", "train.lr=[0.1, 0.5]"])
    assert "of 3 rounds" in repr(plan)
    assert plan.to_frame()["lr"].nunique() == 2
    assert any("a sweep needs more noise" in note for note in plan.notes)
    with refused("use sweep, or remove it"):
        ct.run("study.toml", changes=["train.rounds=3"])
    swept = ct.sweep("study.toml", changes=["train.rounds=2", "train.lr=[0.1, 0.5]"])
    assert swept.tuning["accounted"]
    with refused("rounds: the plan or configuration already sets this"):
        ct.plan("study.toml", rounds=3)
    with refused("changes: only a configuration file can be changed"):
        ct.plan(clinics, "local", PRIVACY, changes=["train.rounds=3"])
    with refused("mean: the plan or configuration already sets this"):
        ct.sweep("study.toml", mean=3)


def test_all_methods_fit_or_none_starts(clinics):
    ct.open_ledgers("ledgers", clinics, epsilon=6, delta=1e-2)
    with pytest.raises(Spent, match="nothing is trained unless all of them fit"):
        ct.run(clinics, ["fedavg", "mr-mtl"], PRIVACY, rounds=2, ledger="ledgers", out="study")
    assert not Path("study").exists()
    assert [report.runs for report in ct.read_ledgers("ledgers")] == [0, 0, 0]
    ct.set_budget("ledgers", 9, 1e-2, reason="a second method", higher=True)
    result = ct.run(clinics, ["fedavg", "mr-mtl"], PRIVACY, rounds=2, ledger="ledgers")
    spent = [report.totals["example"]["server"][0] for report in ct.read_ledgers("ledgers")]
    assert spent == pytest.approx([sum(run.silos["north"].epsilon for run in result.runs)] * 3)
    with refused("there are ledgers already"):
        ct.open_ledgers("ledgers", clinics, epsilon=6, delta=1e-2)
    with refused("federation: expected what load returns, got a str"):
        ct.open_ledgers("ledgers", "clinics.csv", epsilon=6, delta=1e-2)
    with refused("epsilon: expected a number > 0, got -1"):
        ct.open_ledgers("others", clinics, epsilon=-1, delta=1e-2)


def test_an_interrupted_run_is_resumed_with_all_it_had(clinics):
    """What was finished comes back with its models and statements; another frame is not taken for it."""
    methods = ["fedavg", ct.methods.MRMTL(lam=0.5)]
    fed = ct.load(frame(), silo_column="clinic", target_column="outcome", name="clinics")
    whole = ct.run(fed, methods, PRIVACY, rounds=4)

    def stops(method, number, _score):
        if (method, number) == ("mr-mtl", 2):
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match="finished and saved in 'study': fedavg") as stopped:
        ct.run(fed, methods, PRIVACY, rounds=4, out="study", on_round=stops)
    assert stopped.value.finished == ("fedavg",)
    other = ct.load(frame().assign(age=0.0), silo_column="clinic", target_column="outcome", name="clinics")
    with refused("began with other examples"):
        ct.run(other, methods, PRIVACY, rounds=4, out="study")
    result = ct.run(fed, methods, PRIVACY, rounds=4, out="study")
    assert not [p for p in Path("study").iterdir() if p.name.startswith(".")]
    for run in range(2):
        assert torch.equal(result.vectors[run], whole.vectors[run])
        assert result.statement("north", run) == whole.statement("north", run)
        assert result.runs[run].curves == whole.runs[run].curves
    assert result.published.keys() == {"fedavg", "mr-mtl lam=0.5"}


def test_a_study_that_is_finished_is_not_said_to_be_resumable(clinics, monkeypatch):
    """Before, Ctrl-C while the last files were written offered to resume, which was then refused."""
    saved = Folder.save

    def interrupted(self, result, complete):
        saved(self, result, complete)
        if complete:
            signal.raise_signal(signal.SIGINT)  # held until all is written

    monkeypatch.setattr(Folder, "save", interrupted)
    with pytest.raises(Stopped, match="after all was finished and saved in 'study'") as stopped:
        ct.run(clinics, "fedavg", PRIVACY, rounds=2, out="study")
    assert stopped.value.complete
    said = io.StringIO()
    with pytest.raises(SystemExit, match="130"):
        say_stopped(Console(file=said, width=200), stopped.value)
    assert "All of it was finished before, and is saved in study." in said.getvalue()
    assert "resume" not in said.getvalue()


def test_history_has_losses_where_no_privacy_forbids_it(clinics):
    result = ct.run(clinics, "local", ct.Privacy(epsilon=[4, math.inf], delta=1e-3), rounds=6, lr=0.5)
    history = result.history()
    assert len(history) == 2 * 3 * 7
    private, bare = (history[history["run"] == run] for run in (0, 1))
    assert private["loss"].isna().all()
    own = bare[bare["silo"] == "north"].set_index("round")
    assert own["loss"].iloc[0] == pytest.approx(math.log(2))
    assert own["loss"].iloc[-1] < own["loss"].iloc[0]
    module, silo = result.model("north", run=1), clinics.silos[0]
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module(silo.x), silo.y)
    assert own["loss"].iloc[-1] == pytest.approx(float(loss), rel=1e-5)
    assert own["score"].iloc[-1] == result.runs[1].silos["north"].score
    assert "epsilon (setting)" in history or "epsilon" in history


@pytest.mark.parametrize(
    "model", ["mlp", Net, make_net, nn.Linear(2, 2)], ids=["name", "class", "function", "module"]
)
def test_a_result_survives_pickling_without_examples(clinics, model):
    result = ct.run(clinics, ["local", "mr-mtl"], PRIVACY, rounds=2, model=model)
    content = pickle.dumps(result)
    again = pickle.loads(content)
    assert repr(again) == repr(result)
    assert again.statement("south", 1) == result.statement("south", 1)
    assert again.to_frame().equals(result.to_frame())
    x = clinics.silos[1].test_x
    assert torch.equal(again.model("south", 1)(x), result.model("south", 1)(x))
    again.save("again")
    assert Path("again/models/local/south.safetensors").exists()
    numbers = clinics.silos[0].x.numpy()
    assert numbers[:3].tobytes() not in content  # no examples leave with it


def test_a_module_is_copied_and_its_numbers_are_the_start(clinics):
    module = nn.Linear(2, 2)
    start = module.weight.detach().clone()
    result = ct.run(clinics, ["local", "ditto"], PRIVACY, rounds=1, lr=1e-9, seeds=2, model=module)
    assert torch.equal(module.weight, start)
    for run in range(4):
        assert torch.allclose(result.model("north", run).weight, start, atol=1e-6)


def test_methods_with_several_models_start_from_a_module_moved_a_little(clinics):
    """All clusters would stay the same if each began with the module's numbers exactly."""
    module = nn.Linear(2, 2)
    ifca = ct.methods.IFCA(clusters=2, choosing=0.7)
    experiment = ct.plan(clinics, ifca, PRIVACY, rounds=2, model=module).study.experiments[0]
    start = SeededStart(experiment.task, [0, 1], experiment.roster, 2)
    first, second = (start.initial(index, apart=True) for index in (0, 1))
    assert torch.equal(start.initial(0), start.initial(1))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert torch.allclose(first, second, atol=0.01)


def test_methods_by_object_class_name_and_table(clinics):
    given = ["local", ct.methods.FedAvg, ct.methods.Ditto(lam=0.2), {"name": "fedprox", "mu": [0.1, 1.0]}]
    labels = ["local", "fedavg", "ditto lam=0.2", "fedprox mu=0.1", "fedprox mu=1"]
    plan = ct.plan(clinics, given, PRIVACY, rounds=1)
    assert [experiment_label for e in plan.study.experiments for experiment_label in e.labels] == labels
    chain = ct.methods.Then(first=ct.methods.FedAvg(), second=ct.methods.Tune(), share=0.5)
    table = ct.plan(clinics, chain, PRIVACY, rounds=2).study.config.method
    assert table == [{"name": "tune", "after": {"name": "fedavg", "share": 0.5}}]


def test_lam_auto_works_as_in_a_file(clinics):
    both = ct.plan(clinics, ct.methods.MRMTL(lam=[0.5, "auto"]), PRIVACY, rounds=2)
    tables = ct.plan(clinics, {"name": "mr-mtl", "lam": [0.5, "auto"]}, PRIVACY, rounds=2)
    assert both.to_frame().equals(tables.to_frame())
    alone = ct.run(clinics, ct.methods.MRMTL(lam="auto"), PRIVACY, rounds=3)
    assert alone.runs[0].method == "mr-mtl-auto"
    ct.testing.check_method(ct.methods.MRMTL(lam="auto"))
    with refused("lam must be a number >= 0 or 'auto', got 'much'"):
        ct.methods.MRMTL(lam="much")


@pytest.mark.parametrize(
    "given", [{"poisson": 0.5}, 0.5, {"cohort": 2}, Participation(0.5, "poisson")], ids=repr
)
def test_participation_as_in_a_file(clinics, given):
    plan = ct.plan(clinics, "fedavg", PRIVACY, rounds=8, participation=given)
    assert plan.to_frame()["bytes_up"].nunique() > 1


def test_a_plan_shows_itself(clinics):
    plan = ct.plan(
        clinics, ["local", "ditto"], ct.Privacy(epsilon={"north": 1, "default": 4}, delta=1e-3), rounds=5
    )
    assert repr(plan).startswith("Plan: 3 silos, 2 runs of 5 rounds; nothing is trained yet\n")
    assert "ditto lam=1" in repr(plan)
    assert "<td>local</td>" in plan._repr_html_()
    table = plan.to_frame()
    assert list(table["silo"]) == ["north", "south", "east"] * 2
    assert list(table["run"]) == [0, 0, 0, 1, 1, 1]
    assert list(table["budget"][:3]) == [1, 4, 4]
    assert sum(plan.seconds) > 0
    with pytest.raises(AttributeError):
        plan.plans = ()
    with refused("rounds: the plan or configuration already sets this"):
        ct.run(plan, rounds=3)


def test_a_result_shows_itself(clinics):
    result = ct.run(clinics, ["local", "ditto"], PRIVACY, rounds=2, seeds=2, lr=0.1)
    shown = repr(result)
    assert shown.startswith("Result: 3 silos, 4 runs, test accuracy over all silos (higher is better)\n")
    (last,) = shown.splitlines()[5:]
    assert last.startswith(
        "  In some silos no better than predicting each silo's most frequent class in the first seed: ditto lam=1 ("
    )
    assert f"{result.summary[1]['mean']:.4f}" in shown
    assert "<td>ditto lam=1</td>" in result._repr_html_()
    assert repr(clinics).startswith("Federation('clinics': 3 silos, 96 training and 24 test examples of 2")
    assert repr(PRIVACY) == "Privacy(epsilon=4, delta=0.001)"
    assert repr(clinics.silos[0]) == "Silo('north': 32 training and 8 test examples)"


def test_a_sweep_from_python(clinics):
    asked = {"rounds": 2, "lr": [0.1, 0.5], "mean": 2, "model": Net}
    result = ct.sweep(clinics, "local", PRIVACY, seeds=[3], out="swept", **asked)
    tuning = json.loads(Path("swept/result.json").read_text())["tuning"]
    assert tuning["chosen"] == result.tuning["chosen"]
    if tuning["chosen"] is not None:
        assert result.statement("north", tuning["chosen"])["tuning"]["ran"] == tuning["ran"]
        assert "Chosen from" in repr(result)
        result.save("copy")
        assert json.loads(Path("copy/result.json").read_text())["tuning"] == tuning
    with refused("tuning.trials: expected 'geometric'"):
        ct.sweep(clinics, "local", PRIVACY, trials="some", **asked)
    with refused("a sweep needs a list"):
        ct.sweep(clinics, "local", PRIVACY, rounds=2)
    with refused("a sweep chooses among the settings of one method"):
        ct.sweep(clinics, ["local", "fedavg"], PRIVACY, **asked)


def test_names_are_listed():
    assert {"load", "plan", "run", "sweep", "verify", "open_ledgers", "methods", "testing", "Privacy"} <= set(
        dir(ct)
    )
    assert not [name for name in dir(ct) if name.startswith("_") and name != "__version__"]
    for name in ct.__all__:
        assert getattr(ct, name) is not None
    listed = set(dir(ct.methods))
    assert {kind.__name__ for kind in ct.methods.METHODS.values()} | {"Then", "METHODS"} == listed
    for name in listed - {"METHODS"}:
        assert issubclass(getattr(ct.methods, name), ct.Method)
    assert [entry.name for entry in ct.list_data()] == ["digits"]


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("fedvag", PRIVACY), {}, "unknown method 'fedvag'; did you mean 'fedavg'?"),
        (("tune", PRIVACY), {}, "use Then(first=FedAvg(), second=Tune(), share=0.6)"),
        ((ct.methods.Tune(), PRIVACY), {}, "use Then(first=FedAvg(), second=Tune(), share=0.6)"),
        (({"name": "ditto", "lamb": 1}, PRIVACY), {}, "'ditto' has no such setting (it has: lam)"),
        (({"lam": 1}, PRIVACY), {}, "a table needs the name of a method"),
        ((3, PRIVACY), {}, "expected methods, such as 'ditto' or Ditto(lam=0.2), got 3"),
        (([], PRIVACY), {}, "expected at least one method"),
        (("local", 4), {}, "privacy must be Privacy(epsilon=..., delta=...), got 4"),
        (("local", {"epsilon": 4}), {}, "privacy must be Privacy(epsilon=..., delta=...)"),
        (("local", PRIVACY), {"model": 3}, "model must be a name, a function, a class or a torch.nn.Module"),
        (("local", PRIVACY), {"model": "lin"}, "unknown model 'lin'; did you mean 'linear'?"),
        (("local", PRIVACY), {"model": lambda: 3}, "the factory must return a torch.nn.Module, got 3"),
        (
            ("local", PRIVACY),
            {"model": lambda width: nn.Linear(2, 2)},
            "needs 'width', but what makes a module gets",
        ),
        (
            ("local", PRIVACY),
            {"model": Net, "model_options": {"depth": 3}},
            "has no such setting (it has: hidden)",
        ),
        (("local", PRIVACY), {"model_options": 3}, "model_options: expected a dict of settings, got 3"),
        (("local", PRIVACY), {"loss": "hnge"}, "unknown loss 'hnge'; did you mean 'hinge'?"),
        (("local", PRIVACY), {"participation": {"poison": 0.5}}, "train.participation: expected a share"),
        (("local", PRIVACY), {"participation": {"cohort": 9}}, "a cohort of 9 is larger than the federation"),
        (("local", PRIVACY), {"rounds": "ten"}, "train.rounds: expected a whole number, got 'ten'"),
        (("local", PRIVACY), {"rounds": True}, "train.rounds: expected a whole number, got True"),
        (("local", PRIVACY), {"epochs": 2, "steps": 3}, "train: expected either epochs or steps, not both"),
        (("local", PRIVACY), {"memory": "much"}, "train.memory: expected a size"),
        (("local", PRIVACY), {"recover": 0.5}, "train.recover: no silo drops out"),
        (("local", PRIVACY), {"device": "tpu"}, "train.device: 'tpu' cannot be used here"),
        (("local", PRIVACY), {"round": 3}, "run: unknown argument 'round'; did you mean 'rounds'?"),
        (("local",), {}, "privacy must be Privacy(epsilon=..., delta=...), got None"),
        (("local", PRIVACY), {"rounds": 1, "ledger": 3}, "ledger: expected a path, got 3"),
        (("local", PRIVACY), {"rounds": 1, "out": 3}, "out: expected a path, got 3"),
    ],
)
def test_wrong_arguments_are_one_sentence(clinics, arguments, options, said):
    with refused(said):
        ct.run(clinics, *arguments, **options)


def test_all_problems_of_a_call_are_reported_together(clinics):
    with pytest.raises(ct.Problem) as caught:
        ct.run(clinics, ["dito", 3], 4, rounds=0, lr="fast", model="lin")
    lines = str(caught.value).splitlines()
    assert lines[0] == "6 problems:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "privacy must be Privacy(epsilon=..., delta=...), got 4", "methods", "methods", "train.rounds",
        "train.lr", "model.name",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": "four"}, "privacy.epsilon: expected a number, got 'four' (unknown budget preference"),
        ({"epsilon": None}, "privacy.epsilon: expected a number, or one for each silo, got None"),
        ({"epsilon": []}, "privacy.epsilon: a list of values must not be empty"),
        (
            {"epsilon": {"north": "much"}},
            "privacy.epsilon: expected a number, or one for each silo, got 'much'",
        ),
        (
            {"epsilon": 4, "delta": "small"},
            "privacy.delta: expected a number, or one for each silo, got 'small'",
        ),
        ({"epsilon": 4, "clip": True}, "privacy.clip: expected a number, or one for each silo, got True"),
        ({"epsilon": 4, "unit": "row"}, "privacy.unit: unknown unit 'row'"),
        ({}, "privacy: expected either epsilon or noise"),
    ],
)
def test_wrong_budgets_are_one_sentence(options, said):
    with refused(said):
        ct.Privacy(**options)


def with_columns(**options):
    return {"silo_column": "clinic", "target_column": "outcome", **options}


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (frame(), {}, "data.target_column: name the column of 'the frame' to predict"),
        (frame(), with_columns(target_column="outcom"), "no column 'outcom'; did you mean 'outcome'?"),
        (frame(), with_columns(silo_column="klinic"), "no column 'klinic'; did you mean 'clinic'?"),
        (frame(), with_columns(drop=["weight"]), "data.drop: 'the frame' has no column 'weight'"),
        (frame(), with_columns(drop="dose"), "data.drop: expected a list, got 'dose'"),
        (frame(), with_columns(name=3), "name: expected a text, got 3"),
        (frame(), with_columns(features="all"), "data.features: expected 'auto', 'none'"),
        (pd.concat([frame(), frame()[["age"]]], axis=1), with_columns(), "two columns named 'age'"),
        ({"x": [[1.0]] * 4, "y": [[0], [1]] * 2}, {}, "needs one target for each of 4 rows"),
        ({"x": [[1.0]] * 4, "y": [0, 1]}, {}, "differ in length"),
        ({"x": [[1.0]] * 4, "z": [0, 1] * 2}, {}, "has x, y, silo and perhaps split and person, not 'z'"),
        ({"x": [[1.0]] * 4}, {}, "has no array 'y'"),
        (
            {"x": [[1.0]] * 4, "y": [0, 1] * 2, "silo": ["a", None, "b", "b"]},
            {},
            "'silo' is missing in row 2",
        ),
        ({"a": [1, 2], "b": [1]}, {"target_column": "a"}, "these columns do not make a table"),
        (3, {}, "expected a name, a file, a folder, a pandas DataFrame or a dict of arrays, got a int"),
        ("nowhere.csv", {}, "'nowhere.csv' does not exist"),
        ("digits", {"name": "mine"}, "'digits' already has a name"),
        ("digits", {"silos": "ten"}, "data.silos: expected a whole number, got 'ten'"),
        ("digits", {"partition": "shard"}, "data.partition: expected 'iid', 'shards'"),
        ("digits", {"test": 3}, "data.test: expected a share between 0 and 1"),
        ("digits", {"silo": 3}, "load: unknown argument 'silo'; did you mean 'silos'?"),
    ],
)
def test_wrong_data_is_one_sentence(source, options, said):
    with refused(said):
        ct.load(source, **options)


def test_a_target_with_two_axes_is_refused_by_hand_too(clinics):
    x, y = torch.zeros(4, 2), torch.zeros(4, 1)
    with refused(
        "silo 'a' needs one target for each of its 4 training examples, got targets of shape (4, 1)"
    ):
        Silo("a", x, y, x, y)
    with refused("got targets of shape (3,)"):
        Silo("a", x, torch.zeros(4), x, torch.zeros(3))


def test_wrong_questions_to_a_result_are_one_sentence(clinics):
    result = ct.run(clinics, "local", PRIVACY, rounds=1)
    for ask in (result.model, result.statement):
        with refused("there is no silo 'nort'; did you mean 'north'?"):
            ask("nort")
        with refused("there is no run 7; there are 1, from 0"):
            ask("north", run=7)
    with refused("statement 'none.json' cannot be read"):
        ct.verify("none.json")
    with refused("there is no ledger 'none'"):
        ct.read_ledgers("none")


def test_data_in_memory_needs_a_name_for_its_ledgers(clinics):
    fed = ct.load(frame(), silo_column="clinic", target_column="outcome")
    assert ct.run(fed, "local", PRIVACY, rounds=1).runs
    with refused("this one has no name: give it one"):
        ct.run(fed, "local", PRIVACY, rounds=1, ledger="ledgers")
