"""The command line: what it prints and what it saves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coterie import load, load_model
from coterie.privacy.accountant import epsilon
from tests.helpers import call


def test_run_saves_everything(config, monkeypatch, capsys):
    changes = ("--set", 'privacy.clip={"silo-0"=0.5,default=1.0}')
    code, out, _ = call(monkeypatch, capsys, "run", config, *changes)
    assert code == 0
    assert "mr-mtl lam=0.1" in out
    assert "scores of a simulation" in out
    folder = Path("runs/small-1")
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.toml", "models", "plot.png", "result.json", "statements", "summary.md",
    ]  # fmt: skip
    result = json.loads((folder / "result.json").read_text())
    assert len(result["runs"]) == 6
    run = result["runs"][0]
    assert {"method", "settings", "seed", "metric", "score", "silos", "seconds", "bytes_up"} <= set(run)
    assert set(run["silos"]["silo-0"]) == {"score", "epsilon", "delta", "noise"}
    row = result["summary"][1]
    assert row["method"] == "mr-mtl"
    assert row["settings"] == {"lam": 0.1}
    scores = [r["score"] for r in result["runs"] if r["settings"] == {"lam": 0.1}]
    assert row["mean"] == pytest.approx(sum(scores) / 2)
    assert row["std"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)
    assert 3.96 < row["epsilon"] <= 4
    assert result["kind"] == "simulation"
    assert result["scores"].startswith("These are scores of a simulation, without noise.")
    for silo, budget in (("silo-0", 1), ("silo-1", 4)):
        statement = json.loads((folder / "statements" / "fedavg" / f"{silo}.json").read_text())
        event = statement["events"][0]
        spent = epsilon(event["noise"], event["rate"], event["count"], statement["guarantee"]["delta"])
        assert 0.99 * budget < statement["guarantee"]["epsilon"] <= budget
        assert statement["guarantee"]["epsilon"] == spent
        assert run["silos"][silo]["epsilon"] == spent
        assert run["silos"][silo]["noise"] == event["noise"]
        assert statement["doors"][0]["clip"] == {"silo-0": 0.5, "silo-1": 1.0}[silo]
        assert statement["events"][0]["sampler"] == "poisson"
        assert statement["guarantee"]["adjacency"] == "zero-out"
        assert any("tuning" in line for line in statement["not_covered"])
        assert "simulated" in statement["randomness"]
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    call(monkeypatch, capsys, "run", config)
    assert Path("runs/small-2").is_dir()


def test_a_saved_model_is_a_plain_module_with_the_score_of_the_result(config, monkeypatch, capsys):
    call(monkeypatch, capsys, "run", config, "--out", "here")
    model = load_model("here/models/mr-mtl-lam-1/silo-2.safetensors")
    assert (model.silo, model.method) == ("silo-2", "mr-mtl lam=1")
    silo = load("digits", silos=3).silos[2]
    with torch.no_grad():
        score = float((model(silo.test_x).argmax(1) == silo.test_y).float().mean())
    result = json.loads(Path("here/result.json").read_text())
    run = next(r for r in result["runs"] if r["settings"] == {"lam": 1.0} and r["seed"] == 0)
    assert run["silos"]["silo-2"]["score"] == pytest.approx(score)


def test_json_prints_the_result_and_nothing_else(config, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, "run", config, "--json", "--out", "here")
    assert code == 0
    assert json.loads(out) == json.loads(Path("here/result.json").read_text())
    assert "fedavg" in err


def test_set_changes_keys(config, monkeypatch, capsys):
    _, out, _ = call(
        monkeypatch, capsys, "run", config, "--set", "method.lam=0.7", "--set", "train.seeds=1", "--json"
    )
    result = json.loads(out)
    assert [r["settings"] for r in result["runs"]] == [{}, {"lam": 0.7}]


def test_plan_trains_nothing_and_shows_all(config, monkeypatch, capsys):
    monkeypatch.setattr("coterie.experiment.experiment.simulate", None)
    code, out, _ = call(monkeypatch, capsys, "plan", config, "--json")
    assert code == 0
    plan = json.loads(out)["plans"][1]
    assert plan["method"] == "mr-mtl"
    assert plan["seconds"] > 0
    silo = plan["variants"][0]["silos"]["silo-0"]
    assert set(silo) == {
        "examples", "sampler", "rate", "steps", "noise", "budget", "epsilon", "delta", "bytes_up", "bytes_down",
        "adversaries", "published", "warnings",
    }  # fmt: skip
    assert set(silo["adversaries"].values()) == {silo["epsilon"]}
    assert len(silo["published"]) == 3
    assert silo["bytes_up"] == 2 * 650 * 4
    assert silo["steps"] == 2 * round(silo["examples"] / 32)
    assert silo["epsilon"] <= 1
    code, out, _ = call(monkeypatch, capsys, "plan", config)
    assert "Nothing was trained" in out
    assert "mr-mtl: epsilon holds against the server" in out
    assert not Path("runs").exists()
    assert "papers would report epsilon" in out
    assert "--published shows the formulas" in out


def test_a_plan_shows_published_formulas_and_what_is_wrong_with_them_when_asked(config, monkeypatch, capsys):
    """A run or a plan of Coterie's own accounting does not judge papers that nobody asked about."""
    little = ("--set", "privacy.epsilon=6", "--set", "train.batch=3", "--set", "train.seeds=1")
    _, out, _ = call(monkeypatch, capsys, "plan", config, *little)
    assert "a proven lower bound" not in out
    assert "mu = p sqrt" not in out
    _, out, _ = call(monkeypatch, capsys, "plan", config, *little, "--published")
    assert "mu = p sqrt(T (e^(1/sigma^2) - 1)) (Wu, Chen, Wang 2020)" in out
    assert "warning: fedavg, 'silo-" in out
    assert "a proven lower bound for these settings" in out
    _, out, _ = call(monkeypatch, capsys, "run", config, *little, "--out", "x")
    assert "a proven lower bound" not in out
    pages = [path.read_text() for path in Path("x/statements").rglob("*.html")]
    assert all("What published formulas would report" in page for page in pages)
    assert any("a proven lower bound for these settings" in page for page in pages)


def test_epsilon_and_noise_are_inverse(monkeypatch, capsys):
    common = ("--rate", "0.3", "--steps", "603", "--delta", "1e-3")
    _, out, _ = call(monkeypatch, capsys, "epsilon", "--noise", "5", *common)
    assert float(out) == pytest.approx(5.19, abs=0.01)
    _, out, _ = call(monkeypatch, capsys, "noise", "--epsilon", "5.19", *common, "--json")
    assert json.loads(out)["noise"] == pytest.approx(5.0, abs=0.06)
    assert json.loads(out)["epsilon"] <= 5.19


def test_data_list_and_show(monkeypatch, capsys, tmp_path):
    _, out, _ = call(monkeypatch, capsys, "data", "list")
    assert "digits" in out
    (tmp_path / f"{'long' * 12}.csv").write_text("a,b")
    _, out, _ = call(monkeypatch, capsys, "data", "list", "--data-dir", tmp_path, columns=80)
    assert "…" not in out
    assert f"{'long' * 12}.csv" in "".join(line.split()[-1] for line in out.splitlines() if line.strip())
    _, out, _ = call(monkeypatch, capsys, "data", "show", "digits", "--silos", "4", "--partition", "shards")
    assert "4 silos" in out
    assert "█" in out
    _, out, _ = call(monkeypatch, capsys, "data", "show", "digits", "--silos", "4", "--json")
    assert json.loads(out)["silos"]["silo-3"] == {"train": 359, "test": 90}


def test_notes_are_said(config, monkeypatch, capsys):
    _, out, err = call(
        monkeypatch, capsys, "run", config, "--set", "privacy.delta=0.01", "--set", "train.batch=5000",
        "--set", "privacy.epsilon=2", "--json",
    )  # fmt: skip
    notes = json.loads(out)["notes"]
    assert any("is not below 1/n for 3 silo(s)" in note for note in notes)
    assert any("each of their batches is the whole silo (rate 1)" in note for note in notes)
    assert "whole silo" in err


def test_what_a_plan_remarks_is_a_note_for_both_commands(config, monkeypatch, capsys):
    """Under the unit silo a plan counts merges; that clips differ is no accident of the training."""
    whole = ("--set", 'privacy.unit="silo"', "--set", "train.seeds=1")
    _, out, _ = call(monkeypatch, capsys, "plan", config, *whole)
    assert "note: fedavg: budgets differ but all silos share one noise" in out
    assert "merges" in out
    assert "steps" not in out
    _, out, err = call(monkeypatch, capsys, "run", config, *whole)
    assert err.count("note: fedavg: budgets differ but all silos share one noise") == 1
    assert "warning:" not in err


def test_a_plan_shows_one_seed_and_says_that_others_draw_other_cohorts(config, monkeypatch, capsys):
    """A table for each seed would bury what they share; numbers are never cut at 80 columns."""
    whole = (
        "--set",
        'privacy.unit="silo"',
        "--set",
        "train.participation={poisson=0.5}",
        "--set",
        "train.seeds=3",
    )
    _, out, _ = call(monkeypatch, capsys, "plan", config, *whole, "--set", "train.rounds=40")
    assert out.count("Plan: fedavg") == 1
    said = " ".join(out.split())
    assert said.count("This is seed 0. Other seeds draw other cohorts: --json shows all.") == out.count(
        "Plan: "
    )
    assert "kB \n" in out
    assert not [line for line in out.splitlines() if line.split() == ["kB", "kB"]]
    _, out, _ = call(monkeypatch, capsys, "plan", config, "--set", "train.seeds=3")
    assert "other seeds" not in out


def test_methods_with_the_same_plan_share_a_table(config, monkeypatch, capsys):
    """Also if one sends nothing: the bytes are then said below. A method with more noise has its own."""
    more = '[[method]]\nname = "local"\n[[method]]\nname = "ditto"\n'
    config.write_text(config.read_text() + more)
    for columns in (80, 120):
        _, out, _ = call(monkeypatch, capsys, "plan", config, columns=columns)
        titles = [line.strip() for line in out.splitlines() if line.startswith("Plan: ")]
        assert titles == ["Plan: fedavg, mr-mtl lam={0.1, 1}, local", "Plan: ditto lam=1"]
        said = " ".join(out.split())
        assert "Bytes per silo: 5.2 kB up, 5.2 kB down (fedavg, mr-mtl lam={0.1, 1}); none (local)." in said
        heads = [line.split() for line in out.splitlines() if line.split()[:1] == ["silo"]]
        assert [head[-2:] for head in heads] == [["epsilon", "delta"], ["up", "down"]]


def test_noise_that_differs_between_methods_is_told_as_a_range(config, monkeypatch, capsys):
    config.write_text(config.read_text() + '[[method]]\nname = "ditto"\n')
    _, out, _ = call(monkeypatch, capsys, "run", config, "--out", "x")
    runs = json.loads(Path("x/result.json").read_text())["runs"]
    noises = [run["silos"]["silo-0"]["noise"] for run in runs]
    assert f"{min(noises):.2f} to {max(noises):.2f}" in out


def test_run_says_of_which_rows_nothing_protects(config, monkeypatch, capsys):
    """Of methods by their budgets, of a list of epsilons by its values; alike ones share a line."""
    config.write_text(config.read_text() + '[[method]]\nname = "fedavg"\nbudgets = "none"\n')
    few = ("--set", "train.seeds=1", "--set", "method.lam=1")
    _, out, _ = call(monkeypatch, capsys, "run", config, *few)
    assert "fedavg, mr-mtl: epsilon holds against the server" in out
    assert "fedavg budgets=none: nothing protects against the server" in out
    _, out, _ = call(monkeypatch, capsys, "plan", config, *few, "--set", "privacy.epsilon=[2,inf]")
    assert "fedavg epsilon=2, mr-mtl lam=1 epsilon=2: epsilon holds against the server" in out
    assert "mr-mtl lam=1 epsilon=inf, fedavg budgets=none: nothing protects against the server" in out


def test_models_that_diverge_are_warned_of(config, monkeypatch, capsys):
    changes = ("--set", "train.lr=1e30", "--set", "privacy.epsilon=inf", "--set", "model.name=mlp")
    _, out, err = call(monkeypatch, capsys, "run", config, *changes, "--json")
    result = json.loads(out)
    assert any("models diverged" in note for note in result["notes"])
    assert "warning: fedavg" in err
    assert result["summary"][0]["mean"] is None  # what predicts nothing has no score, also not by chance
    (path,) = Path("runs").iterdir()
    assert "| nan |" in (path / "summary.md").read_text()


def test_without_privacy_the_numbers_say_none(config, monkeypatch, capsys):
    _, out, _ = call(
        monkeypatch, capsys, "run", config, "--set", "privacy.epsilon=inf", "--json", "--out", "x"
    )
    run = json.loads(out)["runs"][0]
    assert run["silos"]["silo-0"]["epsilon"] is None
    assert run["silos"]["silo-0"]["noise"] == 0
    statement = json.loads(Path("x/statements/fedavg/silo-0.json").read_text())
    assert statement["guarantee"]["bound"] == "none"
    assert statement["guarantee"]["epsilon"] is None


def test_help_does_not_import_torch():
    code = """
import sys
from coterie.cli import main as cli
sys.argv = ["coterie", "--help"]
try:
    cli.main()
except SystemExit:
    pass
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_tight_epsilon_shows_both_bounds_and_flags_the_central_limit(monkeypatch, capsys):
    asked = ["epsilon", "--noise", "0.6", "--rate", "0.01", "--steps", "500", "--delta", "1e-5", "--tight"]
    code, out, err = call(monkeypatch, capsys, *asked)
    assert code == 0
    assert "at most, 5.79" in out
    assert "3.72" in out
    assert "below 5.79" in err
    code, out, _ = call(monkeypatch, capsys, *asked, "--json")
    found = json.loads(out)
    assert 5.79 <= found["lower"] <= found["epsilon"] <= 5.81
    assert found["by"] == "pld"
    assert len(found["warnings"]) == 1
    code, out, _ = call(monkeypatch, capsys, *asked[:-1], "--adjacency", "replace-one", "--json")
    assert json.loads(out)["epsilon"] > found["epsilon"]
