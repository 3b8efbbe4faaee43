"""Measures of trained models: in results, tables, summaries and files, with what is said about them."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import coterie as ct
from coterie.report.folder import read_run
from coterie.report.measures_table import measure_table
from coterie.report.summary import markdown
from coterie.report.tables import silo_table, summary_table

PRIVACY = ct.Privacy(epsilon=8, delta=1e-3)
NO_PRIVACY = ct.Privacy(epsilon=float("inf"))


def hospitals(rare: float = 0.1, silos: int = 4, rows: int = 60) -> pd.DataFrame:
    """A table with a rare class, and none of it in the last hospital."""
    generator, parts = np.random.default_rng(3), []
    for k in range(silos):
        sick = generator.random(rows) < rare
        sick[:5] = True
        if k == silos - 1:
            sick[:] = False
        dose, age = generator.normal(sick * 1.5, 1.0), generator.normal(size=rows)
        named = np.where(sick, "sick", "well")
        parts.append(pd.DataFrame({"site": f"h{k}", "dose": dose, "age": age, "state": named}))
    return pd.concat(parts)


def load(table: pd.DataFrame, target: str = "state", **more) -> ct.Federation:
    named = {"silo_column": "site", "target_column": target, "name": "hospitals", "test": 0.4}
    return ct.load(table, **{**named, **more})


@pytest.fixture(scope="module")
def federation() -> ct.Federation:
    return load(hospitals(), positive="sick")


@pytest.fixture(scope="module")
def result(federation, tmp_path_factory) -> ct.Result:
    out = tmp_path_factory.mktemp("run") / "out"
    return ct.run(federation, ["local", "fedavg"], PRIVACY, rounds=3, seeds=2, out=out)


def text_of(table) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_a_rare_class_brings_auc_and_balanced_accuracy(federation, result):
    assert list(result.runs[0].measures) == ["auc", "balanced-accuracy", "accuracy"]
    assert result.leading == "auc"
    for number, run in enumerate(result.runs):
        weights, parts = [], {"auc": [], "balanced-accuracy": []}
        for silo in federation.silos:
            output = result.model(silo.name, run=number)(silo.test_x.float() * federation.scale)
            true, said = silo.test_y.numpy(), output.softmax(-1)[:, 1].detach().double().numpy()
            if len(set(true)) == 1:
                assert np.isnan(run.measures["auc"].silos[silo.name].value)
                continue
            weights.append(len(true))
            parts["auc"].append(roc_auc_score(true, said))
            parts["balanced-accuracy"].append(balanced_accuracy_score(true, output.argmax(-1).numpy()))
            assert run.measures["auc"].silos[silo.name].value == pytest.approx(parts["auc"][-1])
        for name, values in parts.items():
            assert run.measures[name].value == pytest.approx(np.average(values, weights=weights))
        assert run.measures["accuracy"].value == pytest.approx(run.score)
        assert run.measures["accuracy"].silos["h0"].value == pytest.approx(run.silos["h0"].score)


def test_the_silo_without_the_class_is_named_and_left_out(result):
    assert result.runs[0].measures["auc"].undefined == ("h3",)
    said = "Undefined in 1 of 4 silos (h3), because their test rows are all of one class: auc, balanced-accuracy."
    for text in (repr(result), markdown(result), "\n".join(result.to_json()["remarks"])):
        assert said in text


def test_tables_show_the_measures(federation, result):
    shown = text_of(measure_table(result))
    auc = result.summary[1]["measures"]["auc"]
    assert f"{auc['mean']:.4f}" in shown
    assert f"{auc['rows'][0]:.3f} to {auc['rows'][1]:.3f}" in shown
    assert f"{auc['seeds'][0]:.3f} to {auc['seeds'][1]:.3f}" in shown
    summary = text_of(summary_table(result))
    assert "Test auc and accuracy over all silos (higher is better; bold: the best auc)" in " ".join(
        summary.split()
    )
    (head,) = [line.split() for line in summary.splitlines() if line.strip().startswith("method")]
    assert head[:4] == ["method", "auc", "accuracy", "±"]
    row = summary.split(result.summary[1]["method"], 1)[1]
    assert f"{auc['mean']:.4f} {result.summary[1]['mean']:.4f}" in " ".join(row.split())
    each = text_of(silo_table(result, [[8.0]] * 4, federation.sizes))
    assert "test auc (first seed)" in " ".join(each.split())
    value = result.runs[2].measures["auc"].silos["h1"].value
    (row,) = [line.split() for line in each.splitlines() if line.strip().startswith("h1")]
    assert row[-1] == f"{value:.3f}"
    (row,) = [line.split() for line in each.splitlines() if line.strip().startswith("h3")]
    assert row[-2:] == ["-", "-"]
    assert f"| auc | fedavg | {auc['mean']:.4f} |" in markdown(result)
    best = max(result.summary, key=lambda row: row["measures"]["auc"]["mean"])
    assert result.best() == best


def test_the_file_holds_them_and_gives_them_back(result):
    saved = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert saved["leading"] == "auc"
    assert set(saved["summary"][0]) >= {"mean", "std", "metric", "measures", "constant"}
    for content, run in zip(saved["runs"], result.runs, strict=True):
        again = read_run(content)
        assert repr(again.measures) == repr(run.measures)  # NaN is not equal to itself
        assert (again.no_better, again.constant) == (run.no_better, run.constant)
        assert content["measures"]["auc"]["silos"]["h3"]["value"] is None
        old = {
            key: value for key, value in content.items() if key not in ("measures", "constant", "no_better")
        }
        assert read_run(old).score == run.score


def test_a_frame_of_all_measures(result):
    frame = result.measures()
    assert list(frame) == ["run", "method", "seed", "measure", "silo", "value", "low", "high"]
    assert len(frame) == 4 * 3 * 5
    (row,) = frame[(frame.run == 1) & (frame.measure == "auc") & (frame.silo == "all")].to_dict("records")
    assert row["value"] == result.runs[1].measures["auc"].value
    assert row["low"] < row["value"] < row["high"]


def test_no_better_than_the_most_frequent_class():
    table = hospitals(rare=0.02)
    data = load(table, positive="sick")

    class Constant(torch.nn.Module):  # predicts the first class, whatever it is given
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return self.bias + torch.tensor([9.0, 0.0]) + 0 * x.flatten(1).sum(1, keepdim=True)

    found = ct.run(data, "local", NO_PRIVACY, rounds=1, lr=1e-3, model=Constant)
    assert found.runs[0].no_better == data.names
    assert found.runs[0].score == pytest.approx(found.runs[0].constant)
    (said,) = [line for line in found.to_json()["remarks"] if line.startswith("No better")]
    assert said == (
        "No better than predicting each silo's most frequent class"
        f" (accuracy {found.runs[0].constant:.4f}): local."
    )
    table["state"] = np.where(table.dose > table.dose.median(), "sick", "well")
    learned = ct.run(load(table), "fedavg", NO_PRIVACY, rounds=40, lr=0.5)
    assert list(learned.runs[0].measures) == ["accuracy"]
    assert not any(line.startswith("No better") for line in learned.to_json()["remarks"])


def test_classes_without_test_rows_in_a_silo_are_counted():
    data = ct.load("digits", silos=4, partition="shards", rows=300)
    found = ct.run(data, "local", NO_PRIVACY, rounds=1, metrics=["auc", "accuracy"])
    partial = tuple(silo.name for silo in data.silos if 1 < len(set(silo.test_y.tolist())) < 10)
    assert partial
    assert found.runs[0].measures["auc"].partial == partial
    assert found.runs[0].measures["accuracy"].partial == ()
    said = f"In {len(partial)} of 4 silos some classes have no test rows, and are left out there: auc."
    assert said in found.to_json()["remarks"]
    assert read_run(found.to_json()["runs"][0]).measures["auc"].partial == partial


def test_numbers_are_compared_with_the_mean():
    table = hospitals(rare=0.5)
    table["state"] = table.dose * 0.2 + 0.4
    data = load(table, "state", kind="regression", target_range=(-2, 3))
    bad = ct.run(data, "local", NO_PRIVACY, rounds=1, lr=1e-9)
    assert list(bad.runs[0].measures) == ["mse"]
    assert bad.runs[0].no_better == data.names
    assert "No better than predicting each silo's mean (mse" in repr(bad)
    good = ct.run(data, "local", NO_PRIVACY, rounds=60, lr=0.3)
    assert good.runs[0].no_better == ()
    assert measure_table(good) is None
    assert "| mse | local |" in markdown(good)


def test_the_summary_says_which_way_each_score_is_better(federation):
    result = ct.run(federation, "local", PRIVACY, rounds=1, metrics=["log-loss"])
    said = (
        "Test log-loss and accuracy over all silos (higher is better for accuracy, lower for log-loss; bold"
    )
    assert said in " ".join(text_of(summary_table(result)).split())
