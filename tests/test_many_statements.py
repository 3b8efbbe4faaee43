"""Checking several statements at once: files, folders, a folder of keys; every problem is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.cli.output import without_python
from coterie.privacy.keys import new_key, read_key, read_public_key
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.file import find_statements, verify
from tests.helpers import call, refused
from tests.test_statement import make

SILOS = ("north", "lake")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the signed statements of two silos, and another with their keys."""
    monkeypatch.chdir(tmp_path)
    Path("kept/deep").mkdir(parents=True)
    for silo in SILOS:
        new_key("keys", silo)
        content = make(silo=silo, key=read_key(Path("keys", f"{silo}.key")))
        Path("kept/deep", f"{silo}.json").write_text(text_of(content))
    Path("kept/result.json").write_text('{"complete": true}')
    return Path("kept")


def test_a_folder_is_searched_and_each_silo_has_its_key(folder, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "statement", "verify", folder, "--key", "keys")
    assert code == 0
    assert out.splitlines()[-1] == "All 2 statements are right."
    assert out.count("which is the key you gave") == 2
    deep = folder / "deep"
    assert find_statements([folder, deep / "lake.json"]) == [deep / "lake.json", deep / "north.json"]
    code, out, _ = call(
        monkeypatch, capsys, "statement", "verify", deep / "north.json", "--key", "keys", "--json"
    )
    (facts,) = json.loads(out)
    assert (code, facts["silo"], facts["verified"], facts["delta"]) == (0, "north", True, 1e-5)
    with refused("there is no statement in the folder 'keys'"):
        find_statements(["keys"])


def test_all_that_is_wrong_is_told_at_once(folder, monkeypatch, capsys):
    north, lake = folder / "deep" / "north.json", folder / "deep" / "lake.json"
    good = make(silo="hill")
    (folder / "hill.json").write_text(text_of(good))
    north.write_text(north.read_text()[:900])
    line = north.read_text().count("\n") + 1
    lake.write_text(lake.read_text().replace('"budget": 6.0', '"budget": 5.0'))
    code, out, err = call(monkeypatch, capsys, "statement", "verify", folder)
    assert code == 2
    assert "hill.json: recomputed" in out
    assert "2 of 3 statements are wrong:" in err
    assert f"{lake}: statement: the file was changed" in err
    assert (
        f"{north}: statement: the file is not complete JSON (line {line}): it was cut off or changed" in err
    )
    code, out, _ = call(monkeypatch, capsys, "statement", "verify", folder, "--json")
    assert code == 2
    assert sorted(row["verified"] for row in json.loads(out)) == [False, False, True]


def test_a_key_of_another_silo_is_named(folder):
    lake = read_public_key("keys/lake.pub").id
    with refused(f"for 'north'; the key you gave is {lake} of 'lake'"):
        verify(folder / "deep" / "north.json", key="keys/lake.pub")
    Path("keys/north.pub").unlink()
    verify(folder / "deep" / "north.json", key="keys")  # the private file names the same key
    Path("keys/north.key").unlink()
    with refused("there is no key of 'north' in 'keys', which has keys of 'lake'"):
        verify(folder / "deep" / "north.json", key="keys")
    verify(folder / "deep" / "lake.json", key="keys")


def test_a_stranger_who_calls_himself_a_silo_is_refused(folder):
    """The key is chosen by the silo's name; a statement cannot bring its own."""
    new_key("strangers", "north")
    content = make(silo="north", key=read_key(Path("strangers/north.key")))
    Path("forged.json").write_text(text_of(content))
    with refused("statement: issuer: it was signed with key"):
        verify("forged.json", key="keys")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            "coterie-statement/4",
            "statements before version 5 lack facts that this check needs; check them with",
        ),
        ("coterie-statement/6", "it was written by a newer version; upgrade Coterie"),
        ("other/6", "expected the schema coterie-statement/5, got 'other/6'"),
    ],
)
def test_statements_of_other_versions(tmp_path, schema, said):
    (tmp_path / "s.json").write_text(text_of(make() | {"schema": schema}))
    with refused(said):
        verify(tmp_path / "s.json")


def test_the_command_line_leaves_out_what_is_for_python():
    said = "raise the budgets (`coterie ledger budget`, or set_budget in Python), then run the same again"
    assert without_python(said) == "raise the budgets (`coterie ledger budget`), then run the same again"
    why = "requires saying so (--raise --reason WHY, or higher=True, reason=... in Python)"
    assert without_python(why) == "requires saying so (--raise --reason WHY)"


def test_help_says_where_things_are(monkeypatch, capsys):
    _, out, _ = call(monkeypatch, capsys, "ledger", "open", "--help")
    plain = " ".join(out.replace("\u2502", " ").split())
    assert "Folder for the new ledgers" in plain
    assert "meter the run" not in plain
    assert "~/.local/state" in plain
