"""New configurations: written for a table, or copied from the examples, which are part of the package."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import coterie as ct
from coterie.experiment.config.schema import read
from coterie.experiment.starter import EXAMPLES, list_examples, new_config
from tests.helpers import call, refused
from tests.source_files import archive

ROOT = Path(__file__).resolve().parents[1]
CLINICS = ROOT / "examples" / "clinics.csv"
BOUNDS = "{ age = [18, 108], stays = [0, 10], creatinine = [0, 4], pulse = [40, 160], admitted = [21, 25], discharged = [21, 25] }"


def test_a_configuration_for_a_table_is_commented_and_complete(tmp_path):
    made = new_config(tmp_path / "c.toml", CLINICS, changes=["train.rounds=2", "data.feature_range=[0, 100]"])
    assert made.files == (tmp_path / "c.toml",)
    text = (tmp_path / "c.toml").read_text()
    content = tomllib.loads(text)
    assert content["data"]["silo_column"] == "clinic"
    assert content["data"]["categories"] == {"ward": ["emergency", "medicine", "surgery"]}
    assert content["train"]["rounds"] == 2
    assert content["privacy"]["delta"] == 1e-4  # the largest clinic has 180 rows
    assert "# guessed from its name: does it hold the silo of each row?" in text
    result = ct.run(tmp_path / "c.toml")
    assert [row["method"] for row in result.summary] == ["local", "mr-mtl-auto"]


def test_a_configuration_finds_its_data_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "t.csv").write_text(CLINICS.read_text())
    monkeypatch.chdir(tmp_path / "here")
    new_config("c.toml", "../t.csv")
    assert tomllib.loads(Path("c.toml").read_text())["data"]["source"] == "../t.csv"
    monkeypatch.chdir(tmp_path)
    assert len(ct.plan("here/c.toml").study.experiments[0].federation) == 4


def test_other_data_and_none_at_all(tmp_path):
    new_config(tmp_path / "a.toml", archive(tmp_path))
    assert tomllib.loads((tmp_path / "a.toml").read_text())["data"] == {"source": "made.npz"}
    new_config(tmp_path / "b.toml")
    assert tomllib.loads((tmp_path / "b.toml").read_text())["data"]["source"] == "digits"
    assert read(tmp_path / "b.toml").data.silos == 10


def test_nothing_is_overwritten_and_wrong_changes_write_nothing(tmp_path):
    path = tmp_path / "c.toml"
    with pytest.raises(ct.Problem, match=r"privacy\.epsilon: expected a number > 0"):
        new_config(path, changes=["privacy.epsilon=-1"])
    assert not path.exists()
    path.write_text("mine")
    with refused(f"'{path}' exists, and nothing is overwritten: choose another name"):
        new_config(path)
    assert path.read_text() == "mine"
    with refused("nothing is overwritten: choose another folder"):
        (tmp_path / "own_csv.toml").touch()
        new_config(tmp_path / "x.toml", example="own_csv")
    assert not (tmp_path / "clinics.csv").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"source": "nowhere.csv"}, "data.source: 'nowhere.csv' does not exist"),
        ({"source": __file__}, "has no known format"),
        ({"example": "digit"}, "example: there is no 'digit'; did you mean 'digits'?"),
        ({"example": "digits", "source": CLINICS}, "example: it is copied as it is; leave out the data"),
        ({"source": CLINICS, "silo_column": "clinics"}, "data.silo_column: '"),
        ({"changes": ["train.round=2"]}, "train.round: unknown key; did you mean 'rounds'?"),
    ],
)
def test_wrong_arguments(tmp_path, given, words):
    with pytest.raises(ct.Problem) as problem:
        new_config(tmp_path / "c.toml", **given)
    assert words in str(problem.value)
    assert not (tmp_path / "c.toml").exists()


@pytest.mark.parametrize("name", list_examples())
def test_examples_are_copied_with_what_they_need(tmp_path, name):
    made = new_config(tmp_path / "any.toml", example=name)
    for path in made.files:
        assert path.read_bytes() == (ROOT / "examples" / path.name).read_bytes()
    assert {path.name for path in made.files} == {
        "own_csv": {"own_csv.toml", "clinics.csv"},
    }.get(name, {made.files[0].name})
    assert made.files[0].stem == name


def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(
        monkeypatch, capsys, "init", CLINICS, "--set", "train.rounds=3", "--target-column", "ward"
    )
    assert code == 0
    assert "Wrote coterie.toml." in out
    assert tomllib.loads(Path("coterie.toml").read_text())["data"]["target_column"] == "ward"
    assert call(monkeypatch, capsys, "init")[0] == 2
    code, out, _ = call(monkeypatch, capsys, "init", "--example", "own_csv", "--json")
    assert json.loads(out)["files"] == ["own_csv.toml", "clinics.csv"]
    code, out, _ = call(monkeypatch, capsys, "init", "--list", "--json")
    assert json.loads(out) == list_examples()


def test_examples_are_part_of_the_wheel(tmp_path):
    """The package's folder of examples is the repository's: nothing is there twice, and all are installed."""
    assert EXAMPLES.is_symlink()
    assert EXAMPLES.resolve() == ROOT / "examples"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if files.returncode:
        pytest.skip("not a git checkout, so there is no list of the files to build from")
    for name in filter(None, files.stdout.split("\0")):
        if name.startswith(("coterie/examples", "examples/", "coterie/data/")) or "/" not in name:
            target = tmp_path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to((ROOT / name).readlink()) if (ROOT / name).is_symlink() else target.write_bytes(
                (ROOT / name).read_bytes()
            )
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]) as wheel:
        names = {Path(name).name for name in wheel.namelist() if name.startswith("coterie/examples/")}
    assert names == {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}


def test_twelve_hospitals_in_six_commands(tmp_path, monkeypatch, capsys):
    """From a table with ids, dates, missing values and rare words to predictions for new patients."""
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(ROOT / "examples" / "hospitals.py"))
    example["write_tables"](tmp_path)
    method = "mr-mtl-auto-share-0.5-limit-1"
    statement, model = f"study/statements/{method}/north.json", f"study/models/{method}/north.safetensors"
    commands = [
        ("data", "show", "hospitals.csv"),
        ("init", "hospitals.csv", "--out", "hospitals.toml", "--set", f"data.feature_range = {BOUNDS}"),
        ("plan", "hospitals.toml"),
        ("run", "hospitals.toml", "--out", "study"),
        ("statement", "show", statement),
        ("predict", model, "new_patients.csv", "--out", "predictions.csv"),
    ]
    said = []
    for command in commands:
        code, out, err = call(monkeypatch, capsys, *command)
        assert code == 0, err
        said.append(out)
    data = tomllib.loads(Path("hospitals.toml").read_text())["data"]
    assert tomllib.loads(Path("hospitals.toml").read_text())["privacy"]["unit"] == "person"
    assert data["person_column"] == "patient_id"
    assert data["drop"] == ["stay_id", "consent"]
    assert set(data["missing"]) == {"sex", "creatinine", "pulse"}
    assert set(data["dates"]) == {"admitted", "discharged"}
    assert "left out: looks like ids" in said[0]
    assert "auc" in said[3]
    predicted = Path("predictions.csv").read_text().splitlines()
    assert len(predicted) == len(Path("new_patients.csv").read_text().splitlines())
    scores = example["compare"](Path("study"))
    assert 0.73 < scores[method] < scores["pooled, without privacy"] < 0.9
    assert scores["local"] < scores[method] - 0.03
    uncovered = json.loads(Path(statement).read_text())["not_covered"]
    assert not any("text columns" in line or "look like ids" in line for line in uncovered)
