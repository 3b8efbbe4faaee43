"""Means and deviations of columns: as pandas computes them, with the noise that is charged, and used as scales."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.data.preparation import Preparation
from coterie.experiment.column_measures import CLIP, entries
from tests.helpers import call, refused

COLUMNS = {"silo_column": "clinic", "target_column": "ill"}
BOUNDS = {"age": (20, 100), "dose": (-5, 5), "seen": (0, 30)}


def table(silos: int = 4, rows: int = 60) -> pd.DataFrame:
    draw = np.random.default_rng(1)
    n = silos * rows
    return pd.DataFrame(
        {
            "clinic": [f"c{k}" for k in np.repeat(np.arange(silos), rows)],
            "age": draw.normal(65, 12, n).round(),
            "dose": np.where(draw.random(n) < 0.3, np.nan, draw.normal(1.5, 2, n)),
            "seen": (pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, n), unit="D")).strftime("%Y-%m-%d"),
            "ward": draw.choice(["x", "y"], n),
            "ill": draw.choice(["no", "yes"], n),
        }
    )  # fmt: skip


def loaded(data=None, **more) -> ct.Federation:
    given = {
        "missing": {"dose": "indicator"},
        "dates": ["seen"],
        "categories": {"ward": ["x", "y"]},
        "feature_range": BOUNDS,
        "name": "clinics",
        **COLUMNS,
        **more,
    }
    return ct.load(table() if data is None else data, **given)


def numbers_of(federation: ct.Federation) -> pd.DataFrame:
    """The clipped raw numbers of all training rows, missing ones as NaN: a slow way to look at them."""
    names = federation.preparation.encoded
    x = pd.DataFrame(torch.cat([silo.x for silo in federation.silos]).double().numpy(), columns=names)
    raw = pd.DataFrame({c: low + (high - low) * x[c] for c, (low, high) in BOUNDS.items()})
    return raw.mask(pd.DataFrame({c: x.get(f"{c} (missing)", x[c] * 0) > 0 for c in raw}))


def test_without_noise_they_are_the_means_and_deviations_of_the_training_rows():
    federation = loaded()
    measured = ct.measure_columns(federation, ct.Privacy(epsilon=math.inf))
    slow = numbers_of(federation)
    for name, each in measured.columns.items():
        assert each.mean == pytest.approx(slow[name].mean(), rel=1e-4)
        assert each.deviation == pytest.approx(slow[name].std(ddof=0), rel=1e-3)
        assert each.error == 0
    assert measured.lost == ()
    assert set(measured.standardize) == set(BOUNDS)


def test_several_targets_change_nothing():
    data = table().assign(ill=np.arange(240) % 2, dead=np.arange(240) % 3 % 2)
    one, two = (
        loaded(data.drop(columns=drop), target_column=t)
        for drop, t in (("dead", "ill"), ([], ["ill", "dead"]))
    )
    assert two.targets == ("ill", "dead")
    privacy = ct.Privacy(epsilon=math.inf)
    assert ct.measure_columns(two, privacy).columns == ct.measure_columns(one, privacy).columns


def test_no_row_is_longer_than_the_clip_allows_whatever_it_holds():
    extreme = table(2, 40).assign(age=1e30, dose=[None, -1e30] * 40)
    for data in (None, extreme):
        prepared, _ = entries(loaded(data))
        x = torch.cat([part for silo in prepared.silos for part in (silo.x, silo.test_x)])
        assert (CLIP * x.norm(dim=1)).max() <= CLIP * (1 + 1e-6)
    assert x.norm(dim=1).max() > 0.8  # the bound is used


def test_each_silo_releases_its_mean_with_the_noise_that_is_charged():
    federation = loaded(table(silos=40, rows=30))
    measured = ct.measure_columns(federation, ct.Privacy(epsilon=1, delta=1e-3))
    prepared, _ = entries(federation)
    run = measured.result.runs[0]
    away = []
    for silo in prepared.silos:
        noise = run.silos[silo.name].noise / len(silo.y)
        away.append((measured.result.vector(silo.name) - silo.x.mean(0)).numpy() / noise)
        assert run.silos[silo.name].epsilon <= 1
    away = np.concatenate(away)
    assert len(away) == 40 * 7
    assert abs(away.mean()) < 3 / math.sqrt(len(away))
    assert abs(away.std() - 1) < 0.13  # two thirds of the noise, or one and a half times as much, is far away


def test_a_person_counts_once_if_persons_are_protected():
    row = np.arange(180) % 60
    data = table(silos=3, rows=60).assign(patient=np.where(row < 30, row, 30 + row // 5))
    federation = loaded(data, person_column="patient", rows_per_person=60)
    measured = ct.measure_columns(federation, ct.Privacy(epsilon=math.inf, unit="person"))
    prepared, _ = entries(federation)
    for silo in prepared.silos:
        persons = pd.DataFrame(silo.x.double().numpy()).groupby(silo.person.numpy())
        assert persons.ngroups < len(silo.y)
        slow = persons.mean().mean().to_numpy()
        assert np.allclose(measured.result.vector(silo.name).numpy(), slow, atol=1e-5)
    noisy = ct.measure_columns(federation, ct.Privacy(epsilon=1, delta=1e-3, unit="person"))
    persons = sum(federation.protected_sizes("person"))
    rows = ct.measure_columns(federation, ct.Privacy(epsilon=1, delta=1e-3))
    assert noisy.columns["age"].error / rows.columns["age"].error == pytest.approx(
        sum(federation.sizes) / persons, rel=0.05
    )


def test_the_error_says_how_far_noise_moves_a_mean():
    federation = loaded(table(silos=10, rows=100))
    exact = ct.measure_columns(federation, ct.Privacy(epsilon=math.inf)).columns
    noisy = ct.measure_columns(federation, ct.Privacy(epsilon=1, delta=1e-3)).columns
    ratios = [(noisy[name].mean - exact[name].mean) / noisy[name].error for name in BOUNDS]
    assert all(abs(ratio) < 3 for ratio in ratios)
    assert any(abs(ratio) > 0.1 for ratio in ratios)
    small = ct.measure_columns(federation, ct.Privacy(epsilon=0.02, delta=1e-3))
    assert small.lost
    assert set(small.standardize) == set(BOUNDS) - set(small.lost)


def test_ledgers_are_charged_against_everybody_and_trainings_use_the_same_ones(tmp_path):
    federation, places = loaded(), {"ledger": tmp_path / "ledgers", "witness": tmp_path / "witness"}
    (tmp_path / "witness").mkdir()
    ct.open_ledgers(
        tmp_path / "ledgers", federation, {"c1": 0.9, "default": 3}, 1e-2, witness=places["witness"]
    )
    privacy = ct.Privacy(epsilon={"c1": 0.5, "default": 1}, delta=1e-3)
    measured = ct.measure_columns(federation, privacy, **places, out=tmp_path / "measured")
    assert measured.result.kind == "metered"
    reports = {
        report.identity.silo: report
        for report in ct.read_ledgers(tmp_path / "ledgers", witness=places["witness"])
    }
    statement = json.loads((tmp_path / "measured/statements/mr-mtl-lam-0/c0.json").read_text())
    assert statement["guarantee"]["epsilon"] <= 1
    assert "column_means" in json.dumps(statement)
    for name, report in reports.items():
        spent = {seen: total[0] for seen, total in report.totals["example"].items()}
        assert set(spent) >= {"server", "silos", "shared"}
        assert all(0 < epsilon <= (0.5 if name == "c1" else 1) for epsilon in spent.values())
    # What is measured and what is trained afterwards is charged to the same ledger.
    trained = loaded(standardize=measured.standardize)
    assert trained.identities == federation.identities
    ct.run(trained, "fedavg", ct.Privacy(epsilon=0.4, delta=1e-3), rounds=1, **places)
    with refused("silo 'c1': the budget of this data set is (epsilon 0.9, delta 0.01)"):
        ct.measure_columns(federation, privacy, **places)


def test_scales_are_applied_after_clipping_and_to_new_rows_alike():
    scales = {"age": (65.0, 12.5), "dose": (1.5, 2.0)}
    data = table()
    made = loaded(data, standardize=scales, missing={"dose": "indicator"}, medians={"dose": 1.5})
    copied = Preparation.from_json(json.loads(json.dumps(made.preparation.to_json())))
    x = pd.DataFrame(copied.prepare(data, "c1").numpy(), columns=made.preparation.encoded)
    age, dose = data["age"].clip(20, 100), data["dose"].clip(-5, 5)
    assert np.allclose(x["age"], (age - 65) / 12.5, rtol=1e-6)
    assert np.allclose(x["dose"], ((dose - 1.5) / 2).fillna(0), rtol=1e-5, atol=1e-6)
    assert (x["dose (missing)"] == data["dose"].isna()).all()
    assert x["seen"].between(0, 1).all()  # the other columns keep to their bounds
    own = sorted(map(bytes, torch.cat([made.silos[1].x, made.silos[1].test_x]).numpy()))
    assert own == sorted(map(bytes, x[data["clinic"] == "c1"].to_numpy()))
    assert made.not_covered == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"feature_range": {"age": (0, 1)}}, "there are none of 'dose', 'seen': give some, or leave the columns out"),
        ({"feature_range": None}, "needs public bounds of every column of numbers"),
        ({"features": "unit"}, "columns are measured as they are"),
        ({"standardize": {"age": (1, 2)}}, "columns are measured as they are"),
        ({"drop": ["age", "dose", "seen"], "missing": 0, "dates": (), "feature_range": None}, "no column of numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured(options, words):
    with refused(words):
        ct.measure_columns(loaded(**options), ct.Privacy(epsilon=1))


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        (ct.Privacy(epsilon=1, unit="silo"), "columns are measured with unit = 'example' or 'person'"),
        (ct.Privacy(epsilon=[1, 2]), "columns are measured once"),
        (1, "privacy must be Privacy(epsilon=..., delta=...), got a int"),
    ],
)
def test_wrong_budgets(privacy, words):
    with refused(words):
        ct.measure_columns(loaded(), privacy)
    with refused("only the columns of a table can be measured"):
        ct.measure_columns(ct.load("digits", silos=2), ct.Privacy(epsilon=1))
    with refused("federation: expected what load returns, got a str"):
        ct.measure_columns("clinics.csv", ct.Privacy(epsilon=1))


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        (
            {"agee": (1, 2)},
            "data.standardize.agee: 'clinics' has no such column of numbers; did you mean 'age'?",
        ),
        ({"ward": (1, 2)}, "data.standardize.ward: 'clinics' has no such column of numbers; it holds words"),
        ({"age": (1, 0)}, "data.standardize: expected [mean, deviation > 0] by column, got [1, 0]"),
        ([1, 2], "data.standardize: expected [mean, deviation] by column"),
    ],
)
def test_wrong_scales(scales, words):
    with refused(words):
        loaded(standardize=scales)
    with refused("data.standardize: it does not go with data.features = 'standardize'"):
        loaded(standardize={"age": (1, 2)}, features="standardize")


def test_the_command_prints_the_key_of_a_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table().to_csv("clinics.csv", index=False)
    ct.new_config(
        "c.toml", "clinics.csv", changes=["data.feature_range={age=[20,100],dose=[-5,5],seen=[0,30]}"]
    )
    code, out, err = call(monkeypatch, capsys, "data", "measure", "c.toml", "--epsilon", "20")
    assert code == 0
    scales = tomllib.loads(out)["standardize"]
    assert set(scales) <= set(BOUNDS)
    assert scales["age"][0] == pytest.approx(65, abs=4)
    assert "measured with noise, for epsilon at most" in err
    assert "no ledger was charged, so no later statement knows of this cost" in err
    Path("c.toml").write_text(Path("c.toml").read_text().replace("[data]", f"[data]\n{out}"))
    assert ct.plan("c.toml").study.experiments[0].federation.preparation.standardize == {
        name: tuple(pair) for name, pair in scales.items()
    }
    code, out, err = call(monkeypatch, capsys, "data", "measure", "c.toml", "--epsilon", "inf", "--json")
    assert json.loads(out)["kind"] == "simulation"
    assert "measured without noise: not private" in err
    code, _, err = call(
        monkeypatch, capsys, "data", "measure", "c.toml", "--epsilon", "1", "--set", "privacy.unit=silo"
    )
    assert code == 2
    assert "columns are measured with unit = 'example' or 'person'" in err
