"""What `ledger show` and `ledger verify` tell a reader who cannot see it in the rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import coterie
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.identity import Identity
from coterie.privacy.ledger.ledger import open_ledger
from coterie.privacy.ledger.place import check_ledgers
from tests.helpers import call

SILOS = ("north", "south", "east", "west")


def opened(folder, silo="north", witness=None, keys=None, filter="basic"):
    """Open a ledger with a run of ten rounds in the unit 'example'."""
    who = Identity("school", silo, 100)
    return open_ledger(Path(folder), who, (20.0, 1e-3), filter=filter, custody=Custody.of(keys, witness))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with another witness, "remote"."""
    monkeypatch.chdir(tmp_path)
    Path("remote").mkdir()
    return tmp_path


def test_ledgers_that_no_witness_knows_are_not_called_right(place, monkeypatch, capsys):
    for silo in SILOS:
        opened("kept", silo, "remote").close()
    said = "no witness knows the ledgers of 'east', 'north', 'south' and 1 more, so an old copy would not be"
    code, out, err = call(monkeypatch, capsys, "ledger", "verify", "kept")
    assert (code, f"coterie: all rows are right, but {said} noticed: give --witness FOLDER" in err) == (
        2,
        True,
    )
    assert "are right" not in out
    code, out, _ = call(monkeypatch, capsys, "ledger", "verify", "kept", "--json")
    assert (code, said in json.loads(out)["problems"][0]) == (2, True)
    code, out, _ = call(monkeypatch, capsys, "ledger", "show", "kept")
    assert (code, f"warning: {said}" in out) == (0, True)
    code, out, _ = call(monkeypatch, capsys, "ledger", "show", "kept", "--json")
    assert said in json.loads(out)["warnings"][0]
    assert {report.witnessed for report in coterie.read_ledgers("kept")} == {None}
    code, out, err = call(monkeypatch, capsys, "ledger", "verify", "kept", "--witness", "remote")
    assert (code, out.splitlines()[-1], err) == (0, "All 4 ledgers are right.", "")
    out = call(monkeypatch, capsys, "ledger", "show", "kept", "--witness", "remote")[1]
    assert "warning" not in out
    one = next(Path("kept").glob("*.sqlite"))
    code, _, err = call(monkeypatch, capsys, "ledger", "verify", one)
    assert (code, "but no witness knows the ledger of '" in err) == (2, True)


def test_a_ledger_that_no_witness_knows_hides_no_other_problem(place, monkeypatch, capsys):
    opened("kept", "north", "remote").close()
    Path("kept/stray.sqlite").write_text("this is no ledger")
    code, _, err = call(monkeypatch, capsys, "ledger", "verify", "kept")
    assert (code, "have 2 problems" in err, "  no witness knows the ledger of 'north'" in err) == (
        2,
        True,
        True,
    )
    assert "all rows are right" not in err


def test_a_deleted_ledger_whose_key_is_left_is_a_problem(place, monkeypatch, capsys):
    for silo in SILOS:
        book = opened("kept", silo)
        book.close()
    book.path.unlink()
    said = f"ledger '{book.path}' is missing, although its key is there and the witness"
    code, _, err = call(monkeypatch, capsys, "ledger", "verify", "kept")
    assert (code, said in err, "has seen 1 changes until" in err) == (2, True, True)
    assert call(monkeypatch, capsys, "ledger", "show", "kept")[0] == 2
    assert said in check_ledgers("kept")[1][0]
    assert call(monkeypatch, capsys, "ledger", "recover", book.path, "--reason", "deleted")[0] == 0
    assert call(monkeypatch, capsys, "ledger", "verify", "kept")[0] == 0


def test_a_key_beside_the_ledgers_that_never_signed_one_is_no_problem(place, monkeypatch, capsys):
    opened("kept").close()
    coterie.new_key("kept", "south")
    assert call(monkeypatch, capsys, "ledger", "verify", "kept")[0] == 0


def test_a_ledger_that_is_gone_without_a_trace_is_a_warning(place, monkeypatch, capsys):
    """A witness knows data sets, not folders: the ledger may rightly be in another one."""
    for silo in SILOS[:2]:
        coterie.new_key("keys", silo)
        book = opened("kept", silo, keys="keys")
        book.close()
    other = open_ledger(place / "others", Identity("hospital", "north", 9), (20.0, 1e-3))  # of other data
    other.close()
    shutil.move(book.path, place)
    for command in ("verify", "show"):
        code, out, _ = call(monkeypatch, capsys, "ledger", command, "kept")
        assert code == 0
        assert "warning: the witness" in out
        assert "also knows ledgers of this data that 'kept' does not have, of 'south': if they are" in out
        assert f"coterie ledger recover {book.path} --reason WHY" in out
        out = call(monkeypatch, capsys, "ledger", command, "kept", "--json")[1]
        assert len(json.loads(out)["warnings"]) == 1
        assert "warning" not in call(monkeypatch, capsys, "ledger", command, other.path.parent)[1]
        assert "warning" not in call(monkeypatch, capsys, "ledger", command, place / book.path.name)[1]
