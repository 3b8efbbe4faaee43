"""What each silo gained over training alone, its cluster and its lam: in results, tables and pictures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.engines.simulation import simulate
from coterie.experiment.gains import gains_of
from coterie.methods import IFCA, FedAvg, MRMTLAuto, Then
from coterie.report.folder import read_run
from coterie.report.silo_tables import gain_lines, learned_lines, members, silo_gain_table
from coterie.report.summary import markdown
from tests.helpers import call, refused
from tests.test_measures_in_results import PRIVACY, hospitals, load, text_of

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def result() -> ct.Result:
    data = load(hospitals(rare=0.15), positive="sick")
    methods = ["local", "fedavg", IFCA(clusters=2, choosing=0.7), MRMTLAuto()]
    return ct.run(data, methods, PRIVACY, rounds=3, seeds=2, lr=0.5, metrics=["auc", "log-loss"])


def runs_of(result, method):
    return [run for run in result.runs if run.method == method]


def test_gains_are_differences_to_local_with_the_same_seed(result):
    for measure, sign in (("auc", 1), ("log-loss", -1), ("accuracy", 1)):
        for gains in gains_of(result, measure):
            runs = [run for run in result.runs if run.label == gains.label]
            for name in result.names:
                values = [
                    [
                        run.silos[name].score
                        if measure == "accuracy"
                        else run.measures[measure].silos[name].value
                    ]
                    for pair in zip(runs, runs_of(result, "local"), strict=True)
                    for run in pair
                ]
                slow = sign * np.mean(np.array(values)[::2] - np.array(values)[1::2])
                if np.isnan(slow):  # of one class, so without an AUC
                    assert name not in gains.silos
                else:
                    assert gains.silos[name] == pytest.approx(slow)
            assert list(gains.silos.values()) == sorted(gains.silos.values(), reverse=True)
    labels = [gains.label for gains in gains_of(result)]
    assert labels == [label for label in dict.fromkeys(run.label for run in result.runs) if label != "local"]


def test_the_frame_the_lines_and_the_file_agree(result):
    frame = result.gains("log-loss")
    assert list(frame) == ["method", "silo", "measure", "gain"]
    assert len(frame) == 3 * 4
    fedavg = frame[frame.method == "fedavg"]
    assert fedavg.gain.is_monotonic_decreasing
    content = result.to_json()["gains"]
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    own = result.gains()
    own = own[own.method == "fedavg"]
    assert content["fedavg"]["silos"] == dict(zip(own.silo, own.gain, strict=True))
    assert content["fedavg"]["better"] == (own.gain > 0).sum()
    assert content["fedavg"]["median"] == pytest.approx(own.gain.median())
    (line,) = [line for line in gain_lines(result) if ": fedavg against local, in auc" in line]
    assert line.endswith(
        f"{(own.gain > 0).sum()} of 3 silos gain; median {own.gain.median():+.3f}, from"
        f" {own.gain.min():+.3f} ({own.silo.iloc[-1]}) to {own.gain.max():+.3f} ({own.silo.iloc[0]})."
    )
    assert line in markdown(result)
    with refused("measure: there is no 'f1' in this result"):
        result.gains("f1")


def test_gains_compare_like_with_like(result):
    def named(run, settings, **more):
        return replace(run, settings=settings, **more)

    local, fedavg = result.runs[0], runs_of(result, "fedavg")[0]
    other = {name: replace(silo, score=silo.score - 0.25) for name, silo in local.silos.items()}
    runs = [named(local, {"lr": 0.1}), named(local, {"lr": 0.5}, silos=other), named(fedavg, {"lr": 0.5})]
    made = replace(result, runs=[*runs, named(fedavg, {"lr": 0.9})])
    near, far = gains_of(made, "accuracy")
    assert (near.against, far.against) == ("local lr=0.5", "local lr=0.1")
    assert all(near.silos[name] == pytest.approx(far.silos[name] + 0.25) for name in made.names)
    alone = replace(result, runs=result.runs[2:4])
    assert gains_of(alone) == []
    assert silo_gain_table(alone) is None
    with refused("there are no gains to draw: run 'local' beside other methods"):
        alone.plot_silos()


def test_clusters_are_those_that_models_follow(result):
    """Two silos are in one cluster if and only if they predict with the same model."""
    for number, run in enumerate(result.runs):
        if run.method != "ifca":
            assert "cluster" not in run.learned
            continue
        own = run.learned["cluster"]
        assert set(own.values()) <= {1.0, 2.0}
        vectors = dict(zip(result.names, result.vectors[number], strict=True))
        for a in result.names:
            for b in result.names:
                assert (own[a] == own[b]) == torch.equal(vectors[a], vectors[b])
    (first, _) = runs_of(result, "ifca")
    assert {name for inside in members(first).values() for name in inside} == set(result.names)
    assert any(line.startswith("Clusters of ifca clusters=2") for line in learned_lines(result))


def test_lam_is_that_of_the_servers_last_state(result):
    trained = next(each for each in result.trained.values() if each.experiment.method.name == "mr-mtl-auto")
    data = load(hospitals(rare=0.15), positive="sick")
    made = replace(trained.experiment, federation=data)
    plan = made.plan()
    seeds = [seed for seed, _ in made.keys]
    *_, last = simulate(made.running, made.cohort(plan), plan, made.roster, seeds, made.streams())
    for r, run in enumerate(runs_of(result, "mr-mtl-auto")):
        assert list(run.learned["lam"].values()) == pytest.approx(last.shared.lam[r, :, 0].tolist())
        assert set(run.learned) == {"lam", "trust"}
    assert any(line.startswith("lam of mr-mtl-auto") for line in learned_lines(result))
    frame = result.learned()
    assert list(frame)[-4:] == ["silo", "cluster", "lam", "trust"]
    assert len(frame) == 4 * 4


def test_chains_tell_the_clusters_within_which_they_learn():
    data = load(hospitals(rare=0.3), positive="sick")
    chain = Then(first=IFCA(clusters=2, choosing=1.0), second=FedAvg(), share=0.5)
    (run,) = ct.run(data, chain, PRIVACY, rounds=4).runs
    assert set(run.learned["cluster"].values()) <= {1.0, 2.0}
    (run,) = ct.run(data, Then(first=FedAvg(), second=MRMTLAuto(), share=0.5), PRIVACY, rounds=4).runs
    assert "lam" in run.learned
    assert "cluster" not in run.learned


def test_tables_and_pictures(result):
    shown = text_of(silo_gain_table(result))
    assert "Gain of each silo over training alone, in auc (mean over seeds)" in " ".join(shown.split())
    best = max(gains_of(result), key=lambda gains: gains.facts()["median"])
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith("h")]
    assert [row[0] for row in rows] == list(best.silos)
    assert [row[1] for row in rows] == [f"{gain:+.3f}" for gain in best.silos.values()]
    assert "cluster (" in shown
    assert "lam (" in shown
    figure = result.plot_silos()
    panels = [axes for part in figure.subfigs for axes in part.axes]
    titles = [axes.get_title(loc="left") for axes in panels]
    assert len(titles) == 3 + 2
    assert titles[0].startswith(best.label)
    assert "lam of each silo" in titles[-1]
    names = [text.get_text() for text in panels[0].get_yticklabels()]
    assert names == list(best.silos)
    assert [bar.get_width() for bar in panels[0].patches] == pytest.approx(list(best.silos.values()))
    assert read_run(json.loads(json.dumps(result.to_json()))["runs"][4]).learned == result.runs[4].learned


def test_many_silos_are_shown_by_their_ends():
    data = load(hospitals(rare=0.4, silos=24, rows=20), positive="sick")
    made = ct.run(data, ["local", "fedavg"], PRIVACY, rounds=2, metrics="accuracy")
    shown = text_of(silo_gain_table(made))
    rows = [line.split()[0] for line in shown.splitlines() if line.strip().startswith(("h", "..."))]
    (gains,) = gains_of(made)
    names = list(gains.silos)
    assert rows == [*names[:10], "...", *names[-10:]]


def test_the_command_writes_the_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    hospitals(rare=0.1, silos=3, rows=40).to_csv("hospitals.csv", index=False)
    (tmp_path / "small.toml").write_text(
        '[data]\nsource = "hospitals.csv"\nsilo_column = "site"\ntarget_column = "state"\npositive = "sick"\n'
        "[train]\nrounds = 2\n[privacy]\nepsilon = 8\ndelta = 1e-3\n"
        '[[method]]\nname = "local"\n[[method]]\nname = "ifca"\nclusters = 2\n'
    )
    code, shown, _ = call(monkeypatch, capsys, "run", "small.toml", "--out", "out")
    assert code == 0
    for name in ("measures.png", "silos.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(PNG)
    assert "plot.png, measures.png, silos.png, statements/" in " ".join(shown.split())
    assert "Gain of each silo over training alone" in " ".join(shown.split())
    assert "Clusters of ifca" in " ".join(shown.split())
