"""The command line: bad settings and bad tables are one sentence, and nothing is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.helpers import call


def csv(tmp_path, rows) -> str:
    path = tmp_path / "t.csv"
    path.write_text("silo,x,y\n" + "\n".join(rows) + "\n")
    return f'data.source="{path}"'


COLUMNS = ('data.silo_column="silo"', 'data.target_column="y"')


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (['data.source="nowhere.csv"'], "'nowhere.csv' does not exist"),
        (['data.source="mnst"'], "is not built in"),
        (["privacy.epsilon=0"], "privacy.epsilon: expected a number > 0"),
        (["privacy.epsilon=1e-9", "privacy.delta=1e-12"], "cannot be reached with noise up to 1e+06"),
        (["privacy.clip=0"], "privacy.clip: expected a finite number > 0, got 0"),
        (
            ["privacy.unit=silo", "privacy.clip={each=[1,2]}"],
            "the merge of all silos has one noise",
        ),
        (["privacy.epsilon={a=1}"], "there is no silo 'a'"),
        (["model.name=lin"], "unknown model 'lin'; did you mean 'linear'?"),
        (["model.name=nowhere:net"], "put it there, or allow it with --allow nowhere"),
        (["model.hidden=3"], "'linear' has no such setting (it has: bias)"),
        (["model.loss=hinge"], "needs two classes, but the data has 10"),
        (["model.loss=squared", "data.target_range=[0,9]", "model.bias=1", "data.silos=1800"], "1800 silos"),
        (["train.memory=1000"], "train.memory: 8 examples"),
        (["train.device=cuda"], "train.device: 'cuda' cannot be used here"),
        (["data.test=official"], "no official split"),
        (["method.lam=[0.1, 0.1]"], "'mr-mtl lam=0.1' appears twice"),
        (["method.lam=-1"], "method[1].lam: expected a number >= 0 or 'auto', got -1"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(config, monkeypatch, capsys, changes, said):
    arguments = [part for change in changes for part in ("--set", change)]
    before = set(Path().iterdir())
    code, out, err = call(monkeypatch, capsys, "run", config, *arguments)
    assert code == 2
    assert said in err
    assert out == ""
    assert "Traceback" not in err
    assert set(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["a,1,1", "a,2,0", "b,1,"], "column 'y' of 't.csv' has 1 missing value(s), the first in row 3"),
        (["a,1,1", "a,2,0", "b,1,1"], "silo 'b' has 1 example(s), it needs at least 2"),
        (["a,1,1", "a,2,0", "b,,1", "b,2,0"], "column 'x' of 't.csv' has 1 missing value(s)"),
        (["a,1,1", "a,2,0", "b,inf,1", "b,2,0"], "column 'x' of 't.csv' has an infinite value in row 3"),
        (["a,1,no", "a,2,no", "b,1,no", "b,2,maybe"] + ["a,1,no"] * 3, "which no silo has in training"),
    ],
)
def test_bad_tables(config, tmp_path, monkeypatch, capsys, rows, said):
    if "which no silo" in said:
        monkeypatch.setattr("coterie.data.federation.held_out_rows", _last_is_test)
    source = csv(tmp_path, rows)
    arguments = [part for change in (source, *COLUMNS) for part in ("--set", change)]
    code, _, err = call(monkeypatch, capsys, "run", config, *arguments, "--set", "data.silos=2")
    assert code == 2
    assert said in err
    assert not Path("runs").exists()


def _last_is_test(name, rows, split, test, seed):
    import numpy as np

    return np.arange(len(rows)) == len(rows) - 1


def test_every_method_that_cannot_run_is_told(tmp_path, monkeypatch, capsys):
    path = tmp_path / "c.toml"
    methods = (
        '[[method]]\nname = "ifca"\nclusters = 50\n[[method]]\nname = "fedavg"\n[[method]]\nname = "mocha"\n'
    )
    path.write_text(f"data.rows = 200\nprivacy.epsilon = 1\ntrain.rounds = 2\n{methods}")
    code, _, err = call(monkeypatch, capsys, "plan", str(path))
    assert code == 2
    assert (
        "coterie: ifca clusters=50 choosing=0.1 spend=0.1 least=0.25: clusters must be at most the number of silos, 10, got 50"
        in " ".join(err.split())
    )
    code, _, err = call(monkeypatch, capsys, "plan", str(path), "--set", "privacy.unit=silo")
    assert code == 2
    told = " ".join(err.split())
    assert "2 of 3 methods cannot run: ifca" in told
    assert "mocha" in told


def test_files_that_cannot_be_read_are_told_without_numbers_of_errors(config, monkeypatch, capsys, tmp_path):
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    related = tmp_path / "related.toml"
    related.write_text(config.read_text() + f'[[method]]\nname = "related"\nrelations = "{folder}"\n')
    for arguments, said in (
        (("run", folder), f"cannot read the config file '{folder}': is a directory"),
        (("run", tmp_path / "binary.toml"), "binary.toml': it is not text"),
        (("statement", "verify", "nowhere"), "statement 'nowhere' cannot be read: no such file or directory"),
        (("run", related), "is a directory"),
    ):
        code, _, err = call(monkeypatch, capsys, *map(str, arguments))
        assert code == 2
        assert said in err.replace("\n", "")
        assert "Errno" not in err
        assert "codec" not in err


def test_cohorts_are_shares_or_numbers_of_silos(config, monkeypatch, capsys):
    plans = []
    for how in ("{cohort=2}", str(2 / 3)):
        whole = ("--set", 'privacy.unit="silo"', "--set", f"train.participation={how}")
        _, out, _ = call(monkeypatch, capsys, "plan", config, *whole, "--json")
        found = json.loads(out)["plans"]
        plans.append([variant["silos"] for plan in found for variant in plan["variants"]])
    assert plans[0] == plans[1]
    code, _, err = call(monkeypatch, capsys, "plan", config, "--set", "train.participation={cohort=99}")
    assert code == 2
    assert "train.participation: a cohort of 99 is larger than the federation, which has" in err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--rounds", "3"), "No such option: --rounds. To change a key of CONFIG: --set train.rounds=3"),
        (("--epsilon=2",), "--set privacy.epsilon=2"),
        (("--target-column", "y"), "--set data.target_column=y"),
        (("--seeds",), "--set train.seeds=VALUE"),
        (("--foo",), "No such option: --foo"),
    ],
)
@pytest.mark.parametrize("command", [("run",), ("plan",), ("ledger", "open")], ids=" ".join)
def test_a_key_given_as_an_option_is_told_how_to_be_set(config, monkeypatch, capsys, command, option, said):
    if command == ("ledger", "open") and option[0].startswith("--epsilon"):
        return  # an option there
    code, _, err = call(monkeypatch, capsys, *command, config, *option, columns=200)
    assert code == 2
    assert said in " ".join(err.split())


def test_names_of_arguments_are_those_of_the_usage(monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "predict")
    assert code == 2
    assert "predict [OPTIONS] MODEL CSV" in err
    assert "Missing argument 'MODEL'" in err
    _, out, _ = call(monkeypatch, capsys, "predict", "--help")
    assert {"MODEL", "CSV"} <= set(out.split())
    assert "rows" not in out.replace("raw rows", "").replace("Rows", "")


def test_an_error_in_a_pipe_begins_with_its_sentence(config, monkeypatch, capsys):
    """Bars that never appeared leave no empty line."""
    arguments = ("run", config, "--set", "method.name=local", "--ledger", "ledgers")
    code, _, err = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert err.startswith("coterie: ")


def test_lines_of_ledgers_and_statements_fit_the_terminal(tmp_path, monkeypatch, capsys):
    """A terminal gets them wrapped; the table of ledgers shows every number at 72 columns."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(
        "data.rows = 200\ndata.silos = 3\ntrain.rounds = 1\nprivacy = {epsilon = 4, delta = 1e-3}\n"
        '[[method]]\nname = "fedavg"\n'
    )
    assert call(monkeypatch, capsys, "run", "c.toml", "--ledger", "ledgers", "--out", "study")[0] == 0
    commands = (
        ("ledger", "verify", "ledgers"),
        ("ledger", "show", "ledgers"),
        ("statement", "verify", "study/statements/fedavg/silo-0.json", "--ledger", "ledgers"),
    )
    monkeypatch.setenv("TERM", "dumb")  # no colours
    for command in commands:
        _, piped, _ = call(monkeypatch, capsys, *command, columns=72)
        with monkeypatch.context() as terminal:
            terminal.setattr(sys.stdout, "isatty", lambda: True)
            _, shown, _ = call(monkeypatch, capsys, *command, columns=72)
        assert [line for line in shown.splitlines() if len(line) > 72] == []
        assert shown.split() == piped.split()
        assert "…" not in shown
        assert "silo-0" in shown
