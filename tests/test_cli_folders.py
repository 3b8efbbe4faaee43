"""The command line: folders in use are kept, and an interrupted run goes on in its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import call


def test_a_folder_in_use_is_not_touched(config, monkeypatch, capsys):
    Path("afile").write_text("keep")
    code, _, err = call(monkeypatch, capsys, "run", config, "--out", "afile")
    assert (code, Path("afile").read_text()) == (2, "keep")
    assert "'afile' is a file; expected a folder" in err
    code, _, err = call(monkeypatch, capsys, "run", config, "--out", "/proc/nowhere")
    assert code == 2
    assert "out: cannot write to '/proc/nowhere'" in err
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("keep")
    code, _, err = call(monkeypatch, capsys, "run", config, "--out", "mine")
    assert code == 2
    assert "holds something else" in err
    assert [p.name for p in Path("mine").iterdir()] == ["notes.txt"]
    call(monkeypatch, capsys, "run", config, "--out", "done")
    code, _, err = call(monkeypatch, capsys, "run", config, "--out", "done")
    assert code == 2
    assert "already holds this result" in err


@pytest.mark.parametrize("change", ["epsilon", "missing file"])
def test_going_on_trusts_the_plan_not_the_file(config, monkeypatch, capsys, change):
    """A finished method whose record or files do not fit the plan is trained again."""
    arguments = ("run", config, "--out", "here", "--json")
    _, out, _ = call(monkeypatch, capsys, *arguments)
    whole = json.loads(out)
    half = {**json.loads(out), "complete": False}
    half["runs"] = [r for r in half["runs"] if r["method"] == "fedavg"]
    if change == "epsilon":
        for run in half["runs"]:
            run["silos"]["silo-0"]["epsilon"] = 0.001
    else:
        Path("here/models/fedavg/silo-1.safetensors").unlink()
    Path("here/result.json").write_text(json.dumps(half))
    _, out, _ = call(monkeypatch, capsys, *arguments)
    finished = json.loads(out)
    assert [r["score"] for r in finished["runs"]] == [r["score"] for r in whole["runs"]]
    assert finished["runs"][0]["silos"] == whole["runs"][0]["silos"]
    assert Path("here/models/fedavg/silo-1.safetensors").exists()


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"complete": false, "runs": [1]}', '{"complete": false, "runs": [{}]}']
)
def test_a_damaged_result_is_refused(config, monkeypatch, capsys, content):
    call(monkeypatch, capsys, "run", config, "--out", "here")
    Path("here/result.json").write_text(content)
    code, _, err = call(monkeypatch, capsys, "run", config, "--out", "here")
    assert code == 2
    assert "is damaged; choose another folder" in err


def start(*arguments, **environment) -> subprocess.Popen:
    """Start the command; a shell that runs the tests in its background has children ignore Ctrl-C."""
    return subprocess.Popen(
        [sys.executable, "-m", "coterie.cli.main", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(config):
    """Interrupted in its second method, a run keeps the first, and the same command finishes it."""
    changes = ["--set", "train.rounds=1500", "--set", "train.seeds=1", "--set", "method.lam=0.1"]
    process = start("run", config, *changes, "--set", "train.steps=1", "--out", "kept")
    deadline = time.monotonic() + 120
    while not Path("kept/result.json").exists():
        assert time.monotonic() < deadline, "the first method did not finish"
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "To resume, run the same command with --out kept" in err
    halfway = json.loads(Path("kept/result.json").read_text())
    assert halfway["complete"] is False
    assert [r["method"] for r in halfway["runs"]] == ["fedavg"]
    process = start("run", config, *changes, "--set", "train.steps=1", "--out", "kept", "--json")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    finished = json.loads(out)
    assert finished["complete"] is True
    assert [r["method"] for r in finished["runs"]] == ["fedavg", "mr-mtl"]
    assert finished["runs"][0] == halfway["runs"][0]
