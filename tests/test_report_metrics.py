"""Metrics that a configuration or a call asks for, built-in or one's own, and how others are refused."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from sklearn.metrics import fbeta_score

import coterie as ct
from coterie.deploy.make_plan import check_used
from coterie.errors import Problem
from coterie.experiment.config.schema import check, read
from coterie.experiment.metrics import metrics_of
from coterie.tasks.task import make_task
from tests.helpers import call, refused
from tests.test_measures_in_results import NO_PRIVACY, PRIVACY, hospitals, load

CONFIG = """
[data]
source = "hospitals.csv"
silo_column = "site"
target_column = "state"
positive = "sick"
[train]
rounds = 2
[privacy]
epsilon = 8
delta = 1e-3
[[method]]
name = "fedavg"
"""
OWN = """
from sklearn.metrics import fbeta_score, recall_score

def f2(outputs, targets):
    return fbeta_score(targets, outputs.argmax(1), beta=2, zero_division=0)

def missed(outputs, targets):
    if not targets.any():
        raise RuntimeError("nobody is sick")
    return 1 - recall_score(targets, outputs.argmax(1), zero_division=0)

missed.higher_is_better = False
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hospitals().to_csv("hospitals.csv", index=False)
    (tmp_path / "own_metrics.py").write_text(OWN)
    yield tmp_path
    sys.modules.pop("own_metrics", None)


def written(folder, report: str, more: str = ""):
    (folder / "small.toml").write_text(CONFIG + more + f"[report]\nmetrics = {report}\n")
    return folder / "small.toml"


def f2(outputs, targets):
    return fbeta_score(targets, outputs.argmax(1), beta=2, zero_division=0)


def test_a_configuration_names_metrics(folder, capsys, monkeypatch):
    asked = ["f1@0.2", "auc", "brier", "own_metrics:f2"]
    place = written(folder, json.dumps(asked))
    code, text, _ = call(monkeypatch, capsys, "run", place, "--out", "out", "--json")
    printed = json.loads(text)
    assert code == 0
    assert list(printed["runs"][0]["measures"]) == asked
    assert printed["leading"] == "f1@0.2"
    assert printed == json.loads((folder / "out" / "result.json").read_text())
    assert "own_metrics:f2" in (folder / "out" / "summary.md").read_text()
    assert read(folder / "out" / "config.toml", allow=["own_metrics"]).report.metrics == asked
    code, shown, _ = call(monkeypatch, capsys, "run", place, "--out", "out2")
    assert code == 0
    assert "own_metrics:f2" in shown
    assert "bold: the best f1@0.2" in " ".join(shown.split())
    data = load(hospitals(), positive="sick", test=0.2)
    same = ct.run(data, "fedavg", PRIVACY, rounds=2, metrics=[*asked[:3], f2])
    mine = [{**run, "seconds": 0} for run in same.to_json()["runs"]]
    theirs = [{**run, "seconds": 0} for run in printed["runs"]]
    mine[0]["measures"]["own_metrics:f2"] = mine[0]["measures"].pop("f2")
    assert mine == theirs


def test_ones_own_metric_equals_its_function(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    data = load(hospitals(), positive="sick")
    result = ct.run(data, "local", PRIVACY, rounds=2, metrics=["own_metrics:missed", f2], model="mlp")
    assert list(result.runs[0].measures) == ["own_metrics:missed", "f2"]
    for silo in data.silos:
        scores = result.model(silo.name)(silo.test_x).softmax(-1).detach().double().numpy()
        value = result.runs[0].measures["f2"].silos[silo.name].value
        assert value == f2(scores, silo.test_y.numpy())
    failed = result.runs[0].measures["own_metrics:missed"]
    assert not failed.higher_is_better
    assert failed.undefined == ("h3",)
    (said,) = [line for line in result.to_json()["remarks"] if "own_metrics:missed" in line]
    assert "because the function failed on their test rows, or returned no finite number" in said


def test_numbers_get_an_own_metric_too():
    table = hospitals(rare=0.5)
    table["state"] = table.dose * 0.2 + 0.4

    def worst(outputs, targets):
        return np.abs(outputs - targets).max()

    data = load(table, kind="regression", target_range=(-2, 3))
    measured = ct.run(data, "local", NO_PRIVACY, rounds=1, metrics=[worst, "mae"]).runs[0].measures
    for name in data.names:
        assert measured["worst"].silos[name].value >= measured["mae"].silos[name].value > 0


def three_numbers(outputs, targets):
    return [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ["auc", "r2", "nonsense"],
            r"2 problems:\n  report.metrics: 'r2' needs a number.*\n.*unknown metric 'nons",
        ),
        ("aucc", "report.metrics: unknown metric 'aucc'; did you mean 'auc'"),
        ([], r"report.metrics: expected names of metrics, such as \['auc', 'f1'\], got \[\]"),
        ([3], "report.metrics: expected the name of a metric or a function, got 3"),
        (lambda o, t: 1.0, "expected a function with a name of its own"),
        (["no_such_module:f"], "report.metrics: cannot import 'no_such_module:f'"),
        (["os:getcwd"], "part of Python's standard library, which is never run as a metric"),
        ([three_numbers], "'three_numbers' fails on made-up rows with TypeError"),
    ],
)
def test_what_is_no_metric_is_refused_from_python(given, words):
    data = load(hospitals(), positive="sick")
    with pytest.raises(Problem, match=words):
        ct.plan(data, "local", PRIVACY, metrics=given)


def infinite(outputs, targets):
    return float("inf")


def test_functions_are_tried_before_anything_is_trained():
    task = make_task("linear", shape=(2,), classes=2)
    with refused("report.metrics: 'infinite' must return a finite number, and returned inf on made-up rows"):
        metrics_of([infinite], task)

    def f2(outputs, targets):
        return 1.0

    with refused("report.metrics: two metrics are called 'f2'; rename the function"):
        metrics_of([f2, globals()["f2"]], task)
    assert [metric.name for metric in metrics_of(["auc", f2, "auc"], task)] == ["auc", "f2"]


def test_a_plan_or_configuration_has_its_metrics_already(folder):
    plan = ct.plan(load(hospitals(), positive="sick"), "local", PRIVACY, rounds=1, metrics="f1")
    with refused("metrics: the plan or configuration already sets this"):
        ct.run(plan, metrics="auc")
    assert list(ct.run(plan).runs[0].measures) == ["f1"]


def test_a_file_is_refused_as_a_whole(folder):
    place = written(folder, '["roc", "auc", "reall"]', "colour = 3\n")
    with pytest.raises(Problem) as caught:
        read(place)
    said = str(caught.value)
    assert "has 3 problem(s)" in said
    assert "report.metrics: unknown metric 'roc'" in said
    assert "report.metrics: unknown metric 'reall'" in said
    for wrong, words in (
        ("[]", "report.metrics: expected"),
        ("3", "report.metrics: expected"),
        ("[3]", "metrics.0"),
    ):
        with pytest.raises(Problem, match=words):
            read(written(folder, wrong))


def test_code_that_a_file_names_must_lie_beside_it(folder, monkeypatch):
    place = written(folder, '["own_metrics:f2"]')
    (folder / "elsewhere").mkdir()
    (folder / "own_metrics.py").rename(folder / "elsewhere" / "own_metrics.py")
    monkeypatch.syspath_prepend(str(folder / "elsewhere"))
    with refused(
        "report.metrics: 'own_metrics:f2' needs the module 'own_metrics', which does not lie beside"
    ):
        ct.plan(place)
    assert "own_metrics" not in sys.modules
    assert ct.plan(place, allow=["own_metrics"]).study.config.report.metrics == ["own_metrics:f2"]
    with refused("report.metrics: 'own_metrics:fbeta_score' is defined in 'sklearn.metrics._classification'"):
        ct.plan(written(folder, '["own_metrics:fbeta_score"]'), allow=["own_metrics"])


def test_a_deployment_runs_no_metric_of_ones_own(folder):
    with refused("report.metrics: 'own_metrics:f2' cannot be part of a plan: name built-in metrics only"):
        check_used(read(written(folder, '["own_metrics:f2"]')))
    check_used(
        check({"privacy": {"epsilon": 1}, "method": [{"name": "local"}], "report": {"metrics": ["auc"]}})
    )
