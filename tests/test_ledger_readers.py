"""What `ledger show` and `ledger verify` tell a reader who cannot see it in the rows."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

import coterie
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.identity import Identity
from coterie.privacy.ledger.ledger import open_ledger
from coterie.privacy.ledger.place import check_ledgers
from tests.books import plan
from tests.helpers import call, refused

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


def test_a_key_is_changed_only_if_the_old_one_vouches_or_is_said_to_be_lost(place, monkeypatch, capsys):
    """Before, a forgotten --old broke the chain of trust, and nobody was asked."""
    books = []
    for silo in SILOS[:2]:
        coterie.new_key("new", silo)
        coterie.new_key("old", silo)
        books.append(opened("kept", silo, keys="old" if silo == "south" else None))
        books[-1].close()
    asked = ("ledger", "rekey", "kept", "--keys", "new", "--reason", "tidy")
    old = coterie.read_public_key("old/south.pub").id
    code, _, err = call(monkeypatch, capsys, *asked)
    assert (code, f"its old key {old} is not in '{books[1].path.with_suffix('.key')}'" in err) == (2, True)
    assert "say where it is (--old), or that it is lost (--old-key-lost" in err
    assert [report.sequence for report in coterie.read_ledgers("kept")] == [1, 1]  # also that of north
    Path("old/south.key").rename("south.key")
    with refused(f"its old key {old} is not in 'old'"):
        coterie.rekey_ledgers(books[1].path, "tidy", "new", old="old")
    coterie.rekey_ledgers("kept", "the old one burnt", "new", old_key_lost=True)
    notes = [report.notes for report in coterie.read_ledgers("kept")]
    assert notes == [(), ("a new key at row 3, for which the old one does not vouch",)]


def test_verify_says_how_many_keys_signed(place, monkeypatch, capsys):
    book = opened("kept")
    book.close()
    first, new = coterie.read_ledgers("kept")[0].key, coterie.new_key("new", "north").id
    assert (
        f"; 1 changes signed with key {first}, its"
        in call(monkeypatch, capsys, "ledger", "verify", "kept")[1]
    )
    coterie.rekey_ledgers("kept", "tidy", "new")
    said = f"; 2 changes, the last one signed with key {new}; 2 keys so far, its witness has seen 2"
    assert said in call(monkeypatch, capsys, "ledger", "verify", "kept")[1]
    assert coterie.read_ledgers("kept")[0].keys == 2
    book.path.unlink()
    third = coterie.new_key("third", "north").id
    with refused(f"knows key {new}, but key {third} would sign it from now on"):
        coterie.recover_ledgers(book.path, "deleted", keys="third")
    coterie.recover_ledgers(book.path, "deleted", keys="third", new_key=True)
    out = call(monkeypatch, capsys, "ledger", "verify", "kept")[1]
    assert f"; 3 changes, the last one signed with key {third}; 2 keys so far" in out
    assert not coterie.read_ledgers("kept")[0].carried  # nothing had been spent
    assert f"recovered at row 3: deleted; its witness knew key {new}, and this ledger is signed with" in out


def test_a_lost_ledger_is_not_signed_with_a_new_key_unless_somebody_accepts_it(place, monkeypatch, capsys):
    coterie.new_key("keys", "north")
    book = opened("kept", keys="keys")
    book.claim(plan())
    book.close()
    book.path.unlink()
    asked = ("ledger", "recover", book.path, "--reason", "deleted")
    code, _, err = call(monkeypatch, capsys, *asked)
    known = coterie.read_public_key("keys/north.pub").id
    assert (code, f"knows key {known}, but a new key would sign it from now on: give the old" in err) == (
        2,
        True,
    )
    assert list(Path("kept").iterdir()) == []
    code, out, _ = call(monkeypatch, capsys, *asked, "--keys", "keys")
    assert (code, f"signed with key {known} from now on" in out) == (0, True)
    book.path.unlink()
    code, out, _ = call(monkeypatch, capsys, *asked, "--new-key")
    (report,) = coterie.read_ledgers("kept")
    assert (code, f"signed with key {report.key} from now on" in out, report.key == known) == (0, True, False)
    out = call(monkeypatch, capsys, "ledger", "show", "kept")[1]
    assert (report.carried, "0 + lost" in out, "lost: what the witness knew of runs" in out) == (True,) * 3


def test_a_forgotten_witness_is_named_as_the_cause(place, monkeypatch):
    book = opened("kept", witness="remote")
    book.claim(plan())
    book.close()
    with refused("does not know it, although it has been changed before: if it was made with another witness,"
                 " name that one (--witness FOLDER or COTERIE_WITNESS); if that one is lost"):  # fmt: skip
        opened("kept")


def test_a_raised_budget_stays_visible(place, monkeypatch, capsys):
    opened("kept").close()
    coterie.set_budget("kept", 15.0, 1e-3)
    coterie.set_budget("kept", 60.0, 1e-3, higher=True, reason="the study was prolonged")
    coterie.set_budget("kept", 60.0, 2e-3, higher=True, reason="more delta")
    coterie.set_budget("kept", 9.0, 1e-2, unit="silo")
    coterie.set_budget("kept", 10.0, 1e-2, unit="silo", higher=True, reason="whole silos")
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    told = (
        f"budget raised from 15 to 60 on {day}: the study was prolonged",
        f"budget raised its delta from 0.001 to 0.002 on {day}: more delta",
        f"budget in the unit 'silo' raised from 9 to 10 on {day}: whole silos",
    )
    assert coterie.read_ledgers("kept")[0].notes == told
    for command in ("show", "verify"):
        out = call(monkeypatch, capsys, "ledger", command, "kept")[1]
        assert [note in out for note in told] == [True] * 3
    coterie.new_key("new", "north")
    out = call(monkeypatch, capsys, "ledger", "rekey", "kept", "--keys", "new", "--reason", "tidy")[1]
    assert "; the old key vouches for it" in out
    assert "raised" not in out


@pytest.mark.parametrize("filter", ["basic", "gdp", "rdp"])
def test_an_unfinished_run_is_shown_and_can_be_resumed(place, monkeypatch, capsys, filter):
    book = opened("kept", filter=filter)
    done, last, part, stopped = (book.claim(plan()).run for _ in range(4))
    book.commit(book.reserve(done, 0, 10).seq, "x")
    book.reserve(last, 0, 10)  # killed in its last rounds
    book.reserve(part, 0, 4)
    book.commit(book.reserve(stopped, 0, 5).seq, "x", 3)  # Ctrl-C
    book.close()
    (report,) = coterie.read_ledgers("kept")
    assert report.unfinished == (
        (last, "fedavg", 10, 10),
        (part, "fedavg", 4, 10),
        (stopped, "fedavg", 3, 10),
    )
    out = call(monkeypatch, capsys, "ledger", "show", "kept")[1]
    for run, reserved in ((last, 10), (part, 4), (stopped, 3)):
        said = (
            f"north: run {run} (fedavg) is not finished: it reserved rounds up to {reserved} of 10, and stays"
        )
        assert (said in out) is not (filter == "rdp" and run == part)  # which may be released
    assert f"run {done} " not in out
    asked = ("ledger", "release", "kept", "all", "--reason", "abandoned")
    if filter == "rdp":
        assert call(monkeypatch, capsys, *asked)[0] == 0
    code, _, err = call(monkeypatch, capsys, *asked)
    assert (code, "there is nothing to release; unfinished runs (" in err) == (2, True)
    assert f"such as run {last} (fedavg) of 'north', have reserved rounds, so they stay charged" in err
    assert (f"charged in full under the filter '{filter}'; if they" in err) is (filter != "rdp")
    assert "--out FOLDER resumes them" in err


def test_a_budget_below_what_is_spent_says_that_runs_are_refused(place, monkeypatch, capsys):
    book = opened("kept")
    book.claim(plan())
    book.close()
    lower = ("ledger", "budget", "kept", "--delta", 1e-3, "--epsilon")
    refusal = "is spent already, so all further runs are refused until the budget is raised again"
    assert refusal not in call(monkeypatch, capsys, *lower, 19)[1]
    assert refusal in call(monkeypatch, capsys, *lower, 0.1)[1]
    assert refusal in call(monkeypatch, capsys, *lower[:4], 1e-6, "--epsilon", 0.1)[1]


def test_a_training_that_ended_is_not_called_unfinished(place, federation):
    """Neither is a sweep, whose choice is charged by a row of its own."""
    privacy = coterie.Privacy(epsilon=2.0, delta=1e-3)
    coterie.open_ledgers("kept", federation, 400.0, 0.5)
    coterie.run(federation, ["local", "fedavg"], privacy, rounds=3, ledger="kept", out="one")
    table = {"name": "mr-mtl", "lam": [0.5, 1.0]}
    coterie.sweep(federation, table, privacy, mean=1.5, most=12, rounds=2, ledger="kept", out="two")
    assert {report.unfinished for report in coterie.read_ledgers("kept")} == {()}
